"""Tables of results, and the page of all items in Markdown."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd

from equidp import Column, Table
from equidp.data.dataset import ALL
from papers.reproduction.item import PAPERS, Verdict
from papers.reproduction.result import CLOSE, Difference, Judged

_MOST_POINTS = 12
"""A quantity over more points than this is in a plot alone."""
_MOST_GROUPS = 11
_TITLES = {
    "accuracy": "Accuracy",
    "change": "Accuracy less that without privacy",
    "privacy_cost": "Privacy cost: accuracy lost against no privacy",
    "excessive_risk": "Excessive risk: loss beyond that without privacy",
    "loss": "Mean loss on the test data",
    "mean_norm": "Mean of gradient norms on the test data, last epoch",
    "mean_gradient_norm": "Norm of the mean gradient on the test data, last epoch",
    "epsilon": "Epsilon",
    "individual epsilon": "Mean epsilon of the examples",
}
WORDS = {
    "not run": "not run",
    "measured": "measured",
    "in part": "reproduced as far as it was run",
    "reproduced": "reproduced",
    "differs": "differs",
}
_LEGEND = (
    "Cells: mean ± standard error over seeds. After = or ≠ stands what the paper prints; ≠ where it is "
    f"beyond two standard errors of ours, or, of one seed, beyond {CLOSE:g}, or {100 * CLOSE:g}% of a figure "
    "above 1."
)


def tables(judged: Judged) -> list[Table]:
    """Tables of an item, beside what the paper prints: one for each quantity and dataset.

    A row for each method and point of a sweep; means with standard errors.
    """
    if judged.result is None:
        return []
    found, differences = judged.result.found, {_key(each): each for each in judged.differences}
    made = []
    for quantity in judged.item.columns:
        rows = found.where(quantity=quantity)
        single = rows["at"].isna()
        has_single = single.groupby([rows["data"], rows["method"]]).transform("any")
        rows = rows[single | ~has_single]  # what a method has over training too is in plots
        rows = rows[rows["at"].isna()] if rows["at"].nunique() > _MOST_POINTS else rows
        for data, part in rows.groupby("data", sort=False):
            made.append(_table(str(data), quantity, part, judged, differences))
    return made


def _key(each: Difference) -> tuple[str, ...]:
    printed = each.printed
    return (printed.data, printed.method, printed.group, printed.quantity, _point(printed.at))


def _table(
    data: str,
    quantity: str,
    part: pd.DataFrame,
    judged: Judged,
    differences: dict[tuple[str, ...], Difference],
) -> Table:
    groups = list(dict.fromkeys(part["group"]))
    if len(groups) > _MOST_GROUPS:
        named = {each.group for each in judged.item.printed}
        groups = [group for group in groups if group in named] or groups[:_MOST_GROUPS]
    groups.sort(key=lambda group: group != ALL)
    swept = bool(part["at"].notna().any())
    rows = []
    for (method, at), own in part.groupby(["method", "at"], sort=False, dropna=False):
        cells = own.set_index("group")
        texts = [
            _cell(cells.loc[group], differences.get((data, str(method), group, quantity, _point(float(at)))))
            if group in cells.index
            else ""
            for group in groups
        ]
        if any(texts):
            rows.append((str(method), *([_point(float(at))] if swept else []), *texts))
    headings = [*(["at"] if swept else []), *groups]
    columns = [Column("", "name"), *map(Column, headings)]
    return Table(columns, rows, f"{_TITLES.get(quantity, quantity.capitalize())}: {data}")


def _point(at: float) -> str:
    return "" if math.isnan(at) else f"{at:g}"


def _cell(row: pd.Series, difference: Difference | None) -> str:
    text = number(row["mean"])
    if row["error"] == row["error"]:
        text += f" ± {number(row['error'])}"
    if difference is None:
        return text
    sign = "≠" if difference.differs else "="
    return f"{text} {sign} {number(difference.printed.value)}"


def number(value: float) -> str:
    """A number in a few digits.

    >>> number(0.81423), number(-5.4291), number(12.04), number(-0.0)
    ('0.8142', '-5.429', '12.04', '0.0000')
    """
    return f"{round(value, 4) + 0.0:.4f}" if abs(value) < 1 else f"{value:.4g}"


def in_words(verdict: Verdict) -> str:
    """Verdict on a conclusion, in words."""
    return {True: "holds", False: "does not hold", None: "is inconclusive"}[verdict.holds]


def based_on(verdict: Verdict) -> str:
    """The figures that a verdict rests on.

    >>> based_on(Verdict(True, {"DPSGD-F": 0.41234, "DPSGD": 0.5}))
    ' (DPSGD-F: 0.4123, DPSGD: 0.5)'
    """
    figures = ", ".join(f"{name}: {value:.4g}" for name, value in verdict.figures.items())
    return f" ({figures})" if figures else ""


def _away(each: Difference) -> str:
    where = each.printed
    text = f"{where.data}, {where.method}, {where.group}, {where.quantity}: {number(each.mean)}"
    interval = "" if each.low != each.low else f" (difference {number(each.low)} to {number(each.high)})"
    return f"{text} where the paper has {number(where.value)}{interval}"


def results_page(items: Sequence[Judged]) -> str:
    """results.md: every item with its state, and what was found beside what is printed."""
    done = [each for each in items if each.result is not None]
    parts = [
        "# The papers' tables and figures, reproduced",
        "`python -m papers reproduce --page papers/results.md --results papers/results` writes this "
        "page from the files in [results](results): figures and verdicts are computed, reasons and "
        "notes are written by hand. `python -m papers reproduce NAME` makes an item again, with a "
        "page and plots of its own; `python -m papers reproduce --list` lists all.",
        f"{len(done)} of {len(items)} items were run. {_LEGEND} Settings are the papers' unless an item says "
        "otherwise. All was made on two CPU cores, but for commands with --device; nothing was tuned towards "
        "a paper's figures. A command `equidp reproduce` is of a commit before this folder, and is now "
        "`python -m papers reproduce`; commit afe0736367, of a GPU machine, is not in this repository.",
        _overview(items),
    ]
    for paper in PAPERS:
        own = [each for each in done if each.item.paper == paper]
        if own:
            parts.append(f"## {paper.title} ({paper.cited})")
            parts += [section(each) for each in own]
    return "\n\n".join(parts) + "\n"


def _overview(items: Sequence[Judged]) -> str:
    columns = [*(Column(name, "text") for name in ("item", "what", "state")), Column("seeds")]
    rows = []
    for each in items:
        item, result = each.item, each.result
        name = f"[{item.name}](#{item.name})" if result is not None else item.name
        seeds = item.seeds if result is None else result.seeds_counted
        hours = f"about {2 * item.hours():.2g}" if result is None else f"{result.hours:.2g}"
        rows.append((name, item.title, WORDS[each.state], seeds, hours))
    return Table([*columns, Column("hours of one core")], rows).to_markdown().rstrip()


def section(judged: Judged) -> str:
    """An item: what was found beside what is printed, claims with verdicts, reasons and notes."""
    item, result = judged.item, judged.result
    assert result is not None
    made = f"`{result.command}`: {result.seeds_in_words}, {result.hours_in_words}, "
    made += f"commit {result.commit}."
    parts = [f"### {item.name}", f"{item.title}. {WORDS[judged.state].capitalize()}.", made]
    if judged.not_run:
        parts.append(f"Not run yet: {', '.join(judged.not_run)}.")
    parts += [f"{table.caption}\n\n{table.to_markdown().rstrip()}" for table in tables(judged)]
    if judged.claims:
        parts.append(
            "\n".join(
                f"- {claim.text[:1].upper()}{claim.text[1:]}: **{in_words(verdict)}**{based_on(verdict)}."
                for claim, verdict in judged.claims
            )
        )
    if judged.reasons:
        parts.append("Why figures differ:\n" + "\n".join(f"- {text}" for text in judged.reasons))
    if judged.unexplained:
        lines = "\n".join(f"- {_away(each)}." for each in judged.unexplained)
        parts.append(f"Differences without a reason yet:\n{lines}")
    if item.notes:
        parts.append("\n".join(f"- {note}" for note in item.notes))
    return "\n\n".join(parts)
