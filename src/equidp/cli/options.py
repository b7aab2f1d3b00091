"""Options that several commands have, for data that is a CSV or Parquet file."""

from __future__ import annotations

from typing import Annotated

import typer

Target = Annotated[str | None, typer.Option(help="Column to predict, where the data is a file.")]
Group = Annotated[
    str,
    typer.Option(help="Column of the groups, where the data is a file; several, with commas, are crossed."),
]
Drop = Annotated[str, typer.Option(help="Columns of the file to leave out, with commas.")]
Missing = Annotated[str, typer.Option(help="Missing values in a file: refuse, or category.")]
Bounds = Annotated[
    str,
    typer.Option(
        help="Public ranges of numbers in a file, as age=0:100,hours=0:99, instead of its statistics."
    ),
]
