"""Reports of results: a comparison as a page or on the terminal, a run as a model card."""
