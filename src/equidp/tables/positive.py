"""The positive class of two, by their names."""

from __future__ import annotations

from collections.abc import Sequence

_YES = ("yes", "y", "true", "positive", "pos", "ja", "oui", "si", "sí", "high")
_NO = ("no", "n", "false", "negative", "neg", "nein", "non", "none", "low", "0", "-1")


def named_positive(class_names: Sequence[str]) -> str | None:
    """Return the name that says yes, is paired with one that says no, or begins with ">". None: none does.

    >>> [named_positive(names) for names in (("no", "yes"), ("0", "1"), ("<=50K", ">50K"), ("ill", "well"))]
    ['yes', '1', '>50K', None]
    """
    words = [name.strip().lower() for name in class_names]
    for says_yes in (
        [word in _YES for word in words],
        [word in _NO for word in reversed(words)],
        [word.startswith(">") for word in words],
    ):
        if sum(says_yes) == 1:
            return class_names[says_yes.index(True)]
    return None
