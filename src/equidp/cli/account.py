"""`equidp account` and `equidp methods`: what a plan would spend, and what can be planned, without data."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from equidp.accounting import ACCOUNTANTS
from equidp.accounting.planned import account
from equidp.cli.app import app
from equidp.policies.methods import METHODS


@app.command("account")
def account_command(
    examples: Annotated[int, typer.Option(help="n, the number of training examples.")],
    batch_size: Annotated[int, typer.Option(help="Expected size of a Poisson sample.")],
    epochs: Annotated[float | None, typer.Option(help="Passes over the data; or give --steps.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of private steps.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise: epsilon is worked out.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Target: the noise is worked out.")] = None,
    delta: Annotated[
        float | None, typer.Option(help="Default: a tenth of 1 / n, rounded down to a power of ten.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"One of {', '.join(METHODS)}.")] = "dpsgd",
    accountant: Annotated[str, typer.Option(help=f"One of {', '.join(ACCOUNTANTS)}.")] = "pld",
) -> None:
    """Work out epsilon from noise, or noise from epsilon, for a plan. No data is touched.

    Examples:

        equidp account --examples 60000 --batch-size 256 --epochs 60 --noise-multiplier 0.8

        equidp account --examples 36177 --batch-size 256 --epochs 20 --epsilon 3 --method dpsgd-f
    """
    plan = account(
        examples,
        batch_size,
        epochs=epochs,
        steps=steps,
        noise_multiplier=noise_multiplier,
        target_epsilon=epsilon,
        delta=delta,
        method=method,
        accountant=accountant,
    )
    for line in plan.in_words():
        typer.echo(line)


@app.command("methods")
def methods_command(
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """List the methods: what each does, in a line."""
    if as_json:
        typer.echo(json.dumps({name: method.summary for name, method in METHODS.items()}, indent=2))
        return
    rows = Table("method", "what it does", box=None)
    for name, method in METHODS.items():
        rows.add_row(name, method.summary)
    Console().print(rows)
