"""`equidp account`: what a plan would spend."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from cyclopts import Parameter

from equidp.cli.app import command
from equidp.cli.noise import Accountant, Delta, Method, Risk

app = command(
    "account",
    "equidp account --examples 60000 --batch-size 256 --epochs 60 \\\n      --noise-multiplier 0.8",
    "equidp account --examples 36177 --batch-size 256 --epochs 20 --epsilon 3 \\\n      --method dpsgd-f",
    "equidp account --examples 36177 --batch-size 256 --epochs 20 \\\n      --epsilon-by-group rare=1,*=3",
    "equidp account --examples 60000 --batch-size 256 --epochs 60 \\\n      --risk 0.05,0.01 "
    "--rows-per-person 1,2,4",
)


@Parameter(name="*")
@dataclass(frozen=True)
class PlannedOptions:
    """A plan: fields of `equidp.Plan`."""

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
    epsilon: float | None = None
    """Target epsilon to work out the noise from."""
    risk: Risk = ()
    delta: Delta = None
    method: Method = "dpsgd"
    accountant: Accountant = "pld"
    rates: str | None = None
    """Public multiples of the sample rate by group: rare=2,*=1; *: all other groups."""
    bound_shares: str | None = None
    """Public shares of the clipping bound by group, from 1/16 to 1: rare=0.5,*=1."""
    epsilon_by_group: str | None = None
    """Epsilon of each group, to work out the noise from, and rates or bounds: rare=1,*=3."""
    protect_by: Annotated[str, Parameter(choices=("sampling", "scaling"))] = "sampling"
    """Rates follow from --epsilon-by-group (sampling), or shares of bounds from it or --rates (scaling)."""


@app.default
def account_command(
    *,
    planned: PlannedOptions,
    rows_per_person: Annotated[
        tuple[int, ...],
        Parameter(help="Account for people who own so many of the examples too, with commas."),
    ] = (),
) -> None:
    """Work out epsilon and risk from noise, or noise from epsilon or risk, for a plan. No data is touched."""
    # Loaded here, so that help and errors in options do not wait for it.
    from equidp.accounting.risk import RiskTarget
    from equidp.accounting.rows import checked_rows
    from equidp.report.guarantee import planned_sentences
    from equidp.training.plan import account

    rows = [checked_rows(each) for each in rows_per_person]
    options = {**vars(planned), "risk": RiskTarget.of(*planned.risk)}
    for line in planned_sentences(account(**options), rows):
        print(line)
