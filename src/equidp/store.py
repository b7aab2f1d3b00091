"""Results kept on disk under a digest of all that they follow from."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from equidp.errors import SettingError

FIGURES: Final = 1
"""Version of the figures that equidp computes; part of the key of each kept run and audit.

Raise it by one in the commit that changes a figure for the same data, settings, seed and packages, and make
`benchmarks/figures.json` anew; `benchmarks/same_figures.py --kept` says whether figures moved. Refactoring,
speed and words leave it as it is, so that kept results outlive them.
"""


def make_folder(folder: Path) -> None:
    """Make a folder for kept results and try to write in it.

    Raises:
        SettingError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise SettingError(
            f"runs cannot be kept in {os.fspath(folder)!r} ({error.strerror}); give a folder that can be "
            "written."
        ) from error
