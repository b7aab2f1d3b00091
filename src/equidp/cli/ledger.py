"""`equidp ledger show`: what a ledger says, in words."""

from __future__ import annotations

import itertools
import json
from contextlib import suppress
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

from equidp.accounting.budget import limit_of
from equidp.accounting.cache import epsilon
from equidp.errors import count_text
from equidp.kernel.epsilon import (
    Entries,
    checked_delta,
    costliest_entries,
    epsilon_of_group,
    run_event,
)
from equidp.kernel.ledger import (
    PEOPLE,
    GroupedStepEvent,
    ReleaseEvent,
    kind_of,
    run_of,
)
from equidp.ledger.format import LedgerContent, Spent, read_ledger
from equidp.report.planned import epsilon_of_groups_text

app = App(name="ledger", help="Explain what a run or a budget has spent.")
_DELTAS = (1e-5, 1e-6, 1e-7)


@app.command(
    name="show",
    help_epilogue="""Examples:

  equidp ledger show run

  equidp ledger show people.ledger --delta 1e-6""",
)
def show_command(
    file: Annotated[Path, Parameter(help="A ledger, a budget, or the folder of a run.")],
    /,
    *,
    delta: Annotated[float | None, Parameter(help="Default: of the budget or the run.")] = None,
) -> None:
    """Explain a ledger in words: what was spent when, what that adds up to, and how to check it."""
    if delta is not None:
        checked_delta(delta)
    path = file / "ledger" if file.is_dir() else file
    for line in _describe_ledger(path, read_ledger(path), delta):
        print(line)


def _describe_ledger(path: Path, content: LedgerContent, delta: float | None) -> list[str]:
    lines = [f"{path}: {len(content.checks):,} lines, the last with checksum {content.checks[-1]}."]
    of_people, of_run = _read_run(path)
    people = content.facts.get("unit") == PEOPLE or of_people
    for _, blocks in itertools.groupby(content.blocks, key=lambda block: block.process):
        lines += ["", *_session_lines(list(blocks), "person" if people else "example")]
    if content.torn:
        lines += [
            "",
            "The last line is incomplete, and no noise was drawn for it. Opening the ledger counts a block.",
        ]
    entries = content.entries
    budget = content.facts.get("budget", {})
    own = delta or budget.get("delta") or of_run
    lines.append("")
    for each in (own,) if own else _DELTAS:
        spent = (
            limit_of(content.facts, len(entries)).compute_epsilon(entries, each)
            if budget
            else epsilon(entries, each)
        )
        of = f" of a budget of {budget['epsilon']:g}" if budget and each == budget["delta"] else ""
        lines.append(f"Together: epsilon {spent:.6g}{of} at delta {each:g}.")
        if named := _epsilon_of_groups(entries, each):
            lines.append(f"  By group: epsilon {epsilon_of_groups_text(named)}.")
    checked = own or _DELTAS[0]
    lines.append(f"To check with dp_accounting: {run_event(costliest_entries(entries, checked))}")
    return lines


def _epsilon_of_groups(entries: Entries, delta: float) -> dict[str, float]:
    """Epsilon by name of a group, where a single kind of steps has groups; empty elsewhere."""
    grouped = dict.fromkeys(event for event, _ in entries if isinstance(event, GroupedStepEvent))
    if len(grouped) != 1:  # names of two kinds of steps may mean two groupings
        return {}
    (event,) = grouped
    return {each.name: epsilon_of_group(entries, each.name, delta) for each in event.by_group}


def _session_lines(blocks: list[Spent], one: str) -> list[str]:
    """Lines about the spending of one process; `one` is the kind of example."""
    runs = ", ".join(dict.fromkeys(run_of(block.session) for block in blocks))
    when = f"from {blocks[0].time} to {blocks[-1].time}"
    lines = [f"{blocks[0].run or 'recovered'}, {when}, run {runs}:"]
    for event in dict.fromkeys(kind_of(block.event) for block in blocks):
        count = sum(block.steps for block in blocks if kind_of(block.event) == event)
        if isinstance(event, ReleaseEvent):
            lines.append(
                f"  {count_text(count, 'release')} of {event.name}, of all {one}s at once, noise multiplier "
                f"{event.noise_multiplier:.6g}."
            )
            continue
        if isinstance(event, GroupedStepEvent):
            lines.append(f"  {count_text(count, 'step')}, {event}.")
            continue
        noise = event.statistics_noise
        statistics = "" if noise is None else f", {noise:.6g} for statistics"
        lines.append(
            f"  {count_text(count, 'step')}, each {one} drawn with probability {event.sample_rate:.6g}, "
            f"noise multiplier {event.noise_multiplier:.6g}{statistics}."
        )
    open_steps = sum(block.steps for block in blocks if not block.exact)
    if open_steps:
        lines.append(
            f"  Of these, {open_steps:,} were charged ahead by a process that is still running, or "
            "was stopped before it recorded how many it took: they count in full."
        )
    return lines


def _read_run(path: Path) -> tuple[bool, float | None]:
    """Return whether the run of the ledger's folder counts people, and its delta; None for another ledger."""
    for name in ("config.json", "settings.json"):
        with suppress(OSError, ValueError, LookupError, TypeError):
            content = json.loads((path.parent / name).read_text())
            people = content["config"]["data"]["recipe"].get("person") is not None
            return people, float(content["plan"]["delta"])
    return False, None
