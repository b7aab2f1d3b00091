"""An audit in words and as a table."""

from __future__ import annotations

import math

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from equidp.audit import Audit
from equidp.audit.result import USEFUL
from equidp.data.dataset import ALL
from equidp.report.console_tables import print_table


def print_audit(audit: Audit, console: Console | None = None) -> None:
    """Prints the claim beside the lower bounds, by group and overall, and what they say.

    Args:
        audit: from `equidp.audit_step` or `equidp.audit_training`.
        console: where to print; None: standard output.

    Example:
        >>> from equidp.audit import Audit, GroupBound
        >>> audit = Audit("one step", "dpsgd", 4.0, 1e-5, 0.95, (GroupBound("all", 2000, 3.1, 2.2),))
        >>> print_audit(audit)  # doctest: +ELLIPSIS
        <BLANKLINE>
        An audit of one step by dpsgd found no more than it claims: at 95% confidence its
        epsilon is at least 3.10, and the claim is 4.00, at delta 1e-05.
        ...
    """
    console = console or Console()
    console.print()
    console.print(escape(audit_sentence(audit)), highlight=False)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("group of the canaries", overflow="fold")
    for head in ("tests", "claimed", "at least", "of the claim", "at least, any mechanism"):
        table.add_column(head, justify="right")
    for each in audit.bounds:
        style = "bold" if each.group == ALL else None
        share = f"{each.epsilon / audit.claimed:.0%}" if math.isfinite(each.epsilon) else ""
        bounds = [f"{value:.2f}" for value in (audit.claimed, each.epsilon)]
        row = (f"{each.tests:,}", *bounds, share, f"{each.assumption_free:.2f}")
        table.add_row(escape(each.group), *row, style=style)
    print_table(table, console)
    console.print(
        "A lower bound assumes Gaussian noise on Poisson samples, as the claim does, of whatever scale; the "
        "last column assumes nothing. Groups' bounds hold all together. The figures follow from raw data: "
        "keep them to yourself.",
        highlight=False,
        style="dim",
    )


def audit_sentence(audit: Audit) -> str:
    """What an audit found, in a sentence or two."""
    found = "more" if audit.bound > audit.claimed else "no more"
    least = f"at least {audit.bound:.2f}" if math.isfinite(audit.bound) else "beyond any that noise explains"
    sentence = (
        f"An audit of {audit.procedure} by {audit.method} found {found} than it claims: at {audit.level:.0%} "
        f"confidence its epsilon is {least}, and the claim is {audit.claimed:.2f}, at delta {audit.delta:g}."
    )
    if audit.bound < USEFUL * audit.claimed:
        sentence += " That is below a tenth of the claim: the audit saw too little to say much."
    if audit.bound > audit.claimed:
        chance = f"{1 - audit.level:.0%}"
        sentence += f" By chance, at most {chance} of audits say so: repeat it with another seed."
    if audit.draws:
        failed = "; ".join(f"{each.test} ({each.place})" for each in audit.draws)
        sentence += (
            f" Noise or samples are not what it claims, so the claim does not hold: {failed}. By chance, "
            "one of a million audits says so."
        )
    return sentence
