"""Comparison of methods: its page, one self-contained HTML file, its tables, and what a terminal shows."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from rich.console import Console
from rich.markup import escape

from equidp._files import check_writable, write_whole
from equidp._validate import unknown_name
from equidp.comparison.plan import Kind
from equidp.comparison.result import Comparison
from equidp.data.dataset import ALL
from equidp.display import Cell, Column, Interval, Table, measured_number
from equidp.errors import count_text
from equidp.evaluation.differences import GAP, OVERALL, WORST_GROUP
from equidp.evaluation.intervals import LEVEL, mean_interval
from equidp.policies.table import BASELINE
from equidp.report import words
from equidp.report.document import (
    Block,
    Callout,
    Code,
    Document,
    Facts,
    Heading,
    Listing,
    Paragraph,
    paragraphs,
)
from equidp.report.format import capitalise, facts_table, number, unit, whole_number
from equidp.report.plan import plan_blocks
from equidp.report.summary import Detail, Summary, summarise


def write_report(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Write the page of a comparison, whole or not at all."""
    check_writable(path)
    write_whole(path, render(comparison))


def findings(comparison: Comparison) -> list[str]:
    """Return what a comparison found, and which method to take."""
    summary = summarise(comparison)
    return [*words.finding_sentences(summary), *words.recommendation_sentences(summary)]


def render(comparison: Comparison) -> str:
    """Return the page as text."""
    from equidp.report.diagnosis import diagnosis_blocks
    from equidp.report.individual import individual_blocks

    summary = summarise(comparison)
    blocks = [
        *_result_blocks(summary),
        *individual_blocks(summary),
        *diagnosis_blocks(summary),
        *_guarantee_blocks(summary),
    ]
    return Document(f"What privacy cost each group: {summary.setup.data}", blocks).to_html()


def _result_blocks(summary: Summary) -> Iterator[Block]:
    """Findings and recommendations, all methods side by side, plots, and tables by group."""
    from equidp.report.plots import PLOTS  # matplotlib takes a second
    from equidp.report.plots.style import draw_plots

    setup, comparison = summary.setup, summary.comparison
    yield Paragraph(
        f"{setup.data}, model {setup.plan.plan.model_name}; {setup.num_train:,} training examples, "
        f"{count_text(len(setup.group_names), 'group')}; {count_text(len(setup.seeds), 'seed')}; "
        f"delta {setup.plan.delta:g}",
        small=True,
    )
    yield Callout(
        [
            *paragraphs(words.finding_sentences(summary)),
            Heading("Which method to take", 3),
            *paragraphs(words.recommendation_sentences(summary)),
        ]
    )
    only_inside = "For internal use: this page shows results of training without privacy."
    yield Callout([Paragraph(only_inside)], warning=True)
    yield Heading("Methods side by side")
    yield methods_table(summary)
    yield Paragraph(
        f"{capitalise(summary.metric.heading)}: over all test examples. Cost: what is lost against the "
        f"non-private run of the same seed, in {unit(summary.metric)}. Gap: the largest difference in cost "
        f"between two groups. Small numbers are {LEVEL:.0%} intervals over seeds.",
        small=True,
    )
    yield from paragraphs([*words.auto_sentences(setup), *words.reference_sentences(summary)], small=True)
    yield from paragraphs(words.protection_sentences(summary))
    if summary.has_model_cost:
        yield Heading("What the model costs, and what privacy costs")
        yield overall_costs_table(summary)
        yield Paragraph(
            f"Over all test examples, in {unit(summary.metric)}. Model cost: what the same model as the "
            f"private one loses, without privacy, against {summary.best_label}, the best. Privacy cost: what "
            "the private model loses on top. Total cost: both together; tables by group are below.",
            small=True,
        )
    if setup.against:
        table = differences_table(summary)
        yield Heading(table.caption)
        yield table
        yield from paragraphs(words.difference_sentences(summary), small=True)
    if comparison.tuning is not None:
        yield Heading("How settings were chosen")
        yield from paragraphs(words.tuning_sentences(summary.metric, comparison.tuning), small=True)
        yield chosen_table(summary)
        yield Heading("All settings that were tried", 3)
        yield trials_table(summary)
    yield Heading("Plots")
    yield from draw_plots(PLOTS.values(), summary)
    yield Heading("All metrics by group")
    for detail in summary.details:
        yield Heading(detail.title, 3)
        yield detail_table(summary, detail)
    if not comparison.references.empty:
        table = references_table(summary)
        yield Heading(table.caption, 3)
        yield table
        yield Paragraph(
            f"If several learning rates were tried, all were tried on seed {setup.seeds[0]}. The best one by "
            f"{summary.metric.label} over all its test examples was then trained on every seed. Rates whose "
            "loss is above the loss of a constant prediction come last.",
            small=True,
        )


def _guarantee_blocks(summary: Summary) -> Iterator[Block]:
    """The guarantee of the private runs, its limits, and how the comparison was made."""
    setup, plan = summary.setup, summary.setup.plan
    yield Heading("What is guaranteed")
    yield from paragraphs(words.guarantee_sentences(summary))
    yield Heading("What the guarantee does not cover", 3)
    yield Listing(words.exclusion_sentences(setup))
    yield from plan_blocks(setup.settings)
    yield Heading("Command, steps and versions")
    if setup.command:
        yield Code(setup.command, "console")
    steps = {} if setup.steps_differ else {"steps": plan.steps, "sample rate": f"{plan.sample_rate:.6g}"}
    seeds = ", ".join(map(str, setup.seeds))
    yield Facts(facts_table({"data": setup.data, **steps, "seeds": seeds, **setup.versions}))


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print findings, one row per method, and which method to take. The page has the metrics by group.

    Args:
        comparison: comparison from `equidp.compare`.
        console: output. None: standard output.
    """
    console, summary = console or Console(), summarise(comparison)
    setup = summary.setup
    console.print()
    for sentence in words.finding_sentences(summary):
        console.print(escape(sentence), highlight=False)
    console.print()
    methods_table(summary).print(console)
    small = [
        f"{LEVEL:.0%} intervals over {count_text(len(setup.seeds), 'seed')}; costs and gaps in "
        f"{unit(summary.metric)} against {BASELINE}; delta {setup.plan.delta:g}.",
        *words.reference_sentences(summary),
        *words.auto_sentences(setup),
    ]
    for sentence in small:
        console.print(escape(sentence), highlight=False, style="dim")
    if setup.against:
        console.print()
        differences_table(summary).print(console, split=True)
        for sentence in words.difference_sentences(summary):
            console.print(escape(sentence), highlight=False, style="dim")
    if comparison.tuning is not None:
        console.print()
        chosen_table(summary).print(console)
    console.print("\nWhich method to take", style="bold")
    for sentence in words.recommendation_sentences(summary):
        console.print(escape(sentence), highlight=False)


def methods_table(summary: Summary, *, intervals: bool = False) -> Table:
    """Table with a row per kind of run of a comparison, with its verdict on equal cost of privacy.

    Args:
        summary: summary of the comparison.
        intervals: whether to show intervals next to the metric and its cost too, if there is room.
    """
    setup, text = summary.setup, summary.text
    columns = (
        Column("method", "name" if setup.swept else "label"),
        Column("epsilon", show=number),
        Column(summary.metric.heading, show=text),
        Column("privacy cost", show=text),
        Column("largest loss", "text"),
        Column("largest gap", "text", text),
        Column(f"gap ≤ {text(setup.gap_tolerance)}?", "verdict"),
    )
    rows: list[list[Cell]] = [
        [
            row.kind.label if setup.swept or intervals or row.kind.method == BASELINE else row.kind.method,
            row.epsilon,
            summary.interval(row.kind, ALL, summary.metric.name) if intervals else row.value,
            summary.interval(row.kind, ALL, "privacy_cost") if intervals and row.worst_group else row.cost,
            f"{row.worst_group}: {text(row.worst_cost)}" if row.worst_group else "",
            row.gap,
            row.verdict,
        ]
        for row in summary.overview
    ]
    return Table(columns, rows, f"What privacy costs: {setup.data}, {setup.plan.plan.model_name}")


def detail_table(summary: Summary, detail: Detail) -> Table:
    """Table of means over seeds with intervals, groups down and kinds of run across.

    The table of the comparison's metric begins with the best non-private model, if that is not a kind of run.
    """
    kinds = summary.kinds_of(detail.column)
    best = (
        not summary.best.empty and not summary.best["chosen"].all() and detail.column == summary.metric.name
    )
    rows: list[list[Cell]] = [
        [
            group,
            size,
            *([summary.best_interval(group)] if best else []),
            *(summary.interval(kind, group, detail.column) for kind in kinds),
        ]
        for group, size in summary.sizes().items()
    ]
    columns = [
        Column("group", "name"),
        Column("in training", show=whole_number),
        *([Column(summary.best_label, show=detail.show)] if best else []),
        *(Column(kind.label, show=detail.show) for kind in kinds),
    ]
    return Table(columns, rows, detail.title, total=ALL)


def _column_table(column: str) -> Callable[[Summary], Table]:
    def table(summary: Summary) -> Table:
        name = column or summary.metric.name
        titles = {each.column: each for each in summary.details}
        return detail_table(summary, titles.get(name, Detail(name, name.replace("_", " "), summary.text)))

    return table


def overall_costs_table(summary: Summary) -> Table:
    """Table of the best model without privacy, the same model without privacy and the private one.

    A row per kind of private run, over all test examples, with model cost, privacy cost and their sum.
    """
    metric, show = summary.metric, summary.text
    heads = ["best without privacy", "same model without privacy", "private"]
    heads += [f"{name} cost" for name in ("model", "privacy", "total")]
    rows: list[list[Cell]] = []
    for kind in summary.private_kinds:
        same = Kind(BASELINE, summary.judgements[kind].baseline)
        rows.append(
            [
                kind.label,
                summary.best_interval(ALL),
                summary.interval(same, ALL, metric.name),
                summary.interval(kind, ALL, metric.name),
                *(summary.interval(kind, ALL, f"{name}_cost") for name in ("model", "privacy", "total")),
            ]
        )
    title = f"Model cost and privacy cost, {metric.heading}; best: {summary.best_label}"
    return Table([Column("method", "label"), *(Column(head, show=show) for head in heads)], rows, title)


def references_table(summary: Summary) -> Table:
    """Table of the models without privacy that were tried, and what each serves as."""
    metric, references = summary.metric, summary.comparison.references
    overall, rows = references[references["group"] == ALL], list[Sequence[Cell]]()
    for (method, name, rate), part in overall.groupby(
        ["method", "baseline", "rate"], sort=False, dropna=False
    ):
        finite = part[metric.name].notna() & ~part["loss"].isin([math.inf, math.nan])
        roles = [role for role, column in (("reference", "chosen"), ("best", "best")) if part[column].all()]
        lost = int((~finite).sum())
        measured = (
            Interval(*mean_interval(part.loc[finite, column], LEVEL, within))
            for column, within in ((metric.name, metric.range), ("loss", (0.0, math.inf)))
        )
        state = [*roles, *([f"diverged in {lost} of {len(part)} seeds"] if lost else [])]
        shown = [name] if math.isnan(rate) else [name, f"learning rate {rate:.4g}"]
        label = Kind(method, ", ".join(filter(None, shown))).label
        rows.append([label, len(part), *measured, ", ".join(state)])
    columns = [
        Column("model", "name"),
        Column("seeds"),
        Column(metric.heading, show=summary.text),
        Column("loss", show=measured_number),
        Column("serves as", "text"),
    ]
    return Table(columns, rows, "Models tried without privacy")


def differences_table(summary: Summary) -> Table:
    """Table of the differences from `Setup.against`: a row for each kind of run and quantity."""
    metric, against = summary.metric, summary.setup.against
    said = {OVERALL: f"{metric.label}, all", WORST_GROUP: f"{metric.label}, worst group", GAP: "largest gap"}
    rows: list[list[Cell]] = []
    for row in summary.comparison.differences().to_dict("records"):
        name, other = Kind(row["method"], row["setting"]).label, row["against_setting"]
        if other not in ("", row["setting"]):
            name = f"{name} - {Kind(against, other).label}"
        ends = Interval(row["mean"], row["low"], row["high"])
        rows.append([name, said[row["quantity"]], ends, row["corrected_p"]])
    columns = [
        Column("method", "name"),
        Column("of", "name"),
        Column(f"difference{', points' if metric.percent else ''}", show=summary.text),
        Column("p", show=lambda p: "–" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"),
    ]
    return Table(columns, rows, f"Differences from {against}")


def chosen_table(summary: Summary) -> Table:
    """Return the table of the chosen settings, a row per kind of run."""
    tuning = summary.comparison.tuning
    assert tuning is not None
    rows: list[list[Cell]] = []
    for (method, setting), trials in tuning.trials.groupby(["method", "setting"], sort=False):
        row = trials[trials["chosen"]].iloc[0]
        rows.append([Kind(method, setting).label, len(trials), row["worst_cost"], row["settings"] or _OWN])
    heads = [Column("tried"), Column("worst loss", show=summary.text), Column("chosen settings", "text")]
    return Table([Column("method", "name"), *heads], rows, "Chosen settings")


def trials_table(summary: Summary) -> Table:
    """Return the table of all trials, with the number of seeds of each."""
    tuning = summary.comparison.tuning
    assert tuning is not None
    rows: list[list[Cell]] = [
        [
            Kind(row["method"], row["setting"]).label,
            *(row[name] for name in ("seeds", "overall", "worst_cost")),
            "yes" if row["chosen"] else "",
            row["settings"] or _OWN,
        ]
        for row in tuning.trials.to_dict("records")
    ]
    columns = [
        Column("method", "name"),
        Column("seeds"),
        Column(f"{summary.metric.label}, held out", show=summary.text),
        Column("worst loss", show=summary.text),
        Column("chosen", "text"),
        Column("settings", "text"),
    ]
    return Table(columns, rows)


_OWN = "the plan's own"


_TABLES: dict[str, Callable[[Summary], Table]] = {
    "methods": partial(methods_table, intervals=True),
    "overall_costs": overall_costs_table,
    "costs": _column_table("privacy_cost"),
    "model_costs": _column_table("model_cost"),
    "total_costs": _column_table("total_cost"),
    "metric": _column_table(""),
    "differences": differences_table,
    "references": references_table,
}


def table_names(comparison: Comparison) -> tuple[str, ...]:
    """Names of the tables that a comparison has."""
    has = dict.fromkeys(
        ("overall_costs", "model_costs", "total_costs", "references"), not comparison.references.empty
    )
    has["differences"] = bool(comparison.setup.against)
    return tuple(name for name in _TABLES if has.get(name, True))


def table(comparison: Comparison, name: str) -> Table:
    """Return a table of a comparison by name.

    Raises:
        SettingError: an unknown table.
    """
    if name not in (names := table_names(comparison)):
        raise unknown_name("table", name, names)
    return _TABLES[name](summarise(comparison))


def markdown(comparison: Comparison) -> str:
    """Return all tables in Markdown."""
    setup = comparison.setup
    seeds = count_text(len(setup.seeds), "seed")
    about = f"{setup.data}; {LEVEL:.0%} intervals over {seeds}, delta {setup.plan.delta:g}."
    titles = {name: _TABLES[name](summarise(comparison)) for name in table_names(comparison)}
    return "\n".join(f"{each.caption}: {about}\n\n{each.to_markdown()}" for each in titles.values())
