"""Comparison of methods: its page, one self-contained HTML file, its tables, and what a terminal shows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape

from equidp._files import check_writable, write_whole
from equidp.comparison.result import (
    Comparison,
    Setup,
    baselines_table,
    best_label,
    differences_table,
    overall_costs_table,
)
from equidp.comparison.sweep import Kind
from equidp.data.dataset import ALL
from equidp.display import Cell, Column, Table
from equidp.errors import count_text
from equidp.report import words
from equidp.report.diagnosis import diagnosis_blocks
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
from equidp.report.individual import individual_blocks, individual_table
from equidp.report.plan import plan_blocks
from equidp.report.plots import PLOTS
from equidp.report.plots.style import draw_plots
from equidp.report.summary import Detail, Summary, summarise
from equidp.report.tuning import chosen_table, tuning_blocks


def write_report(
    comparison: Comparison, path: str | os.PathLike[str], *, include_sensitive: bool = False
) -> None:
    """Write the report of a comparison: one self-contained HTML file, written whole or not at all.

    Args:
        comparison: from `equidp.compare`.
        path: of the file.
        include_sensitive: adds the true epsilons of the groups' examples beside the released ones. They
            follow from raw training data, so the page must not be shared.

    Raises:
        SettingError: the path cannot be written.

    Example:
        >>> import equidp
        >>> place = getfixture("tmp_path")
        >>> plan = equidp.Plan(batch_size=128, epochs=1)
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> equidp.write_report(comparison, place / "report.html")
        >>> "What privacy cost each group" in (place / "report.html").read_text()
        True
    """
    check_writable(path)
    write_whole(path, render(comparison, include_sensitive=include_sensitive))


def render(comparison: Comparison, *, include_sensitive: bool = False) -> str:
    """Return the page as text."""
    summary = summarise(comparison)
    blocks = [
        *_result_blocks(summary),
        *individual_blocks(summary, include_sensitive=include_sensitive),
        *diagnosis_blocks(summary),
        *_guarantee_blocks(summary),
    ]
    return Document(f"What privacy cost each group: {summary.setup.data.name}", blocks).to_html()


def _result_blocks(summary: Summary) -> Iterator[Block]:
    """Findings and recommendations, all methods side by side, plots, and tables by group."""
    setup = summary.setup
    data, training = setup.data, setup.training.plan
    yield Paragraph(
        f"{data.name}, model {training.plan.model_name}; {data.num_train:,} training examples, "
        f"{count_text(len(data.group_names), 'group')}; {count_text(len(setup.seeds), 'seed')}; "
        f"delta {training.delta:g}",
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
    yield overview_table(summary)
    yield Paragraph(
        f"{capitalise(summary.metric.heading)}: over all test examples. Cost: what is lost against the "
        f"non-private run of the same seed, in {unit(summary.metric)}. Gap: the largest difference in cost "
        f"between two groups. Beside numbers: {setup.level:.0%} intervals over seeds.",
        small=True,
    )
    yield from paragraphs([*words.auto_sentences(setup), *words.test_sentences(summary)], small=True)
    yield from paragraphs(words.protection_sentences(summary))
    if summary.has_model_cost:
        yield from _price_blocks(summary)
    yield from _difference_blocks(summary)
    yield from tuning_blocks(summary)
    yield Heading("Plots")
    yield from draw_plots(PLOTS.values(), summary)
    yield Heading("All metrics by group")
    for detail in summary.details + summary.further_details:
        yield Heading(detail.title, 3)
        yield detail_table(summary, detail, summary.kinds_of(detail.column))
    if not summary.comparison.baselines.empty:
        table = baselines_table(summary.comparison)
        yield Heading(table.caption, 3)
        yield table
        yield Paragraph(
            f"All were tried on seed {setup.seeds[0]}. The best of each kind of model there, by "
            f"{summary.metric.label} over all test examples, was trained on every seed, and is the baseline "
            "of the private models of that kind. It is chosen by the test set of that seed, so costs are "
            "never too low for that. Settings whose loss is above that of a constant prediction come last.",
            small=True,
        )


def _price_blocks(summary: Summary) -> Iterator[Block]:
    """Model cost and privacy cost of each kind of private run."""
    yield Heading("What the model costs, and what privacy costs")
    yield overall_costs_table(summary.comparison)
    yield Paragraph(
        f"Over all test examples, in {unit(summary.metric)}. Model cost: what the same model as the private "
        f"one loses, without privacy, against {best_label(summary.comparison.baselines)}, the best. Privacy "
        "cost: what the private model loses on top. Total cost: both together; tables by group are below.",
        small=True,
    )


def _difference_blocks(summary: Summary) -> Iterator[Block]:
    """Differences of each method from the named one; nothing where none was named."""
    if not summary.setup.against:
        return
    table = differences_table(summary.comparison)
    yield Heading(table.caption)
    yield table
    yield from paragraphs(words.difference_sentences(summary), small=True)


def _guarantee_blocks(summary: Summary) -> Iterator[Block]:
    """The guarantee of the private runs, its limits, and how the comparison was made."""
    yield Heading("What is guaranteed")
    yield from paragraphs(words.guarantee_sentences(summary))
    yield Heading("What the guarantee does not cover", 3)
    yield Listing(words.exclusion_sentences(summary.setup))
    yield from plan_blocks(summary.setup.training.rows)
    yield Heading("Command, steps and versions")
    if summary.setup.command:
        yield Code(summary.setup.command, "console")
    yield Facts(_facts_table(summary.setup))


def _facts_table(setup: Setup) -> Table:
    """Table of steps, seeds and versions; the plan has a table of its own."""
    plan = setup.training.plan
    steps = {} if setup.steps_differ else {"steps": plan.steps, "sample rate": f"{plan.sample_rate:.6g}"}
    return facts_table(
        {"data": setup.data.name, **steps, "seeds": ", ".join(map(str, setup.seeds)), **setup.versions}
    )


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Print findings, one row per method, and which method to take; the page has the metrics by group.

    Args:
        comparison: from `equidp.compare`.
        console: where to print; None: standard output.

    Example:
        >>> import equidp
        >>> place = getfixture("tmp_path")
        >>> plan = equidp.Plan(batch_size=128, epochs=1)
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> equidp.print_comparison(comparison)  # doctest: +ELLIPSIS
        <BLANKLINE>
        In this one run, privacy by dpsgd costs group ...
    """
    console, summary = console or Console(), summarise(comparison)
    setup = summary.setup
    console.print()
    for sentence in words.finding_sentences(summary):
        console.print(escape(sentence), highlight=False)
    console.print()
    overview_table(summary).print(console)
    console.print(
        f"{setup.level:.0%} intervals over {count_text(len(setup.seeds), 'seed')}; costs and gaps in "
        f"{unit(summary.metric)} against {setup.baseline}; delta {setup.training.plan.delta:g}.",
        highlight=False,
        style="dim",
    )
    for sentence in words.auto_sentences(setup):
        console.print(escape(sentence), highlight=False, style="dim")
    if setup.against:
        console.print()
        differences_table(comparison).print(console, split=True)
        for sentence in words.difference_sentences(summary):
            console.print(escape(sentence), highlight=False, style="dim")
    if comparison.tuning is not None:
        console.print()
        chosen_table(summary, comparison.tuning).print(console)
    if summary.individual:
        cost = number(comparison.individual["release_epsilon"].iloc[0])
        console.print(
            f"\nmean epsilon of a group's examples, released at epsilon {cost} a run", highlight=False
        )
        individual_table(summary).print(console, split=True)
    console.print("\nWhich method to take", style="bold")
    for sentence in words.recommendation_sentences(summary):
        console.print(escape(sentence), highlight=False)


def overview_table(summary: Summary) -> Table:
    """Table with a row per kind of run of a comparison, with its verdict on equal cost of privacy."""
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
    rows = [
        (
            row.kind.label if setup.swept or row.kind.method == setup.baseline else row.kind.method,
            row.epsilon,
            row.accuracy,
            row.cost,
            f"{row.worst_group}: {text(row.worst_cost)}" if row.worst_group else "",
            row.gap,
            row.verdict,
        )
        for row in summary.overview
    ]
    return Table(
        columns, rows, f"What privacy costs: {setup.data.name}, {setup.training.plan.plan.model_name}"
    )


def detail_table(summary: Summary, detail: Detail, kinds: Sequence[Kind]) -> Table:
    """Table of means over seeds with intervals, groups down and kinds of run across.

    That of the comparison's metric begins with the best model without privacy, if that is no kind of run.
    """
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
        *([Column(best_label(summary.best), show=detail.show)] if best else []),
        *(Column(kind.label, show=detail.show) for kind in kinds),
    ]
    return Table(columns, rows, detail.title, total=ALL)
