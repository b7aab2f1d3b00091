"""Verification of a finished run from its files: checksums, ledger, epsilon, code.

`share/` alone is enough for all checks but those of the ledger. Text alone is read: no code and no pickle of
the folder is loaded.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, final

from equidp._provenance import kernel_digest, versions
from equidp.display import shown_epsilon
from equidp.errors import BudgetError, DataError
from equidp.kernel.event import STEP, Event
from equidp.ledger.ledger import Ledger
from equidp.ledger.renyi import renyi_code
from equidp.report.guarantee import stated_guarantees
from equidp.runs.folder import (
    CARD,
    CONFIG,
    ENCODER,
    LEDGER,
    MODEL,
    PAGE,
    RUN,
    SUMS,
    RunFolder,
    file_digest,
    not_as_written,
    number_columns,
    read_sums,
)
from equidp.runs.recompute import recompute_epsilon
from equidp.training.run import subtract_counts


@final
@dataclass(frozen=True)
class Check:
    """Result of one check of a run.

    Attributes:
        name: a key of `CHECKS`.
        passed: None where the files do not allow it to be checked.
        found: plain values that the result rests on, by name.
    """

    name: str
    passed: bool | None
    found: Mapping[str, Any]


@final
@dataclass(frozen=True)
class Verification:
    """Results of all checks of a run.

    Attributes:
        checks: in the order of `CHECKS`.
        notes: of the run on its data: what epsilon does not cover is among them.
    """

    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed; empty: none did."""
        return tuple(each.name for each in self.checks if each.passed is False)


@final
@dataclass(frozen=True)
class _Files:
    """Files of a run that checks compare.

    Attributes:
        folder: of the run, or a copy of its `share/`.
        run: content of `run.json`.
        entries, not_taken: how often each event was planned, and left out of that.
        card: text of the card.
        statements: every epsilon and delta in a guarantee on the card, as text and as a page.
        ledger: None where there is none; `ledger_error` where it cannot be read.
    """

    folder: RunFolder
    run: Mapping[str, Any]
    entries: Mapping[Event, int]
    not_taken: Mapping[Event, int]
    card: str
    statements: frozenset[tuple[float, float]]
    ledger: Ledger | None
    ledger_error: str

    @property
    def spent(self) -> dict[Event, int]:
        """Entries that were spent, of those that the card states."""
        return dict(subtract_counts(self.entries.items(), self.not_taken.items()))


def verify(folder: str | os.PathLike[str]) -> Verification:
    """Check that a finished run is whole, and that it states the epsilon that follows from its entries.

    The checks find accidents and contradictions. Somebody who can write all files can make them agree:
    compare the checksums of the card and the ledger with those that were noted elsewhere.

    Args:
        folder: of a run, or a copy of its `share/`.

    Raises:
        DataError: there is no finished run.
    """
    files = _read_files(RunFolder(folder))
    return Verification(tuple(check(files) for check in CHECKS.values()), tuple(files.run["facts"]["notes"]))


def _read_files(folder: RunFolder) -> _Files:
    """Read the files that checks compare.

    Raises:
        DataError: there is no finished run, or its facts are not as equidp wrote them.
    """
    folder.check()
    if not folder.is_finished:
        folder.refuse_unfinished()
    place = folder.results
    try:
        run = json.loads(_read_text(place / RUN))
        entries, not_taken = (_read_entries(run[name]) for name in ("entries", "not_taken"))
        run["run"], run["accountant"], run["target_epsilon"], run["plan"].get("steps")
        (run["epsilon"] or 0.0) + run["delta"] + 1 / run["facts"]["num_train"]
        if not all(isinstance(note, str) for note in run["facts"]["notes"]):
            raise TypeError("notes")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise not_as_written(place / RUN, error) from error
    card, page = (_read_text(place / name) for name in (CARD, PAGE))
    statements = frozenset(stated_guarantees(card) | stated_guarantees(page))
    ledger, problem = None, ""
    if (path := _ledger_path(folder)) is not None:
        try:
            ledger = Ledger.read(path)
        except BudgetError as error:
            problem = str(error)
    return _Files(folder, run, entries, not_taken, card, statements, ledger, problem)


def _read_entries(records: list[Any]) -> dict[Event, int]:
    entries: dict[Event, int] = {}
    for record, count in records:
        event = Event.of_record(record)
        whole = json.loads(json.dumps(asdict(event))) == record and int(count) == count
        if not whole or count < 1 or event in entries:
            raise ValueError(record)
        entries[event] = int(count)
    return entries


def _ledger_path(folder: RunFolder) -> Path | None:
    """Return the ledger of a run: its own, or the one of the dataset that its configuration names.

    None: these files are a copy without one.
    """
    own = folder.private / LEDGER
    _check_own(own)
    with suppress(ValueError, LookupError, TypeError):
        if folder.has_begun and (named := json.loads(_read_text(folder.find(CONFIG)))["config"]["ledger"]):
            return Path(named["path"])
    return own if own.exists() or folder.has_begun else None


def _is_own(path: Path) -> bool:
    """Return whether a path is that of a file in its folder, and no link out of it."""
    return path.is_file() and not path.is_symlink()


def _check_own(path: Path) -> None:
    """Raise a DataError for what is there by this name and is no file: a link, a folder, a device."""
    if (path.exists() or path.is_symlink()) and not _is_own(path):
        raise DataError(
            f"{path.name} in {os.fspath(path.parent)!r} is a link, or no file; expected the file that equidp "
            "wrote: nothing outside of the folder is read. Copy the file there.",
            field=path.name,
        )


def _read_text(path: Path) -> str:
    """Return the text of a file of the folder; "" where there is none."""
    _check_own(path)
    return path.read_text(errors="replace") if path.exists() else ""


def _check_files(files: _Files) -> Check:
    """Compare each file with its checksum, and find files without one."""
    folder = files.folder
    places = [folder.results, *([folder.private] if folder.has_begun else [])]
    found: dict[str, Any] = {"compared": 0, "changed": [], "missing": [], "unlisted": []}
    for place in places:
        if not _is_own(place / SUMS):
            found["missing"].append(SUMS)
            continue
        sums = read_sums(_read_text(place / SUMS))
        for name, digest in sums.items():
            path = place / name
            if path.name != name or path.is_symlink():  # what leads out of the folder is not read
                found["changed"].append(name)
            elif not path.is_file():
                found["missing"].append(name)
            else:
                found["compared"] += 1
                if file_digest(path) != digest:
                    found["changed"].append(name)
        if place == folder.results:
            # A copy may have been given the encoder too, which epsilon does not cover.
            known = {*sums, SUMS, ENCODER}
            there = [path.name for path in place.iterdir() if path.is_file() and path.name[0] != "."]
            found["unlisted"] = sorted({*there} - known)
    problems = found["changed"] or found["missing"] or found["unlisted"]
    return Check("files", bool(found["compared"]) and not problems, found)


def _check_card(files: _Files) -> Check:
    """Find the checksum of the weights on the card."""
    model = files.folder.results / MODEL
    named = _is_own(model) and file_digest(model) in files.card
    return Check("card", bool(files.card) and named, {"card": bool(files.card), "weights": named})


def _check_ledger(files: _Files) -> Check:
    """Find the card's checksum in the ledger, whose lines are chained, and add up all that it holds."""
    ledger, run = files.ledger, files.run["run"]
    if ledger is None:
        return Check("ledger", False if files.ledger_error else None, {"error": files.ledger_error})
    delta = ledger.limit[1] if ledger.limit is not None else files.run["delta"]
    last = ledger.last_check(run)
    found = {
        "run": run,
        "last": last,
        "runs": len(ledger.runs),
        "limit": ledger.limit,
        "order": ledger.order,
        "delta": delta,
        "epsilon": ledger.spent(delta=delta),
        "code": renyi_code(ledger.entries(), ledger.order, delta),
    }
    return Check("ledger", run in ledger.runs and last in files.card, found)


def _check_entries(files: _Files) -> Check:
    """Compare what `run.json` says was spent, of what the card states, with the ledger."""
    found = {
        "steps": sum(count for event, count in files.spent.items() if event.name == STEP),
        "planned": files.run["plan"].get("steps"),
        "releases": [event.name for event in files.spent if event.name != STEP],
    }
    if files.ledger is None:
        return Check("entries", None, found)
    charged = dict(number_columns(files.ledger.entries(files.run["run"])))
    return Check("entries", files.spent == charged, found)


def _check_epsilon(files: _Files) -> Check:
    """Compare epsilon of `run.json` and of the card with that of dp_accounting alone."""
    epsilon, delta = files.run["epsilon"], files.run["delta"]
    recomputed = recompute_epsilon([(asdict(event), count) for event, count in files.entries.items()], delta)
    found = {
        "recomputed": recomputed,
        "delta": delta,
        "epsilon": epsilon,
        "statements": sorted(files.statements),
        "accountant": files.run["accountant"],
    }
    if epsilon is None:
        return Check("epsilon", math.isinf(recomputed) and not files.statements, found)
    shown = float(f"{shown_epsilon(epsilon):g}")  # as on the card: rounded up to a thousandth, in six digits
    on_card = files.statements == {(shown, float(f"{delta:g}"))}
    least = float(f"{shown_epsilon(recomputed * (1 - 1e-9)):g}")
    return Check("epsilon", on_card and least <= shown, found)


def _check_target(files: _Files) -> Check:
    """Compare epsilon with the target."""
    asked, epsilon = files.run["target_epsilon"], files.run["epsilon"]
    found = {"asked": asked, "epsilon": epsilon}
    if asked is None or epsilon is None:
        return Check("target", None, found)
    return Check("target", shown_epsilon(epsilon) <= shown_epsilon(asked), found)


def _check_delta(files: _Files) -> Check:
    """Compare delta with one over the number of training examples."""
    delta, number = files.run["delta"], files.run["facts"]["num_train"]
    found = {"delta": delta, "examples": number}
    return Check("delta", None if files.run["epsilon"] is None else delta < 1 / number, found)


def _check_code(files: _Files) -> Check:
    """Compare the code of the kernel here with the one that the run was trained by."""
    facts = files.run["facts"]
    trained, here = facts.get("kernel_sha256"), kernel_digest()
    found = {
        "kernel": trained,
        "kernel_here": here,
        "version": facts.get("versions", {}).get("equidp"),
        "version_here": versions()["equidp"],
        "own_code": sorted(facts.get("own_code", {})),
    }
    return Check("code", True if trained == here else None, found)


CHECKS: Mapping[str, Callable[[_Files], Check]] = {
    "files": _check_files,
    "card": _check_card,
    "ledger": _check_ledger,
    "entries": _check_entries,
    "epsilon": _check_epsilon,
    "target": _check_target,
    "delta": _check_delta,
    "code": _check_code,
}
"""Name -> check, in the order of an auditor's reading."""
