"""Figures of results in matplotlib, and as files for a paper."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from equidp._extras import require_extra
from equidp._files import check_folder, check_writable, write_whole
from equidp._validate import check_number, unknown_name
from equidp.comparison.result import Comparison
from equidp.errors import SettingError
from equidp.evaluation.evaluation import Evaluation
from equidp.report.plots import ALL_PLOTS
from equidp.report.plots.evaluated import accuracies, calibration, reliability
from equidp.report.plots.style import COLUMN, PAGE, Layout, drawn_as, drawn_for_page, saved
from equidp.report.render import Drawn
from equidp.report.summary import summarise

with require_extra("report"):
    from matplotlib.figure import Figure

FORMATS = ("pdf", "svg")


def plot(comparison: Comparison, name: str = "costs", *, width: float = PAGE.width) -> Figure:
    """Draw a plot of the report as a matplotlib figure, to change and save as you like.

    Args:
        comparison: from `equidp.compare`.
        name: "costs", "accuracy", "choice" (accuracy against the largest gap), "trade_off" (with several
            epsilons), "loss", "norms", "clipped", "bounds", or "released"
            (individual privacy). Names that start with "sensitive" show raw training data.
        width: of the figure, in inches; 3.4 suits a column of a paper.

    Raises:
        SettingError: an unknown name, a width that is not a positive number, or nothing to show.

    Example:
        >>> import equidp
        >>> place = getfixture("tmp_path")
        >>> plan = equidp.Plan(batch_size=128, epochs=1)
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> figure = equidp.plot(comparison, "costs", width=3.4)
        >>> figure.axes[0].get_xlabel()
        'privacy cost, points of accuracy'
        >>> figure.savefig(place / "costs.pdf")
    """
    if name not in ALL_PLOTS:
        raise unknown_name("plot", name, ALL_PLOTS)
    check_number("(0, inf)", ", in inches", width=width)
    layout = Layout(width, COLUMN.font if width < 5 else PAGE.font)
    figure = ALL_PLOTS[name].figure(summarise(comparison), layout)
    if figure is None:
        raise SettingError(f"plot {name!r}: this comparison has nothing to show in it.")
    return figure


def save_figures(
    comparison: Comparison, folder: str | os.PathLike[str], *, include_sensitive: bool = False
) -> list[Path]:
    """Write each figure that is not empty as PDF and SVG, at the width of a paper's column.

    Args:
        comparison: from `equidp.compare`.
        folder: made if missing.
        include_sensitive: write figures of raw training data too, which must not be shared; their names
            start with "sensitive".

    Returns:
        Paths of the files.

    Raises:
        SettingError: the folder cannot be written.

    Example:
        >>> import equidp
        >>> place = getfixture("tmp_path")
        >>> plan = equidp.Plan(batch_size=128, epochs=1)
        >>> comparison = equidp.compare(methods=["dpsgd"], seeds=1, plan=plan, directory=place, jobs=1)
        >>> [path.name for path in equidp.save_figures(comparison, place / "figures")][:2]
        ['costs.pdf', 'costs.svg']
    """
    figures_folder(folder)
    return _write_figures(
        {
            name: partial(each.figure, summarise(comparison))
            for name, each in ALL_PLOTS.items()
            if include_sensitive or not name.startswith("sensitive")
        },
        folder,
    )


def save_evaluation_figures(found: Evaluation, folder: str | os.PathLike[str]) -> list[Path]:
    """Write accuracy, and predicted and observed risks, of one run as PDF and SVG; see `save_figures`."""
    figures_folder(folder)
    return _write_figures(
        {draw.__name__: partial(draw, found) for draw in (accuracies, calibration, reliability)}, folder
    )


def risk_figure(found: Evaluation) -> Drawn | None:
    """Draw predicted and observed risks for a card; None without two classes."""
    return drawn_for_page(
        "Predicted risk beside what happened",
        "By group, in brackets: test examples. Where the two differ, do not take risks at their word.",
        partial(calibration, found),
    )


def _write_figures(
    draws: Mapping[str, Callable[[Layout], Figure | None]], folder: str | os.PathLike[str]
) -> list[Path]:
    files = []
    for name, draw in draws.items():
        if figure := drawn_as(COLUMN, draw):
            for kind in FORMATS:
                files.append(Path(folder) / f"{name}.{kind}")
                write_whole(files[-1], saved(figure, kind))
    return files


def figures_folder(folder: str | os.PathLike[str]) -> None:
    """Make the folder; SettingError: figures cannot be written to it."""
    check_folder(folder)
    try:
        Path(os.path.realpath(folder)).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"figures cannot be written to {os.fspath(folder)!r}: {error.strerror}.",
            field="folder",
        ) from error
    check_writable(Path(folder) / "costs.pdf")
