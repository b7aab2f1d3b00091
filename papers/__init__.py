"""Papers on differential privacy and groups made again with equidp: tables and figures."""
