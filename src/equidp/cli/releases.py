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


COSTS = tuple(each for kind in RELEASES.values() for each in kind.options() if each.type is float)
"""Settings of what a release costs, which --set gives."""


def _options_of(kinds: Iterable[type[RunRelease]]) -> list[tuple[MethodSetting, Group]]:
    grouped = [(kind, Group(kind.group, sort_key=5 if kind.after_training else 1)) for kind in kinds]
    return [(each, group) for kind, group in grouped for each in kind.options() if each not in COSTS]


@Parameter(name="*")
@options_from(_options_of(RELEASES.values()))
class ReleaseOptions:
    """Options of releases of a run, or of the runs of a comparison."""


def take_releases(
    options: Any, changed: dict[str, Any], *, base_rate_threshold: bool
) -> tuple[RunRelease, ...]:
    """Return the releases that options and settings request.

    Args:
        options: `ReleaseOptions`.
        changed: settings that were given; those of releases are removed, and `class_weight` where it is
            "balanced", which a release of counts makes.
        base_rate_threshold: True where the threshold of the decision is the released base rate.
    """
    balanced = changed.get("class_weight") == BALANCED
    if balanced:
        del changed["class_weight"]
    costs = {each.name: changed.pop(each.name, None) for each in COSTS}
    given = {**vars(options), **costs, "balanced": balanced, "base_rate_threshold": base_rate_threshold}
    found = [kind.from_options(given) for kind in RELEASES.values()]
    return tuple(each for each in found if each is not None)
