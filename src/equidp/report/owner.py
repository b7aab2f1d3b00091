"""Sentences only for the owner of the data, on what epsilon does not cover; never on a card."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from equidp.evaluation.metrics import Metric, MetricValue
from equidp.report.format import metric_text
from equidp.tables.signals import NAMED

_MOST_NAMED = 3


def leak_sentence(auc: float, carriers: Sequence[tuple[str, float]]) -> str:
    """Return a sentence on a model whose AUC is rarely true, and on the columns that carry it.

    Args:
        auc: AUC of the model on test examples.
        carriers: columns, each with the AUC of the model from only this column, the largest first.

    >>> print(leak_sentence(0.973, [("merged", 0.964), ("age", 0.61)]))
    AUC 0.973 on test examples is rarely true: 'merged' alone carries 0.964. Is it known before ...
    """
    named = [each for each in carriers if each[1] > NAMED][:_MOST_NAMED] or [*carriers[:1]]
    alone = " and ".join(f"{name!r} alone carries {share:.3f}" for name, share in named)
    one = "it" if len(named) == 1 else "each of them"
    dropped = ", ".join(f'"{name}"' for name, _ in named)
    return (
        f"AUC {auc:.3f} on test examples is rarely true: {alone}. Is {one} known before the outcome? If not, "
        f"train without (drop = [{dropped}] under [table] of run.toml)."
    )


def reference_sentence(values: Mapping[str, MetricValue], metric: Metric, own: float) -> str:
    """Return a sentence that compares a run with non-private models.

    Args:
        values: metric of each model, by name.
        metric: metric that was measured.
        own: metric of the run on the same test examples.
    """
    others = " and ".join(f"{metric_text(metric, each.value)} by {name}" for name, each in values.items())
    percent = ", %" if metric.percent else ""
    return (
        f"Without privacy, on the same rows and inputs, {metric.label}{percent} is {others}; by this run "
        f"{metric_text(metric, own)}. Epsilon does not cover these: keep them to yourself."
    )
