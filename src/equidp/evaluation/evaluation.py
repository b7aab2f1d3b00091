"""What a trained model does to each group of a test set: computed once, then shown on terminals and cards."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from equidp.data.dataset import GroupedDataset
from equidp.evaluation.groups import (
    answer_rates,
    blind_spots,
    check_outputs,
    group_intervals,
    paired_costs,
    recalls,
)
from equidp.evaluation.intervals import check_level
from equidp.evaluation.predict import predict


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Figures of a model on a test set, with intervals over its examples; tables end with group "all".

    Attributes:
        groups: accuracy and loss by group (`group_intervals`).
        recalls: recall by group and class; empty where accuracy says it already (`recalls`).
        rates: how often each group is answered with class 1 (`answer_rates`); empty unless there are two
            classes.
        costs: what privacy cost each group (`paired_costs`); None without a reference.
        blind_spots: sentences on what accuracy hides.
        level: of the intervals.
    """

    groups: pd.DataFrame
    recalls: pd.DataFrame
    rates: pd.DataFrame
    costs: pd.DataFrame | None
    blind_spots: tuple[str, ...]
    level: float

    @property
    def gaps(self) -> dict[str, float]:
        """Demographic parity and equalised odds differences between groups.

        Empty unless there are two classes, and where each group has examples of one class only.
        """
        rates = self.rates
        if rates.empty or not ((rates["positives"] > 0) & (rates["positives"] < rates["count"])).any():
            return {}
        differences = {
            name: float(rates[name].max() - rates[name].min())
            for name in ("selection_rate", "true_positive_rate", "false_positive_rate")
        }
        return {
            "demographic_parity_difference": differences.pop("selection_rate"),
            "equalized_odds_difference": max(differences.values()),
        }

    def withholding(self, fewest: int) -> Evaluation:
        """Returns the same evaluation without figures of fewer than `fewest` test examples, to be given away.

        Groups keep their row and count with NaN for figures. Rows of `recalls` are left out, because a count
        of a class would tell the class of a few people.
        """
        return replace(
            self,
            groups=_withheld(self.groups, fewest),
            recalls=self.recalls if self.recalls.empty else self.recalls[self.recalls["count"] >= fewest],
            rates=self.rates if self.rates.empty else self.rates[self.rates["count"] >= fewest],
            costs=None if self.costs is None else _withheld(self.costs, fewest),
        )

    def plain(self) -> dict[str, Any]:
        """Returns plain values for JSON: metrics, recalls, gaps, and costs where there is a reference."""
        tables = {"metrics": self.groups, "recalls": self.recalls}
        if self.costs is not None:
            tables["costs"] = self.costs
        records = {name: json.loads(table.to_json(orient="records")) for name, table in tables.items()}
        return records | {"gaps": self.gaps}


def evaluate(
    model: nn.Module, test: GroupedDataset, *, level: float = 0.95, reference: nn.Module | None = None
) -> Evaluation:
    """Evaluates a trained classifier, which gives one logit per class.

    Args:
        model: the trained model.
        test: examples that it was not trained on.
        level: of the intervals.
        reference: a model trained without privacy on the same data, to show what privacy cost.

    Raises:
        DataError: outputs of another shape.
        SettingError: a level outside (0, 1).

    >>> import torch
    >>> inputs = torch.tensor([[2.0, 0.0], [0.0, 2.0], [2.0, 0.0], [0.0, 2.0]])
    >>> targets, groups = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 1, 1])
    >>> test = GroupedDataset(inputs, targets, groups, group_names=("a", "b"), class_names=("no", "yes"))
    >>> model = nn.Linear(2, 2, bias=False)
    >>> _ = model.load_state_dict({"weight": torch.eye(2)})
    >>> found = evaluate(model, test)
    >>> found.groups[["group", "accuracy"]].to_dict("list")
    {'group': ['a', 'b', 'all'], 'accuracy': [1.0, 0.0, 0.5]}
    >>> found.gaps
    {'demographic_parity_difference': 0.0, 'equalized_odds_difference': 1.0}
    """
    check_level(level)
    outputs = predict(model, test.inputs)
    check_outputs(outputs, test.targets)
    other = None if reference is None else predict(reference, test.inputs)
    return Evaluation(
        groups=group_intervals(outputs, test, level),
        recalls=recalls(outputs, test, level, other),
        rates=answer_rates(outputs, test),
        costs=None if other is None else paired_costs(outputs, other, test, level),
        blind_spots=blind_spots(outputs, test.targets, test.class_names),
        level=level,
    )


def _withheld(table: pd.DataFrame, fewest: int) -> pd.DataFrame:
    figures = [name for name in table.columns if name not in ("group", "count")]
    shown = table.copy()
    shown.loc[shown["count"] < fewest, figures] = np.nan
    return shown
