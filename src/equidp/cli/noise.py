"""Options that decide the noise of a run. They need neither data nor models, which take seconds to load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from equidp.policies.table import METHODS

if TYPE_CHECKING:
    MethodName = str
else:  # completes to names, and takes import paths
    MethodName = Literal[tuple(METHODS)] | str

ACCOUNTANTS = ("pld", "rdp", "rdp-classic")
_DELTA_HELP = "Delta of all together; default: a tenth of 1 / n, rounded down to a power of ten."
_RISK_HELP = (
    "In place of epsilon, a bound on membership attacks: an advantage, 0.1, or a true-positive rate and its "
    "false-positive rate, 0.05,0.01."
)

Method = Annotated[
    MethodName,
    Parameter(help="How gradients are bounded: a method (see equidp methods), or my_module:MyPolicy."),
]
Accountant = Annotated[str, Parameter(help="How epsilon is worked out.", choices=ACCOUNTANTS)]
Delta = Annotated[float | None, Parameter(help=_DELTA_HELP)]
Risk = Annotated[tuple[float, ...], Parameter(help=_RISK_HELP)]
