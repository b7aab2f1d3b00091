"""Papers on differential privacy and groups made again with equidp: results, a leaderboard, attacks."""
