"""Report of a comparison: one self-contained HTML file."""

from __future__ import annotations

import os
from collections.abc import Mapping

from equidp._files import check_writable, write_whole
from equidp.comparison.result import Comparison, Setup
from equidp.report import words
from equidp.report.diagnosis_section import diagnosis_section
from equidp.report.individual_section import individual_section
from equidp.report.plots import PLOTS
from equidp.report.plots.plot import draw_plots
from equidp.report.render import filled
from equidp.report.summary import summarise
from equidp.report.tables import detail_table, overview_table


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
    return filled(
        "comparison.html",
        summary=summary,
        overview=overview_table(summary),
        details=[
            detail_table(summary, each, summary.kinds) for each in summary.details + summary.further_details
        ],
        setup=summary.setup,
        finding=words.finding(summary),
        recommended=[each.reason for each in comparison.recommendation()],
        tests=words.test_sentences(summary),
        plots=draw_plots(PLOTS.values(), summary),
        individual=individual_section(summary, include_sensitive=include_sensitive),
        diagnosis=diagnosis_section(summary),
        guarantee=words.guarantee(summary),
        not_covered=words.not_covered(summary.setup),
        settings=_settings(summary.setup),
    )


def _settings(setup: Setup) -> dict[str, str]:
    """Settings as names and texts, without settings that the page shows elsewhere."""
    training = setup.training
    facts = {
        "data": setup.data.name,
        **vars(training),
        **({"steps": "", "sample_rate": ""} if setup.steps_differ else {}),
        "swept": setup.swept or "",
        "method_settings": "",
        **{f"settings of {method}": settings for method, settings in training.method_settings.items()},
        "seeds": setup.seeds,
    }
    return {name.replace("_", " "): _text(value) for name, value in facts.items() if value != ""}


def _text(value: object) -> str:
    if isinstance(value, Mapping):
        parts = {name: _text(each) for name, each in value.items()}
        nested = any(isinstance(each, Mapping) for each in value.values())
        texts = [f"{name} ({text})" if nested else f"{name} {text}" for name, text in parts.items()]
        return ", ".join(texts) or "none"
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)
