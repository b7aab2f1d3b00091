"""`equidp account`: what a plan would spend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from equidp.accounting.planned import account
from equidp.cli import options
from equidp.cli.app import command

app = command(
    "account",
    "equidp account --examples 60000 --batch-size 256 --epochs 60 \\\n      --noise-multiplier 0.8",
    "equidp account --examples 36177 --batch-size 256 --epochs 20 --epsilon 3 \\\n      --method dpsgd-f",
)


@Parameter(name="*")
@dataclass(frozen=True)
class PlannedOptions:
    """A plan: arguments of `equidp.accounting.planned.account`."""

    num_examples: Annotated[int, Parameter(name="--examples")]
    """Number of training examples."""
    batch_size: int
    """Expected size of a Poisson sample."""
    epochs: float | None = None
    """Passes over the data; or give --steps."""
    steps: int | None = None
    """Number of private steps."""
    noise_multiplier: float | None = None
    """Noise to work out epsilon from."""
    target_epsilon: Annotated[float | None, Parameter(name="--epsilon")] = None
    """Target epsilon to work out the noise from."""
    delta: options.Delta = None
    method: options.Method = "dpsgd"
    accountant: options.Accountant = "pld"


@app.default
def account_command(*, planned: PlannedOptions) -> None:
    """Work out epsilon from noise, or noise from epsilon, for a plan. No data is touched."""
    for line in account(**vars(planned)).in_words():
        print(line)
