"""Text and table of an audit."""

from __future__ import annotations

import math

from rich.console import Console
from rich.markup import escape

from equidp.audit import Audit
from equidp.data.dataset import ALL
from equidp.display import Column, Table

_WEAK = 0.1
"""Share of the claim below which an audit says that it is weak."""


def print_audit(audit: Audit, console: Console | None = None) -> None:
    """Print the claim beside the lower bounds, by group and overall, and a sentence on the result.

    Args:
        audit: from `equidp.audit_step`.
        console: where to print; None: standard output.

    Example:
        >>> from equidp.audit import Audit, GroupBound
        >>> audit = Audit("one step", "dpsgd", 1e-5, 0.95, (GroupBound("all", 2000, 4.0, 3.1, 2.2),), 0.9)
        >>> print_audit(audit)  # doctest: +ELLIPSIS
        <BLANKLINE>
        An audit of one step by dpsgd found no more than it claims: at 95% confidence its
        epsilon is at least 3.10, and the claim is 4.00, at delta 1e-05.
        ...
    """
    console = console or Console()
    console.print()
    console.print(escape(audit_sentence(audit)), highlight=False)
    columns = (
        Column("group of the canaries", "name"),
        Column("tests", show="{:,}".format),
        *(Column(heading, show="{:.2f}".format) for heading in ("claimed", "at least")),
        Column("of the claim", show="{:.0%}".format),
        Column("at least, any mechanism", show="{:.2f}".format),
    )
    rows = [
        (
            each.group,
            each.tests,
            each.claimed,
            each.epsilon,
            each.share if math.isfinite(each.share) else "",
            each.assumption_free,
        )
        for each in audit.bounds
    ]
    Table(columns, rows, total=ALL).print(console)
    console.print(
        "A lower bound assumes Gaussian noise on Poisson samples, as the claim does, of whatever scale; the "
        "last column assumes nothing. Groups' bounds hold all together. The results follow from raw data: "
        "keep them to yourself.",
        highlight=False,
        style="dim",
    )


def audit_sentence(audit: Audit) -> str:
    """Result of an audit, in a few sentences."""
    above = [each for each in audit.bounds if each.exceeds]
    found = "more" if above else "no more"
    least = f"at least {audit.bound:.2f}" if math.isfinite(audit.bound) else "beyond any that noise explains"
    sentence = (
        f"An audit of {audit.procedure} by {audit.method} found {found} than it claims: at {audit.level:.0%} "
        f"confidence its epsilon is {least}, and the claim is {audit.claimed:.2f}, at delta {audit.delta:g}."
    )
    if audit.bound < _WEAK * audit.claimed:
        sentence += (
            " That is below a tenth of the claim: the audit is too weak to say much. Take more runs, or "
            "sample rate 1."
        )
    if above and audit.bound <= audit.claimed:
        listed = ", ".join(f"{each.group} {each.epsilon:.2f} of {each.claimed:.2f}" for each in above)
        sentence += f" Groups with more than their own claim: {listed}."
    if above:
        chance = f"{1 - audit.level:.0%}"
        sentence += f" By chance, at most {chance} of audits say so: repeat it with another seed."
    return sentence
