"""Reports of results: a comparison as a page or on the terminal, a run as a model card.

Sentences, tables and figures for readers belong here. The values and findings that they show come from the
folders below.
"""
