"""Plot of a comparison: its title, its caption, and its drawing for a page and a phone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from matplotlib.figure import Figure

from equidp.report.plots.style import PAGE, PHONE, Layout, drawn_as, svg
from equidp.report.summary import Summary


class Plot(NamedTuple):
    """Plot of a comparison.

    Attributes:
        title: its heading. In it, caption and axis, {unit} stands for the unit of costs, and {metric} for
            the metric's name.
        caption: the content of the plot, in a sentence or two.
        axis: label of the axis with the figures.
        draw: the summary, the label of the axis and the layout -> a figure; None if there is nothing to show.
    """

    title: str
    caption: str
    axis: str
    draw: Callable[[Summary, str, Layout], Figure | None]

    def figure(self, summary: Summary, layout: Layout = PAGE) -> Figure | None:
        """Draw the figure; None if there is nothing to show."""
        return drawn_as(layout, partial(self.draw, summary, filled_in(self.axis, summary)))


def filled_in(text: str, summary: Summary) -> str:
    """Fill in the metric of the comparison in a text; its name begins a sentence or an axis."""
    return text.format(unit=summary.unit, metric=summary.details[0].title)


class Drawn(NamedTuple):
    """Plot as two SVG elements: for a wide page, and for a narrow page."""

    title: str
    caption: str
    wide: str
    narrow: str


def draw_plots(plots: Iterable[Plot], summary: Summary) -> list[Drawn]:
    """Draw the plots that have something to show."""
    pictures = (
        drawn_twice(
            filled_in(plot.title, summary), filled_in(plot.caption, summary), partial(plot.figure, summary)
        )
        for plot in plots
    )
    return [picture for picture in pictures if picture is not None]


def drawn_twice(title: str, caption: str, draw: Callable[[Layout], Figure | None]) -> Drawn | None:
    """Draw a figure of any results for pages; None if there is nothing to show."""
    page, phone = (drawn_as(layout, draw) for layout in (PAGE, PHONE))
    if page is None or phone is None:
        return None
    return Drawn(title, caption, svg(page, "page"), svg(phone, "phone"))
