"""What the site is made of beside its pages: generated pages, docstrings as reStructuredText, links."""
