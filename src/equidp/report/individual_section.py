"""Report section on the privacy of each group's examples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from equidp.report.format import number, upper
from equidp.report.plots import INDIVIDUAL_PLOTS
from equidp.report.plots.plot import Drawn, draw_plots
from equidp.report.render import filled
from equidp.report.summary import Summary


class Table(NamedTuple):
    """Groups down, private kinds across; rows: (name, training examples, [(figure, small print)])."""

    title: str
    text: str
    rows: list[tuple[str, int, list[tuple[float, str]]]]
    plot: Drawn | None = None
    sensitive: bool = False


def individual_section(summary: Summary, *, include_sensitive: bool) -> str:
    """Return the section in HTML, with true epsilons if requested; "" without individual privacy."""
    parts = summary.individual
    if not parts:
        return ""
    tables = [
        _plot_table(summary, "released", "released_mean", lambda row: f"± {number(row.standard_error)}")
    ]
    if any((part["group_epsilon"] < part["epsilon"] * (1 - 1e-9)).any() for part in parts.values()):
        tables.append(
            Table(
                "The most that a member of a group can have",
                "A method with a bound for each group holds its members to an epsilon below the run's. This "
                "follows from released values and costs nothing. Small print: the bound as a share of the "
                "largest, times the run's epsilon, as papers read it; no guarantee.",
                _rows(summary, "group_epsilon", lambda row: number(row.linear_group_epsilon)),
            )
        )
    if include_sensitive:

        def spread(row: Any) -> str:
            return f"{number(row.sensitive_median)}, {number(row.sensitive_q95)}"

        tables.append(
            _plot_table(summary, "sensitive_epsilon", "sensitive_mean", spread)._replace(sensitive=True)
        )
    return filled("individual.html", sentences=_sentences(summary), kinds=list(parts), tables=tables)


def _sentences(summary: Summary) -> list[str]:
    firsts = {kind: part.iloc[0] for kind, part in summary.individual.items()}
    spent = ", ".join(
        f"{kind.label} {upper(first['epsilon'])} (with the release {upper(first['epsilon_with_release'])})"
        for kind, first in firsts.items()
    )
    cost = number(next(iter(firsts.values()))["release_epsilon"])
    return [
        "A run's epsilon holds for every example. Most examples contributed less than the method allows: "
        "their gradient was short, or the bound of their group low. Their own epsilon, given how this "
        "training went, is lower.",
        f"The released figures cost epsilon {cost} for each run, at the run's delta. Epsilon of each run: "
        f"{spent}.",
        "Norms of all examples were taken once an epoch and assumed constant in between, so these figures "
        "are estimates. In a comparison the noise comes from seeds: publish figures only of the model that "
        "you release.",
    ]


def _plot_table(summary: Summary, name: str, column: str, small: Callable[[Any], str]) -> Table:
    (plot,) = draw_plots([INDIVIDUAL_PLOTS[name]], summary)
    return Table(plot.title, plot.caption, _rows(summary, column, small), plot)


def _rows(
    summary: Summary, column: str, small: Callable[[Any], str]
) -> list[tuple[str, int, list[tuple[float, str]]]]:
    rows = []
    for name in summary.setup.data.group_names:
        places = [part.loc[name] for part in summary.individual.values()]
        rows.append((name, summary.sizes()[name], [(place[column], small(place)) for place in places]))
    return rows
