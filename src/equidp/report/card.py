"""The model card: what was trained, what is guaranteed, what it does to each group, and how to check all that."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from equidp._files import check_writable, write_whole
from equidp._provenance import versions, weights_digest
from equidp.accounting import run_event
from equidp.data.dataset import ALL, GroupedDataset
from equidp.errors import SettingError
from equidp.evaluation.intervals import blind_spots, fairness_gaps, group_intervals, recalls
from equidp.evaluation.predict import predict
from equidp.kernel.epsilon import epsilon
from equidp.report.render import filled
from equidp.report.words import counted_steps, number, points

if TYPE_CHECKING:
    from equidp.training.run import Run

LEVEL = 0.95
_FEWEST = 5  # test examples that figures may be of, in a card that leaves the house
_STRONG, _WEAK = 1.0, 7.0  # epsilons: factors of about 2.7 and 1,000 on the odds
_TEMPLATES = {".html": "card.html", ".md": "card.md"}

LIMITS = (
    "The guarantee is for one example. Someone with m examples in the data is protected by about m times epsilon.",
    "It covers this training run. Other runs on the same data, and settings chosen by looking at their results, add to it.",
    "The number of examples, the names of groups and classes, and all settings count as public.",
    f"Of fewer than {_FEWEST} test examples no figures are shown, which would be those of a few people; differences of figures "
    "that are shown can still tell of them.",
    "Metrics are exact for the test examples, which the guarantee does not cover; intervals speak of their number alone, not of "
    "what another training run would give.",
    "Noisy sums are rounded to about a thousandth of their noise, so that gaps between a computer's numbers could tell them apart "
    "beyond 8 standard deviations of noise alone; timing and memory of the machine are not covered.",
    "What holds for the test examples need not hold for people unlike them.",
)


def write_cards(
    run: Run,
    paths: Sequence[str | os.PathLike[str]],
    test: GroupedDataset | None,
    data: str,
    notes: Sequence[str],
    released: Mapping[str, float],
    details: Mapping[str, Any],
) -> None:
    """See `Run.card`; the same card in several formats."""
    targets = [Path(path) for path in paths]
    for target in targets:
        if target.suffix.lower() not in _TEMPLATES:
            raise SettingError(
                f"{os.fspath(target)!r} ends in {target.suffix!r}; a card ends in .html or .md."
            )
        check_writable(target)
    facts = card_facts(run, test, data, notes, released, details)
    for target in targets:
        write_whole(target, filled(_TEMPLATES[target.suffix.lower()], **facts).encode())


def card_facts(
    run: Run,
    test: GroupedDataset | None,
    data: str,
    notes: Sequence[str],
    released: Mapping[str, float],
    details: Mapping[str, Any],
) -> dict[str, Any]:
    """All that the templates show."""
    spent = run.epsilon()
    settings = dict(run.settings)
    metrics: list[dict[str, Any]] = []
    by_class: list[dict[str, Any]] = []
    hidden: list[str] = []
    gaps: dict[str, float] = {}
    if test is not None:
        outputs = predict(run.model, test.inputs)
        metrics, by_class = _metrics(outputs, test), _recalls(outputs, test)
        hidden = blind_spots(outputs, test.targets, test.class_names)
        enough = torch.bincount(test.groups)[test.groups] >= _FEWEST
        if enough.any():
            gaps = fairness_gaps(outputs[enough], test.targets[enough], test.groups[enough], test.num_classes)
    return {
        "title": f"Model card: {data}" if data else "Model card",
        "data": data,
        "private": math.isfinite(spent),
        "guarantee": guarantee_in_words(run),
        "summary": _summary(metrics),
        "parameters": _parameters(run, spent, released=bool(released)),
        "event": str(run_event(run.entries)),
        "recompute": _recompute(run),
        "metrics": metrics,
        "recalls": by_class,
        "blind_spots": hidden,
        "level": f"{LEVEL:.0%}",
        "gaps": gaps,
        "groups": settings.pop("groups", () if test is None else test.group_names),
        "classes": settings.pop("classes", () if test is None else test.class_names),
        "notes": list(notes),
        "released": released,
        "limits": LIMITS,
        "settings": settings | dict(details),
        "versions": versions(),
        "hashes": {"model weights (SHA-256)": weights_digest(run.model)},
        "made": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }


def guarantee_in_words(run: Run) -> list[str]:
    """Sentences for someone who has never heard of epsilon."""
    spent, delta = run.epsilon(), run.delta
    if math.isinf(spent):
        return ["No guarantee: this model was trained without noise, and may reveal its training data."]
    shown = math.ceil(1000 * spent) / 1000  # never below the truth
    if spent >= _WEAK:
        meaning = "what the model gives away can depend strongly on a single training example."
    elif spent > _STRONG:
        meaning = "whatever is done with the model, what it tells of whether any one example was in the data is limited."
    else:
        meaning = "whatever is done with the model, it hardly tells whether any one example was in the training data."
    sentences = [
        f"Training was ({shown:g}, {delta:g})-differentially private for each training example: {meaning}",
        f"In odds: whoever holds the model and all else there is to know can shift the odds on whether an example was there by a "
        f"factor of at most e^{shown:g}, {_factor(spent)}, except with a probability of about {delta:g}.",
        "This holds for every example of every group alike.",
    ]
    examples = run.settings.get("training examples")
    if examples is not None and delta >= 1 / examples:
        sentences.append(
            f"Warning: delta is not below 1/n, n = {examples:,} training examples: a method that publishes one example whole would "
            "count as private too."
        )
    return sentences


def _factor(spent: float) -> str:
    return f"about {math.exp(spent):,.3g}" if spent < _WEAK else "more than 1,000, which promises little"


def _summary(metrics: Sequence[Mapping[str, Any]]) -> str:
    groups = [row for row in metrics if row["group"] != ALL and not math.isnan(row["accuracy"])]
    if not metrics:
        return "No test set was given, so nothing is said of accuracy."
    overall = f"Accuracy on {metrics[-1]['count']:,} test examples: {points(metrics[-1]['accuracy'])} %"
    if not groups:
        return f"{overall}."
    worst, best = (pick(groups, key=lambda row: row["accuracy"]) for pick in (min, max))
    if worst["accuracy"] == best["accuracy"]:
        return f"{overall}, in every group alike."
    return (
        f"{overall}. Lowest for group {worst['group']}, {points(worst['accuracy'])} %, highest for {best['group']}, "
        f"{points(best['accuracy'])} %."
    )


def _parameters(run: Run, spent: float, *, released: bool) -> list[tuple[str, str]]:
    rows = [
        ("epsilon", number(spent) if math.isinf(spent) else f"{spent:.6g} ({run.accountant})"),
        ("delta", f"{run.delta:g}"),
        ("neighbouring datasets", "differ by one example, added or removed"),
        ("sampling", "Poisson: each example joins each step's sample independently"),
    ]
    if math.isfinite(spent):
        rows += [
            (f"epsilon by {name}", f"{epsilon(run.entries, run.delta, name):.6g}")
            for name in ("pld", "rdp")
            if name != run.accountant
        ]
    for event, steps in run.entries:
        statistics = (
            "" if event.statistics_noise is None else f", statistics noise {event.statistics_noise:.6g}"
        )
        whole = event.sample_rate == 1 and steps == 1
        rows.append(
            (
                "1 release of individual privacy" if released and whole else counted_steps(steps),
                f"sample rate {event.sample_rate:.6g}, noise multiplier {event.noise_multiplier:.6g}{statistics}",
            )
        )
    return rows


def _recompute(run: Run) -> str:
    """Python that works epsilon out again with dp-accounting alone."""
    return (
        "from dp_accounting import ComposedDpEvent, GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent\n"
        "from dp_accounting.pld import PLDAccountant\n\n"
        f"event = {run_event(run.entries)}\n"
        f"print(PLDAccountant(value_discretization_interval=1e-4).compose(event).get_epsilon({run.delta!r}))"
    )


def _metrics(outputs: Tensor, test: GroupedDataset) -> list[dict[str, Any]]:
    """By group, without figures where they would tell what the model does to a handful of people."""
    table = group_intervals(outputs, test.targets, test.groups, test.group_names, LEVEL)
    figures = [name for name in table.columns if name not in ("group", "count")]
    table.loc[table["count"] < _FEWEST, figures] = np.nan
    rows: list[dict[str, Any]] = table.to_dict("records")
    return rows


def _recalls(outputs: Tensor, test: GroupedDataset) -> list[dict[str, Any]]:
    """Of no fewer than a handful of people: a count alone would tell someone's class."""
    table = recalls(outputs, test.targets, test.groups, test.group_names, test.class_names, LEVEL)
    rows: list[dict[str, Any]] = table[table["count"] >= _FEWEST].to_dict("records") if len(table) else []
    return rows
