"""Verification of a finished run from the files in its folder: checksums, ledger, epsilon, code.

It reads text alone: no code and no pickle of the folder is loaded.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from equidp._provenance import kernel_digest, versions
from equidp.accounting.limit import merge_entries
from equidp.display import shown_epsilon
from equidp.errors import BudgetError, DataError
from equidp.kernel.ledger import is_step
from equidp.ledger.format import LedgerContent, event_of, read_ledger
from equidp.runs import layout
from equidp.runs.recompute import recompute_epsilon

_STATED = re.compile(r"\(([0-9.e+-]+), ([0-9.e+-]+)\)-differentially private")


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
class _Files:
    """Files of a run, as far as they can be read."""

    folder: Path
    settings: Mapping[str, Any]
    card: str
    ledger: LedgerContent | None
    ledger_error: str

    @property
    def stated(self) -> tuple[float, float] | None:
        """Epsilon and delta in the card's guarantee; None where it states none."""
        found = _STATED.search(" ".join(self.card.split()))
        return None if found is None else (float(found[1]), float(found[2]))


def verify_run(folder: str | os.PathLike[str]) -> tuple[Check, ...]:
    """Check that a finished run is whole, and that its card states the epsilon that follows from its ledger.

    The checks find accidents and contradictions. Somebody who can write all files can make them agree:
    compare the checksums of the card and the ledger with those that were noted elsewhere.

    Args:
        folder: of a run, or a copy with its shareable files.

    Raises:
        DataError: there is no finished run.
    """
    files = _read(Path(folder))
    return tuple(check(files) for check in CHECKS.values())


def _read(place: Path) -> _Files:
    if not place.is_dir():
        raise DataError(f"there is no folder {os.fspath(place)!r}; check the path.", field="folder")
    if not (place / layout.SETTINGS).exists():
        raise DataError(
            f"{os.fspath(place)!r} holds no finished run: {layout.SETTINGS}, which training writes last, is "
            "not there. Expected a folder that equidp train made, or a copy of its shareable files.",
            field="folder",
        )
    try:
        settings = json.loads((place / layout.SETTINGS).read_text())
        for event, count in settings["entries"]:
            event_of(event), int(count)
        settings["plan"]["delta"], settings["facts"]["num_train"], settings["config"]["target"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{layout.SETTINGS} in {os.fspath(place)!r} is not as equidp wrote it ({type(error).__name__}); "
            "bring it back.",
            field=layout.SETTINGS,
        ) from error
    card = (place / layout.CARD).read_text(errors="replace") if (place / layout.CARD).exists() else ""
    ledger, problem = None, ""
    if not layout.is_given(place):
        try:
            ledger = read_ledger(place / layout.LEDGER)
        except BudgetError as error:
            problem = str(error)
    return _Files(place, settings, card, ledger, problem)


def _check_files(files: _Files) -> Check:
    """Compare each file with its checksum; a copy need not have all files that its list names."""
    whole = not layout.is_given(files.folder)
    listed: dict[str, str] = {}
    unread = []
    for name in (layout.GIVEN, *([layout.MANIFEST] if whole else [])):
        try:
            lines = (files.folder / name).read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            unread.append(name)
            continue
        listed |= {file: digest for digest, _, file in (line.partition("  ") for line in lines)}
    there = [name for name in listed if (files.folder / name).is_file()]
    changed = [name for name in there if layout.file_digest(files.folder / name) != listed[name]]
    missing = [*unread, *(name for name in listed if whole and name not in there)]
    found = {"compared": len(there), "changed": changed, "missing": missing}
    return Check("files", bool(there) and not changed and not missing, found)


def _check_card(files: _Files) -> Check:
    """Find the checksums of the weights and of the ledger's last line on the card."""
    weights = files.folder / layout.MODEL
    named = weights.is_file() and layout.file_digest(weights) in files.card
    found: dict[str, Any] = {"card": bool(files.card), "weights": named}
    if files.ledger is not None:
        found["ledger"] = files.ledger.checks[-1] in files.card
    return Check("card", bool(files.card) and all(found.values()), found)


def _check_ledger(files: _Files) -> Check:
    """Read the ledger, whose lines have chained checksums and a seal."""
    if files.ledger is None:
        return Check("ledger", False if files.ledger_error else None, {"error": files.ledger_error})
    ahead = sum(block.steps for block in files.ledger.blocks if not block.settled)
    found = {
        "lines": len(files.ledger.checks),
        "last": files.ledger.checks[-1],
        "processes": len({block.process for block in files.ledger.blocks}),
        "paid_ahead": ahead,
        "torn": bool(files.ledger.torn),
    }
    return Check("ledger", True, found)


def _check_entries(files: _Files) -> Check:
    """Compare what the settings say was spent with the ledger."""
    stated = {event_of(event): int(count) for event, count in files.settings["entries"]}
    found = {
        "steps": sum(count for event, count in stated.items() if is_step(event)),
        "planned": files.settings["plan"].get("steps"),
        "releases": [getattr(event, "name", str(event)) for event in stated if not is_step(event)],
    }
    if files.ledger is None:
        return Check("entries", None, found)
    return Check("entries", stated == dict(merge_entries(*files.ledger.entries)), found)


def _check_epsilon(files: _Files) -> Check:
    """Compare the card's epsilon with that of dp_accounting alone."""
    entries = [(event, int(count)) for event, count in files.settings["entries"]]
    stated = files.stated
    delta = files.settings["plan"]["delta"] if stated is None else stated[1]
    recomputed = math.inf if delta is None else recompute_epsilon(entries, delta)
    found = {
        "recomputed": recomputed,
        "delta": delta,
        "stated": None if stated is None else stated[0],
        "accountant": files.settings["config"]["target"]["accountant"],
    }
    if not files.card:
        return Check("epsilon", None, found)
    if stated is None:
        return Check("epsilon", math.isinf(recomputed), found)
    # What is stated was rounded up to a thousandth.
    return Check("epsilon", shown_epsilon(recomputed * (1 - 1e-9)) <= stated[0], found)


def _check_target(files: _Files) -> Check:
    """Compare epsilon with the one that was asked for."""
    asked = files.settings["config"]["target"].get("epsilon")
    stated = files.stated
    found = {"asked": asked, "stated": None if stated is None else stated[0]}
    if asked is None or stated is None:
        return Check("target", None, found)
    return Check("target", stated[0] <= shown_epsilon(asked), found)


def _check_delta(files: _Files) -> Check:
    """Compare delta with one over the number of training examples."""
    stated, number = files.stated, files.settings["facts"]["num_train"]
    found = {"delta": None if stated is None else stated[1], "examples": number}
    return Check("delta", None if stated is None else stated[1] < 1 / number, found)


def _check_code(files: _Files) -> Check:
    """Compare the code of the kernel here with the one that the run was trained by."""
    facts = files.settings["facts"]
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


def read_notes(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the run's notes on its data: what epsilon does not cover is among them."""
    notes: list[str] = json.loads((Path(folder) / layout.SETTINGS).read_text())["facts"]["notes"]
    return tuple(notes)
