"""Results kept on disk under a digest of all that they follow from."""

from __future__ import annotations

from typing import Final

FIGURES: Final = 1
"""Version of the figures that equidp computes; part of the key of each kept run and audit.

Raise it by one in the commit that changes a figure for the same data, settings, seed and packages, and make
`benchmarks/figures.json` anew; `benchmarks/same_figures.py --kept` says whether figures moved. Refactoring,
speed and words leave it as it is, so that kept results outlive them.
"""
