"""Tuning of a comparison: how the settings of each method were chosen, in sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from equidp.comparison.sweep import Kind, value_text
from equidp.comparison.tune import CHOICES, FINALISTS, SHARED, Tuning
from equidp.display import Cell, Column, Table
from equidp.report.document import Block, Heading, paragraphs
from equidp.report.summary import Summary

_OWN = "the plan's own"


def tuning_blocks(summary: Summary) -> Iterator[Block]:
    """Return the section on tuning; nothing where all methods trained by the plan."""
    if (tuning := summary.comparison.tuning) is None:
        return
    yield Heading("How settings were chosen")
    yield from paragraphs(tuning_sentences(summary, tuning), small=True)
    yield chosen_table(summary, tuning)
    yield Heading("All settings that were tried", 3)
    yield trials_table(summary, tuning)


def tuning_sentences(summary: Summary, tuning: Tuning) -> list[str]:
    """Return sentences on the search: how it chose, and what it drew from."""
    first, *others = tuning.seeds
    kept = "; ".join(f"{name}: {_settings_text(own)}" for name, own in tuning.untuned.items() if own)
    return [
        f"Up to {tuning.draws} settings of each method were tried: the plan's own, and random multiples of "
        "them that are the same for all methods. Each was trained on four fifths of the training set of seed "
        f"{first} and judged on the other fifth; the best {FINALISTS} also on seeds "
        f"{' and '.join(map(str, others))}. Chosen are the settings under which the group that loses most "
        f"{summary.metric.label} against plain SGD loses least on average; ties go to the better value over "
        "all held-out examples, by which the settings of plain SGD are chosen too. All other metrics are of "
        "new runs, of other seeds, on test sets. Where each seed splits all rows again, a row that settings "
        "were chosen on may be a test row of another seed.",
        "Choosing settings reads the training data, and epsilon does not cover it: this is for research on "
        "methods, not for a model that is released.",
        f"Drawn: {_ranges_text(tuning)}.",
        *([f"Not drawn, so as they are: {kept}."] if kept else []),
    ]


def _ranges_text(tuning: Tuning) -> str:
    shared = {name: text for own in tuning.ranges.values() for name, text in own.items() if name in SHARED}
    texts = [f"{name} {text}{'' if name in CHOICES else ' times the plan'}" for name, text in shared.items()]
    own = [
        f"{name} of {method} {text}"
        for method, ranges in tuning.ranges.items()
        for name, text in ranges.items()
        if name not in SHARED
    ]
    return "; ".join([*texts, *own])


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value_text(value)}" for name, value in settings.items())


def chosen_table(summary: Summary, tuning: Tuning) -> Table:
    """Return the table of the chosen settings, a row per kind of run."""
    rows: list[list[Cell]] = []
    for kind, settings in tuning.settings.items():
        trials = tuning.trials.query("method == @kind.method and setting == @kind.setting")
        row = trials[trials["chosen"]].iloc[0]
        rows.append([kind.label, len(trials), row["worst_cost"], _settings_text(settings) or _OWN])
    columns = [
        Column("method", "name"),
        Column("tried"),
        Column("worst loss", show=summary.text),
        Column("chosen settings", "text"),
    ]
    return Table(columns, rows, "Chosen settings")


def trials_table(summary: Summary, tuning: Tuning) -> Table:
    """Return the table of all trials, with the number of seeds of each."""
    rows: list[list[Cell]] = []
    for row in tuning.trials.to_dict("records"):
        kind = Kind(row["method"], row["setting"])
        measured = [row["seeds"], row["overall"], row["worst_cost"]]
        settings = row["settings"] or _OWN
        rows.append([kind.label, *measured, "yes" if row["chosen"] else "", settings])
    columns = [
        Column("method", "name"),
        Column("seeds"),
        Column(f"{summary.metric.label}, held out", show=summary.text),
        Column("worst loss", show=summary.text),
        Column("chosen", "text"),
        Column("settings", "text"),
    ]
    return Table(columns, rows)
