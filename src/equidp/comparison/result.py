"""What the runs of a comparison gave."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from equidp._files import write_whole
from equidp.diagnostics import Diagnosis
from equidp.evaluation.groups import privacy_costs
from equidp.report import page as html
from equidp.report import terminal as table


@dataclass(frozen=True)
class Comparison:
    """What the runs of a comparison gave.

    Attributes:
        settings: what was compared and how; plain values.
        results: one row per run and group (and "all"): method, setting, seed, group, count, accuracy, loss, epsilon.
        epochs: one row per run, epoch and group: see `equidp.training.recorder.EpochRecorder`.
        individual: one row per private run and group, if that was asked for: what privacy its examples got. Columns that start with
            "sensitive" follow from raw training data, and must not leave the house.
        sensitive_diagnosis: where the disparity of the private runs comes from, if that was asked for; computed from raw training
            data, so it must not leave the house.
    """

    settings: dict[str, Any]
    results: pd.DataFrame
    epochs: pd.DataFrame
    individual: pd.DataFrame = field(default_factory=pd.DataFrame)
    sensitive_diagnosis: Diagnosis | None = None

    def costs(self) -> pd.DataFrame:
        """`results` with privacy cost and excessive risk against the non-private run of the same seed."""
        return privacy_costs(self.results, baseline=self.settings["baseline"])

    def table(self) -> None:
        """Prints the summary on the terminal."""
        table.print_comparison(self)

    def report(self, path: str | os.PathLike[str], *, include_sensitive: bool = False) -> None:
        """Writes the report: one HTML file that needs nothing else.

        `include_sensitive` adds the true epsilons of the groups' examples beside the released ones.
        """
        html.write_report(self, path, include_sensitive=include_sensitive)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Writes settings, costs and what was released of individual privacy as JSON (an infinite epsilon as null)."""
        open_to_all = self.individual[[c for c in self.individual if not c.startswith("sensitive")]]
        content = {
            "settings": self.settings,
            "results": json.loads(self.costs().to_json(orient="records")),
            "individual": json.loads(open_to_all.to_json(orient="records")),
        }
        write_whole(path, (json.dumps(content, indent=2) + "\n").encode())
