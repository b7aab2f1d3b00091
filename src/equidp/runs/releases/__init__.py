"""Releases of a run beside its steps: one kind a file, and one line in `RELEASES`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from equidp._parts import is_import_path, own_part
from equidp._validate import unknown_name
from equidp.runs.releases.counts import CountsRelease
from equidp.runs.releases.individual import IndividualRelease
from equidp.runs.releases.preprocessing import PreprocessingRelease
from equidp.runs.releases.recalibration import RecalibrationRelease
from equidp.runs.releases.release import RunRelease

__all__ = [
    "RELEASES",
    "CountsRelease",
    "IndividualRelease",
    "PreprocessingRelease",
    "RecalibrationRelease",
    "RunRelease",
    "release_from_plain",
    "release_to_plain",
]

RELEASES: dict[str, type[RunRelease]] = {
    each.name: each for each in (PreprocessingRelease, CountsRelease, RecalibrationRelease, IndividualRelease)
}
"""Kinds of releases by name, in the order in which they are drawn."""


def release_to_plain(release: RunRelease) -> dict[str, Any]:
    """Return the kind of a release and its settings as plain values."""
    kind = type(release)
    known = RELEASES.get(release.name) is kind
    return {"kind": release.name if known else f"{kind.__module__}:{kind.__qualname__}", **asdict(release)}


def release_from_plain(content: Mapping[str, Any]) -> RunRelease:
    """Return the release of these plain values.

    Raises:
        SettingError: an unknown kind.
    """
    settings = dict(content)
    name = settings.pop("kind")
    if not is_import_path(name):
        if name not in RELEASES:
            raise unknown_name("release", name, RELEASES)
        return RELEASES[name](**settings)
    kind = own_part(name, "release", _is_kind, "a subclass of RunRelease")
    made: RunRelease = kind(**settings)
    return made


def _is_kind(part: Any) -> bool:
    return isinstance(part, type) and issubclass(part, RunRelease)
