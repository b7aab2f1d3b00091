"""Options of what a run releases beside its steps, generated from the kinds in `RELEASES`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cyclopts import Group, Parameter

from equidp.cli.settings import options_from
from equidp.policies.setting import MethodSetting
from equidp.runs.releases import RELEASES
from equidp.runs.releases.release import RunRelease

BALANCED = "balanced"


def _options_of(kinds: Iterable[type[RunRelease]]) -> list[tuple[MethodSetting, Group]]:
    grouped = [(kind, Group(kind.group, sort_key=5 if kind.after_training else 1)) for kind in kinds]
    return [(each, group) for kind, group in grouped for each in kind.options()]


@Parameter(name="*")
@options_from(_options_of(RELEASES.values()))
class ReleaseOptions:
    """Options of releases of a run, or of the runs of a comparison."""


def take_balanced(changed: dict[str, Any]) -> bool:
    """Take --class-weight balanced out of the settings that were given; True where it was there."""
    balanced: bool = changed.get("class_weight") == BALANCED
    if balanced:
        del changed["class_weight"]
    return balanced


def releases_of(options: Any, **implied: bool) -> tuple[RunRelease, ...]:
    """Return the releases that options ask for.

    Args:
        options: `ReleaseOptions`.
        implied: fields of releases that other options set.
    """
    given = {**vars(options), **implied}
    found = [kind.from_options(given) for kind in RELEASES.values()]
    return tuple(each for each in found if each is not None)
