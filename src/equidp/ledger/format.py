"""The text of a ledger: lines of JSON, each with a checksum chained to the line before, and a seal beside the
file.

The first line says what the file is, with a random `id`. Then `run` begins what one process wrote, `spend`
pays for a block of equal steps of the session that it names, `grouped` for steps whose rates or bounds differ
by group, and `release` for one release beside the steps, with its name and the random id of this payment. A
version of equidp that lacks one of these words refuses the file. `unspent` says how many steps of the block
before were not spent, and `facts` adds to those of the first line, among them the `unit`, whose privacy is
counted.
The seal holds the number of lines and the last checksum, so that lines missing at the end are
noticed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from equidp.errors import BudgetError
from equidp.kernel.ledger import (
    Event,
    GroupedStepEvent,
    GroupShare,
    ReleaseEvent,
    StepEvent,
    kind_of,
)

FORMAT = 3
HEADER = b'{"equidp_ledger":3,"id":"'
_CHECK = 32  # hex digits of a checksum


@dataclass(frozen=True)
class Spent:
    """A block of equal steps in a ledger.

    Attributes:
        process: number of the process that wrote it, from 1 on.
        run: the name that process gave.
        session: random name of the session that it paid for: "run.stretch", see `Ledger.session`.
        event: one step or one release.
        steps: number that counts as spent.
        exact: whether the count is exact. The block that a process was killed in counts in full.
        time: day of writing, by the machine's clock, for readers only.
    """

    process: int
    run: str
    session: str
    event: Event
    steps: int
    exact: bool
    time: str


@dataclass(frozen=True)
class LedgerContent:
    """The content of a ledger file.

    Attributes:
        facts: plain values it was made with: its random `id`, and perhaps a budget.
        blocks: in the order they were written.
        checks: checksum of each line.
        torn: bytes after the last whole line.
    """

    facts: dict[str, Any]
    blocks: tuple[Spent, ...]
    checks: tuple[str, ...]
    torn: bytes

    @property
    def entries(self) -> tuple[tuple[Event, int], ...]:
        """(event, number of steps) pairs, each event once, releases without their ids."""
        counts: dict[Event, int] = {}
        for block in self.blocks:
            event = kind_of(block.event)
            counts[event] = counts.get(event, 0) + block.steps
        return tuple((event, steps) for event, steps in counts.items() if steps)


def read_ledger(path: str | os.PathLike[str]) -> LedgerContent:
    """Return the content of a ledger that another process may be writing; change nothing.

    Guarantee: every step counts whose `spend` had returned when the call began.

    Raises:
        BudgetError: no ledger, or one that is damaged or was edited.
    """
    try:
        # The seal first: it may miss a line written in between, never know one that was not read.
        seal = seal_path(path).read_text() if seal_path(path).exists() else ""
        content = Path(path).read_bytes()
    except OSError as error:
        raise BudgetError(
            f"the ledger {os.fspath(path)!r} cannot be read ({error.strerror}).", field="path"
        ) from error
    read = parse_ledger(path, content)
    if not read.checks:
        raise BudgetError(
            f"{os.fspath(path)!r} holds no ledger; expected a file that equidp wrote.", field="path"
        )
    check_seal(path, read, seal)
    return read


def seal_path(path: str | os.PathLike[str]) -> Path:
    """The seal of a ledger, beside the file itself where `path` is a link to it."""
    return Path(f"{os.path.realpath(path)}.seal")


def chained_line(check: str, record: Mapping[str, Any]) -> tuple[bytes, str]:
    text = json.dumps(record, separators=(",", ":"), allow_nan=False)
    check = _checksum(check, text)
    return f"{text} {check}\n".encode(), check


def _checksum(before: str, text: str) -> str:
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()[:_CHECK]


def check_seal(path: str | os.PathLike[str], read: LedgerContent, seal: str) -> None:
    """Raise a BudgetError if lines are missing that the seal knows of; newer lines are fine."""
    try:
        lines, check = seal.split() or ("0", "")
        # The seal is synced before a second line: only a ledger of one line may lack it.
        begun = not read.checks or (len(read.checks) == 1 and not read.torn)
        whole = read.checks[int(lines) - 1] == check if int(lines) else begun
    except (ValueError, IndexError):
        whole = False
    if not whole:
        name = seal_path(path).name
        pair = f"and its seal {name!r} do not belong together" if seal else f"lacks its seal {name!r}"
        raise BudgetError(
            f"the ledger {os.fspath(path)!r} {pair}: "
            "lines are missing at the end, or one of the two files was replaced. Bring back both as equidp "
            "wrote them.",
            field="seal",
        )


def parse_ledger(path: str | os.PathLike[str], content: bytes) -> LedgerContent:
    """Return the content of all whole lines; BudgetError where a line does not match its checksum."""
    *lines, torn = content.split(b"\n")
    records: list[dict[str, Any]] = []
    checks: list[str] = []
    for number, line in enumerate(lines, start=1):
        text, _, check = line.decode(errors="replace").rpartition(" ")
        if _checksum(checks[-1] if checks else "", text) != check:
            raise BudgetError(
                f"line {number} of {os.fspath(path)!r} does not match its checksum: it was edited or "
                "damaged, or is no ledger, and what was spent cannot be read from it. Bring back the file as "
                "equidp wrote it.",
                field="checksum",
            )
        checks.append(check)
        records.append(json.loads(text))
    try:
        if records and (found := records[0]["equidp_ledger"]) != FORMAT:
            raise BudgetError(
                f"{os.fspath(path)!r} is a ledger of format {found}; this version reads format {FORMAT}, "
                "which names each release and whose privacy it counts. Go on with the version that wrote it. "
                "Or, for a budget, make a new file for what the old one has left: epsilons add up, and so do "
                "deltas.",
                field="format",
            )
        facts, blocks = _read_records(records)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BudgetError(
            f"{os.fspath(path)!r} is no ledger that this version of equidp can read ({error!r}).",
            field="format",
        ) from error
    return LedgerContent(facts, blocks, tuple(checks), torn)


def _read_records(records: Sequence[dict[str, Any]]) -> tuple[dict[str, Any], tuple[Spent, ...]]:
    if not records:
        return {}, ()
    facts = {name: value for name, value in records[0].items() if name not in ("equidp_ledger", "time")}
    blocks: list[Spent] = []
    process, run, first = 0, "", 0
    for record in records[1:]:
        if "facts" in record:
            facts |= record["facts"]
        elif "run" in record:
            process, run, first = process + 1, record["run"], len(blocks)
        elif "unspent" in record:
            last = blocks.pop()
            if not 0 <= record["unspent"] <= last.steps:
                raise ValueError(f"{record['unspent']} of {last.steps} steps unspent")
            blocks.append(replace(last, steps=last.steps - record["unspent"], exact=True))
        else:
            # A process begins a block only after it used up the one before.
            if len(blocks) > first and "torn" not in record:
                blocks[-1] = replace(blocks[-1], exact=True)
            event = event_of(record)
            session, steps, time = str(record["for"]), record["steps"], record["time"]
            blocks.append(Spent(process, run, session, event, steps, False, time))
    return facts, tuple(blocks)


def plain(event: Event) -> dict[str, Any]:
    """Return an event as JSON reads it from a ledger's line; `event_of` makes the event of it."""
    names = {
        ReleaseEvent: "release",
        GroupedStepEvent: "grouped",
    }
    return {names.get(type(event), "spend"): json.loads(json.dumps(asdict(event)))}  # tuples become lists


def event_of(record: Mapping[str, Any]) -> Event:
    """The event of a line, or of what `plain` gave."""
    if "grouped" in record:
        shares = tuple(GroupShare(**each) for each in record["grouped"]["by_group"])
        return GroupedStepEvent(**{**record["grouped"], "by_group": shares})
    return ReleaseEvent(**record["release"]) if "release" in record else StepEvent(**record["spend"])


def has_a_line(path: str | os.PathLike[str]) -> bool:
    """True where the file holds a ledger with at least one complete line."""
    return os.path.isfile(path) and b"\n" in Path(path).read_bytes()
