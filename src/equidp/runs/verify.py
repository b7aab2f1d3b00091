"""Verification of a finished run from its files: checksums, ledger, epsilon, code.

`share/` is enough for all checks except those on the ledger. Only text is read: no code and no pickle of the
folder is loaded.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, final

from equidp._provenance import kernel_digest, versions
from equidp.display import shown_epsilon
from equidp.errors import BudgetError, DataError
from equidp.kernel.event import STEP, Event, EventCounts
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
    compare_sums,
    file_digest,
    not_as_written,
    number_columns,
)
from equidp.runs.recompute import recompute_epsilon
from equidp.training.run import subtract_counts


@final
@dataclass(frozen=True)
class Check:
    """Result of one check of a run.

    Attributes:
        name: key of `CHECKS`.
        passed: whether the check passed, or None if it cannot be done with these files.
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
        checks: checks in the order of `CHECKS`.
        notes: notes of the run on its data: what epsilon does not cover is among them.
    """

    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    @property
    def failed(self) -> tuple[str, ...]:
        """Names of the checks that failed. Empty: none did."""
        return tuple(each.name for each in self.checks if each.passed is False)


class _Files(NamedTuple):
    """Files of a run that checks compare.

    Attributes:
        folder: folder of the run, or a copy of its `share/`.
        run: content of `run.json`.
        entries: how often each event was planned.
        spent: how often each was spent.
        card: text of the card.
        statements: every epsilon and delta in a guarantee on the card, as text and as a page.
        ledger: ledger of the run, or None if there is none. `ledger_error` is set if it cannot be read.
    """

    folder: RunFolder
    run: Mapping[str, Any]
    entries: EventCounts
    spent: dict[Event, int]
    card: str
    statements: frozenset[tuple[float, float]]
    ledger: Ledger | None
    ledger_error: str


def verify(folder: str | os.PathLike[str]) -> Verification:
    """Check that a finished run is complete, and that its stated epsilon follows from its entries.

    Args:
        folder: folder of a run, or a copy of its `share/`.

    Raises:
        DataError: there is no finished run, its facts are not as equidp wrote them, or it contains a link.
    """
    place = RunFolder(folder)
    place.check_finished()
    for path in (*place.results.iterdir(), *(place.private.iterdir() if place.private.exists() else ())):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise DataError(
                f"{path.name} in {os.fspath(path.parent)!r} is a link, or no file, and nothing outside of "
                "the folder is read; copy the file there.",
                field=path.name,
            )
    run, entries, not_taken = place.read_results()
    texts = {name: _read_text(place.results / name) for name in (CARD, PAGE)}
    files = _Files(
        place,
        run,
        entries,
        dict(subtract_counts(entries, not_taken)),
        texts[CARD],
        frozenset().union(*map(stated_guarantees, texts.values())),
        *_read_ledger(place),
    )
    try:
        return Verification(tuple(check(files) for check in CHECKS.values()), tuple(run["facts"]["notes"]))
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        raise not_as_written(place.results / RUN, error) from error


def _read_text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _read_ledger(folder: RunFolder) -> tuple[Ledger | None, str]:
    """Return the ledger of a run, its own or the one named in its configuration, or what is wrong with it. If
    these files are a copy without a ledger, return neither."""
    path = folder.private / LEDGER
    with suppress(OSError, ValueError, LookupError, TypeError):
        path = Path(json.loads(folder.find(CONFIG).read_text())["config"]["ledger"]["path"])
    if not path.exists() and not folder.has_begun:
        return None, ""
    try:
        return Ledger.read(path), ""
    except BudgetError as error:
        return None, str(error)


def _check_files(files: _Files) -> Check:
    """Compare each file with its checksum, and find files without one."""
    folder = files.folder
    states = compare_sums(folder.results)
    # A copy may have been given the encoder too, which epsilon does not cover.
    there = {path.name for path in folder.results.iterdir() if path.is_file() and path.name[0] != "."}
    unlisted = sorted(there - {*states, SUMS, ENCODER})
    listed = [*states.items(), *(compare_sums(folder.private).items() if folder.has_begun else ())]
    found: dict[str, Any] = {
        state: [name for name, of_file in listed if of_file == state] for state in ("changed", "missing")
    }
    problems = found["changed"] or found["missing"] or unlisted
    found |= {"compared": len(listed) - len(found["missing"]), "unlisted": unlisted}
    return Check("files", bool(found["compared"]) and not problems, found)


def _check_card(files: _Files) -> Check:
    """Find the checksum of the weights on the card."""
    model = files.folder.results / MODEL
    named = model.exists() and file_digest(model) in files.card
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
    """Compare epsilon of `run.json` and of the card with epsilon computed only by dp_accounting."""
    epsilon, delta = files.run["epsilon"], files.run["delta"]
    recomputed = recompute_epsilon([(asdict(event), count) for event, count in files.entries], delta)
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
