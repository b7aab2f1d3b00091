"""Releases of a run: one kind per file, and one line in `equidp.training.release.RELEASES`."""

from __future__ import annotations

from typing import Any

from equidp.runs.releases.counts import CountsRelease
from equidp.runs.releases.individual import IndividualRelease
from equidp.runs.releases.preprocessing import PreprocessingRelease
from equidp.training.release import RELEASES, Release, release_class

__all__ = ["CountsRelease", "IndividualRelease", "PreprocessingRelease", "take_releases"]

BALANCED = "balanced"


def take_releases(given: dict[str, Any], *, base_rate_threshold: bool) -> tuple[Release, ...]:
    """Return the releases that options ask for, and take these out.

    Args:
        given: options by name. `class_weight` counts as one if it is "balanced", which needs class counts.
        base_rate_threshold: whether the threshold of the decision is the released base rate.
    """
    balanced = given.get("class_weight") == BALANCED
    if balanced:
        del given["class_weight"]
    kinds = [*map(release_class, RELEASES)]
    options = {each.name: given.pop(each.name, None) for kind in kinds for each in kind.options()}
    options |= {"balanced": balanced, "base_rate_threshold": base_rate_threshold}
    found = [kind.from_options(options) for kind in kinds]
    return tuple(each for each in found if each is not None)
