"""`equidp audit`: what a finished run does to each group, what privacy cost them, and what is guaranteed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from equidp._files import check_writable, write_whole
from equidp.cli.app import app
from equidp.cli.options import JsonFile, Rows, RunFolder
from equidp.data.dataset import GroupedDataset
from equidp.errors import SettingError
from equidp.evaluation.evaluation import evaluate
from equidp.report.card import guarantee_in_words
from equidp.report.format import points
from equidp.report.terminal import print_groups, print_recalls
from equidp.runs.saved import KeptRun, open_run


@app.command("audit")
def audit_command(
    run: RunFolder,
    test: Rows = None,
    reference: Annotated[
        Path | None, typer.Option(help="Folder of a run by --method sgd on the same data: shows costs.")
    ] = None,
    level: Annotated[float, typer.Option(help="Of the intervals.")] = 0.95,
    json_file: JsonFile = None,
) -> None:
    """Show a run's guarantee, its metrics by group, and what privacy cost each group.

    Intervals speak of the test examples as a sample, not of what another training run would give.

    Examples:

        equidp audit run

        equidp audit run others.csv --reference run-sgd --json audit.json
    """
    if json_file is not None:
        check_writable(json_file, run, test, reference)
    kept = open_run(run)
    data = kept.test() if test is None else kept.grouped(test)
    other = None if reference is None else _reference(kept, reference).run.model
    found = evaluate(kept.run.model, data, level=level, reference=other)
    content: dict[str, Any] = {
        "epsilon": kept.run.epsilon(),
        "delta": kept.run.delta,
        **found.plain(),
        "released": kept.released,
    }
    if json_file is not None:
        write_whole(json_file, (json.dumps(content, indent=2) + "\n").encode())
    for sentence in guarantee_in_words(kept.run):
        typer.echo(sentence)
    print_groups(found.groups)
    print_recalls(found.recalls)
    if kept.released:
        listed = ", ".join(
            f"{row['group']} {row['mean']:.3g} ± {row['standard_error']:.2g}" for row in kept.released
        )
        typer.echo(
            f"Estimated mean epsilon of each group's training examples, as released with noise: {listed}."
        )
    for sentence in found.blind_spots:
        typer.echo(sentence)
    for name, value in found.gaps.items():
        typer.echo(f"{name.replace('_', ' ').capitalize()}: {100 * value:.1f} points.")
    if found.costs is not None:
        print_groups(found.costs)
        _say_gap(found.costs, data)


def _say_gap(costs: Any, data: GroupedDataset) -> None:
    by_group = costs[costs["group"].isin(data.group_names) & (costs["count"] > 0)].set_index("group")[
        "privacy_cost"
    ]
    gap = points(by_group.max() - by_group.min())
    most = "all groups alike" if gap == points(0.0) else f"group {by_group.idxmax()} most"
    typer.echo(
        f"Privacy costs {most}; the largest gap between groups is {gap} points of accuracy. "
        "One run of each method shows no tendency: equidp compare does."
    )


def _reference(kept: KeptRun, folder: Path) -> KeptRun:
    other = open_run(folder)
    if other.config.method != "sgd":
        raise SettingError(
            f"{str(folder)!r} was trained by {other.config.method}; a reference is a run by sgd, without privacy."
        )
    if other.facts["sensitive_data_sha256"] != kept.facts["sensitive_data_sha256"]:
        raise SettingError(
            f"{str(folder)!r} was trained on other data, or on another split of it, than {str(kept.folder)!r}; train the "
            "reference with the same data and --seed."
        )
    return other
