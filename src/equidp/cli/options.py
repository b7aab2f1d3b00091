"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from equidp._validate import names
from equidp.cli.app import say
from equidp.cli.parse import parse_bounds
from equidp.comparison.compare import RELEASE_EPSILON
from equidp.data import SOURCES, DataSource, open_source
from equidp.data.table import TEST_SHARE
from equidp.engines import ENGINES
from equidp.errors import SettingError
from equidp.models import MODELS
from equidp.training.plan import Plan

Target = Annotated[str | None, typer.Option(help="Column to predict, where the data is a file.")]
Group = Annotated[
    str,
    typer.Option(
        help="Column of the groups, where the data is a file; several, with commas, are crossed. May be the target."
    ),
]
Drop = Annotated[str, typer.Option(help="Columns of the file to leave out, with commas.")]
Missing = Annotated[str, typer.Option(help="Missing values in a file: refuse, or category.")]
Bounds = Annotated[
    str,
    typer.Option(
        help="Public ranges of numbers in a file, as age=0:100,hours=0:99, instead of its statistics."
    ),
]
_DATA_HELP = f"One of {', '.join(SOURCES)}; or a path to a CSV or Parquet file."
DATA = typer.Argument(help=_DATA_HELP, autocompletion=lambda: list(SOURCES))
DataOrDigits = Annotated[
    str | None,
    typer.Argument(help=f"{_DATA_HELP} Default: digits.", autocompletion=lambda: list(SOURCES)),
]
NamedData = Annotated[str | None, typer.Option("--data", help="The same as DATA.")]
TestShare = Annotated[float, typer.Option(help="Share of a file's rows to test on, in (0, 1).")]
Model = Annotated[str | None, typer.Option(help=f"One of {', '.join(MODELS)}; default: the data's.")]
Epochs = Annotated[float | None, typer.Option(help="Passes over the training data.")]
BatchSize = Annotated[int | None, typer.Option(help="Expected size of a Poisson sample.")]
LearningRate = Annotated[float | None, typer.Option(help="Of SGD.")]
ClippingBound = Annotated[float | None, typer.Option(help="C, or the base bound.")]
Delta = Annotated[float | None, typer.Option(help="Delta of the whole run.")]
Smoothing = Annotated[float | None, typer.Option(help="DPSGD-F's average over released counts, 0 to 1.")]
InitialBound = Annotated[
    float | None, typer.Option(help="Global-Adapt's Z before it learns: at least the clipping bound.")
]
Engine = Annotated[str, typer.Option(help=f"One of {', '.join(ENGINES)}.")]
Jobs = Annotated[int | None, typer.Option(help="Processes; default: one a core.", min=1)]
Budget = Annotated[Path | None, typer.Option(help="Ledger of a budget that all runs on this data share.")]
BudgetEpsilon = Annotated[float | None, typer.Option(help="Of a new budget.")]
BudgetDelta = Annotated[float | None, typer.Option(help="Of a new budget.")]
JsonFile = Annotated[Path | None, typer.Option("--json", help="Write the figures as JSON here.")]
Individual = Annotated[
    bool,
    typer.Option("--individual", help="Account for each example; release each group's mean epsilon."),
]
ReleaseEpsilon = Annotated[
    float | None,
    typer.Option(help=f"What that release may cost a run, with --individual; default {RELEASE_EPSILON}."),
]
RunFolder = Annotated[Path, typer.Argument(help="Folder that equidp train made.")]
Rows = Annotated[
    Path | None,
    typer.Argument(help="CSV or Parquet file with the run's columns; default: the run's test examples."),
]


_OF_METHODS = {"smoothing": ("dpsgd-f", "dpsgd-f-code"), "initial_bound": ("global-adapt",)}


def release_cost(individual: bool, release_epsilon: float | None) -> float | None:
    """Epsilon of a release of individual privacy; None where none is asked for."""
    if release_epsilon is not None and not individual:
        raise SettingError(
            f"--release-epsilon {release_epsilon} releases individual privacy; give --individual too."
        )
    return (RELEASE_EPSILON if release_epsilon is None else release_epsilon) if individual else None


def opened(
    data: str,
    *,
    target: str | None,
    group: str,
    drop: str,
    missing: str,
    bounds: str,
    test_share: float = TEST_SHARE,
) -> DataSource:
    """The data, as the options of a command describe it."""
    return open_source(
        data,
        target=target,
        group=tuple(names(group)),
        drop=tuple(names(drop)),
        missing=missing,
        bounds=parse_bounds(bounds),
        test_share=test_share,
    )


def chosen_data(data: str | None, named: str | None) -> str:
    """The data, from whichever place it was named in."""
    if data is not None and named is not None:
        raise SettingError(f"{data!r} and --data {named!r}; name the data once.")
    return data or named or "digits"


def plan_changes(context: typer.Context, methods: Sequence[str]) -> dict[str, Any]:
    """Those options of a command that are settings of a `Plan`, where they were given; says which these methods do not have."""
    settings = {each.name for each in fields(Plan)}
    changes = {
        name: value for name, value in context.params.items() if name in settings and value is not None
    }
    for name, owners in _OF_METHODS.items():
        if name in changes and not set(owners) & set(methods):
            option = f"--{name.replace('_', '-')}"
            say(f"{option} is of {' and '.join(owners)}; {', '.join(methods)} takes no notice of it.")
    return changes
