"""Tables of names: what to say when a name is not in one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from equidp.errors import SettingError


def unknown_name(kind: str, given: str, known: Iterable[str]) -> SettingError:
    """An error that lists the known names and the closest one to what was given."""
    names = sorted(known)
    close = difflib.get_close_matches(given, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return SettingError(f"unknown {kind} {given!r}.{hint} Known: {', '.join(names)}.")
