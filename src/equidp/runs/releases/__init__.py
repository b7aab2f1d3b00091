"""Releases of a run beside its steps: one kind a file, and one line in `RELEASES`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equidp._validate import unknown_name
from equidp.runs.plain import part_of
from equidp.runs.releases.counts import CountsRelease
from equidp.runs.releases.individual import IndividualRelease
from equidp.runs.releases.preprocessing import PreprocessingRelease
from equidp.runs.releases.release import RunRelease

__all__ = [
    "RELEASES",
    "CountsRelease",
    "IndividualRelease",
    "PreprocessingRelease",
    "RunRelease",
    "release_of",
]

RELEASES: dict[str, type[RunRelease]] = {
    each.name: each
    for each in (
        PreprocessingRelease,
        CountsRelease,
        IndividualRelease,
    )
}
"""Kinds of releases by name, in the order in which they are drawn."""


def release_of(content: Mapping[str, Any]) -> RunRelease:
    """Return the release of plain values that its `to_plain` returned.

    Raises:
        SettingError: a kind that is not in `RELEASES`, or settings that it refuses.
    """
    settings = dict(content)
    kind = settings.pop("kind")
    if kind not in RELEASES:
        raise unknown_name("kind of release", kind, RELEASES)
    return part_of(RELEASES[kind], settings)
