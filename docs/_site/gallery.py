"""Order of the tutorials, from the first steps on."""

from __future__ import annotations

from pathlib import Path

ORDER = ("patients", "training_loop", "choose_epsilon", "rare_digits", "own_method")


def tutorial_place(filename: str) -> int:
    """Return the place of a tutorial in the gallery, for a file such as plot_patients.py."""
    return ORDER.index(Path(filename).stem.removeprefix("plot_"))
