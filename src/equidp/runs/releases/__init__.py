"""Releases of a run beside its steps: one kind a file, and one line in `RELEASES`."""

from __future__ import annotations

from equidp.runs.releases.counts import CountsRelease
from equidp.runs.releases.individual import IndividualRelease
from equidp.runs.releases.preprocessing import PreprocessingRelease
from equidp.runs.releases.recalibration import RecalibrationRelease
from equidp.runs.releases.release import RunRelease
from equidp.runs.releases.training_loss import TrainingLossRelease

__all__ = [
    "RELEASES",
    "CountsRelease",
    "IndividualRelease",
    "PreprocessingRelease",
    "RecalibrationRelease",
    "RunRelease",
    "TrainingLossRelease",
]

RELEASES: dict[str, type[RunRelease]] = {
    each.name: each
    for each in (
        PreprocessingRelease,
        CountsRelease,
        TrainingLossRelease,
        RecalibrationRelease,
        IndividualRelease,
    )
}
"""Kinds of releases by name, in the order in which they are drawn."""
