"""Columns that carry a model whose ranking is too good to be true: often noted after the outcome."""

from __future__ import annotations

import numpy as np
from torch import nn

from equidp._extras import require_extra
from equidp.data.dataset import GroupedDataset
from equidp.evaluation.predictions import Decision, Predictions, predict
from equidp.tables.encode import TableEncoder

with require_extra("tables"):
    from sklearn.metrics import roc_auc_score

RARELY_TRUE = 0.95
"""AUC above which a model of people is rarely honest."""
_MOST_ROWS = 10_000


def find_carriers(model: nn.Module, encoder: TableEncoder, test: GroupedDataset) -> list[tuple[str, float]]:
    """Return each column with the AUC of the model from only this column, the largest first.

    All other inputs come from the mean test example, so that both of two equivalent columns are found. The
    model must have two classes, and the test set must have both.
    """
    rows = np.random.default_rng(0).permutation(len(test))[:_MOST_ROWS]
    inputs, targets = test.one_tensor[rows].cpu(), test.targets[rows].cpu()
    mean = inputs.mean(dim=0, keepdim=True)
    carriers, start = [], 0
    for column in encoder.columns:
        place = slice(start, start + column.width)
        alone = mean.repeat(len(inputs), 1)
        alone[:, place] = inputs[:, place]
        predicted = Predictions.of(predict(model, alone), targets, test.class_names, Decision())
        carriers.append((column.name, float(roc_auc_score(predicted.hits, predicted.risks))))
        start += column.width
    return sorted(carriers, key=lambda each: -each[1])
