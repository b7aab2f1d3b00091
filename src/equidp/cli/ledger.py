"""`equidp ledger show`: what a ledger says, in words."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Annotated

import typer

from equidp.accounting import run_event
from equidp.cli.app import app
from equidp.kernel.epsilon import checked_delta, epsilon
from equidp.kernel.ledger_format import LedgerContent, Spent, read_ledger
from equidp.report.format import counted_steps

ledger = typer.Typer(no_args_is_help=True, help="What was spent.")
app.add_typer(ledger, name="ledger")

_DELTAS = (1e-5, 1e-6, 1e-7)


@ledger.callback()
def _commands() -> None:
    """Keeps `show` a command of its own although there is but one."""


@ledger.command("show")
def show_command(
    file: Annotated[Path, typer.Argument(help="A ledger, a budget, or the folder of a run.")],
    delta: Annotated[float | None, typer.Option(help="Default: the budget's or the run's.")] = None,
) -> None:
    """Explain a ledger in words: what was spent when, what that adds up to, and how to check it.

    Examples:

        equidp ledger show run

        equidp ledger show people.ledger --delta 1e-6
    """
    if delta is not None:
        checked_delta(delta)
    path = file / "ledger" if file.is_dir() else file
    content = read_ledger(path)
    for line in _explained(path, content, delta):
        typer.echo(line)


def _explained(path: Path, content: LedgerContent, delta: float | None) -> list[str]:
    lines = [f"{path}: {len(content.checks):,} lines, the last with checksum {content.checks[-1]}."]
    for _, blocks in itertools.groupby(content.blocks, key=lambda block: block.process):
        lines += ["", *_session(list(blocks))]
    if content.torn:
        lines += [
            "",
            "The last line was torn. It paid for no noise; whoever opens the ledger next counts a block for it.",
        ]
    entries = content.entries
    budget = content.facts.get("budget", {})
    own = delta or budget.get("delta") or _delta_of_run(path)
    lines.append("")
    for each in (own,) if own else _DELTAS:
        spent = epsilon(entries, each, budget.get("accountant", "pld"))
        of = f" of a budget of {budget['epsilon']:g}" if budget and each == budget["delta"] else ""
        lines.append(f"Together: epsilon {spent:.6g}{of} at delta {each:g}.")
    lines.append(f"To check with dp_accounting: {run_event(entries)}")
    return lines


def _session(blocks: list[Spent]) -> list[str]:
    """What one process spent."""
    steps = sum(block.steps for block in blocks)
    lines = [f"{blocks[0].run or 'recovered'}, from {blocks[0].time} to {blocks[-1].time}: {steps:,} steps."]
    for event in dict.fromkeys(block.event for block in blocks):
        count = sum(block.steps for block in blocks if block.event == event)
        statistics = (
            "" if event.statistics_noise is None else f", {event.statistics_noise:.6g} for statistics"
        )
        lines.append(
            f"  {counted_steps(count)}, each example drawn with probability {event.sample_rate:.6g}, noise "
            f"multiplier {event.noise_multiplier:.6g}{statistics}."
        )
    open_steps = sum(block.steps for block in blocks if not block.settled)
    if open_steps:
        lines.append(
            f"  Of these, {open_steps:,} were paid for ahead by a process that is still at work or was stopped before it could say "
            "how many it took: they count in full."
        )
    return lines


def _delta_of_run(path: Path) -> float | None:
    """Of the run whose ledger this is, where it lies in the run's folder."""
    try:
        content = json.loads((path.parent / "config.json").read_text())
        return float(content["config"]["plan"]["delta"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
