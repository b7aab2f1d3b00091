"""Figures of a comparison in matplotlib."""

from __future__ import annotations

from equidp._extras import require_extra
from equidp._validate import check_number, unknown_name
from equidp.comparison.result import Comparison
from equidp.errors import SettingError
from equidp.report.plots import PLOTS
from equidp.report.plots.style import COLUMN, PAGE, Layout
from equidp.report.summary import summarise

with require_extra("report"):
    from matplotlib.figure import Figure


def plot(comparison: Comparison, name: str = "costs", *, width: float = PAGE.width) -> Figure:
    """Draw a plot of the report as a matplotlib figure, to change and save as you like.

    Args:
        comparison: comparison from `equidp.compare`.
        name: "costs", "accuracy", or "trade_off" (with several epsilons).
        width: width of the figure, in inches; 3.4 suits a column of a paper.

    Raises:
        SettingError: an unknown name, a width that is not a positive number, or nothing to show.
    """
    if name not in PLOTS:
        raise unknown_name("plot", name, PLOTS)
    check_number("(0, inf)", ", in inches", width=width)
    layout = Layout(width, COLUMN.font if width < 5 else PAGE.font)
    figure = PLOTS[name].figure(summarise(comparison), layout)
    if figure is None:
        raise SettingError(f"plot {name!r}: this comparison has nothing to show in it.")
    return figure
