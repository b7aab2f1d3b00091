"""Verification of a finished run from the files in its folder: checksums, ledger, epsilon, code.

It reads text alone: no code and no pickle of the folder is loaded.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from equidp._provenance import kernel_digest, versions
from equidp.accounting.limit import merge_entries
from equidp.display import shown_epsilon
from equidp.errors import BudgetError, DataError
from equidp.kernel.ledger import Event, is_step
from equidp.ledger.format import LedgerContent, event_of, plain, read_ledger
from equidp.runs import layout
from equidp.runs.recompute import recompute_epsilon

_STATED = re.compile(r"\bTraining was \(([0-9.e+-]+), ([0-9.e+-]+)\)-differentially private")
_CHECKED = {*layout.FILES} - {
    *(layout.GIVEN, layout.MANIFEST, layout.LEDGER, layout.SEAL),
    *(layout.CHECKPOINTS, layout.HISTORIES),
}
"""Files that the lists of checksums name, where they are there."""


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


@final
@dataclass(frozen=True)
class _Files:
    """Files of a run, as far as they can be read."""

    folder: Path
    settings: Mapping[str, Any]
    entries: Mapping[Event, int]
    card: str
    page: str
    ledger: LedgerContent | None
    ledger_error: str
    _digests: dict[str, str] = field(default_factory=dict)

    def digest(self, name: str) -> str:
        """SHA-256 of a file of the folder, which is read once for all checks."""
        if name not in self._digests:
            self._digests[name] = layout.file_digest(self.folder / name)
        return self._digests[name]

    @property
    def statements(self) -> set[tuple[float, float]]:
        """Every epsilon and delta in a guarantee on the card, as text and as a page."""
        texts = (" ".join(text.split()) for text in (self.card, self.page))
        return {(float(found[1]), float(found[2])) for text in texts for found in _STATED.finditer(text)}

    @property
    def stated(self) -> tuple[float, float] | None:
        """Smallest epsilon in a guarantee, with its delta; None where the card states none."""
        return min(self.statements, default=None)


def verify_run(folder: str | os.PathLike[str]) -> Verification:
    """Check that a finished run is whole, and that its card states the epsilon that follows from its ledger.

    The checks find accidents and contradictions. Somebody who can write all files can make them agree:
    compare the checksums of the card and the ledger with those that were noted elsewhere.

    Args:
        folder: of a run, or a copy with its shareable files.

    Raises:
        DataError: there is no finished run.
    """
    files = _read_files(Path(folder))
    notes = tuple(files.settings["facts"]["notes"])
    return Verification(tuple(check(files) for check in CHECKS.values()), notes)


def _read_files(place: Path) -> _Files:
    """Read the files that checks compare.

    Raises:
        DataError: there is no finished run, or its settings are not as equidp wrote them.
    """
    layout.check_folder_of_run(place)
    if not (place / layout.SETTINGS).exists():
        layout.refuse_unfinished(place)
    try:
        settings = json.loads(_read_text(place, layout.SETTINGS))
        entries: dict[Event, int] = {}
        for written, count in settings["entries"]:
            event = event_of(written)
            if plain(event) != written or int(count) != count or count < 1 or event in entries:
                raise ValueError(written)
            entries[event] = int(count)
        settings["plan"]["delta"], settings["config"]["target"]["accountant"]
        1 / settings["facts"]["num_train"]
        if not all(isinstance(note, str) for note in settings["facts"]["notes"]):
            raise TypeError("notes")
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
        raise DataError(
            f"{layout.SETTINGS} in {os.fspath(place)!r} is not as equidp wrote it ({type(error).__name__}); "
            "bring it back.",
            field=layout.SETTINGS,
        ) from error
    ledger, problem = None, ""
    if not layout.is_given(place) or (place / layout.LEDGER).exists():
        for name in (layout.LEDGER, layout.SEAL):
            _check_own(place, name)
        try:
            ledger = read_ledger(place / layout.LEDGER)
        except BudgetError as error:
            problem = str(error)
    card, page = _read_text(place, layout.CARD), _read_text(place, layout.PAGE)
    return _Files(place, settings, entries, card, page, ledger, problem)


def _is_own(place: Path, name: str) -> bool:
    """Return whether a name is that of a file in the folder itself, and no link out of it."""
    path = place / name
    return path.is_file() and not path.is_symlink() and path.name == name


def _check_own(place: Path, name: str) -> None:
    """Refuse what is there by this name and is no file of the folder: a link, a folder, a device.

    Raises:
        DataError: names it.
    """
    path = place / name
    if (path.exists() or path.is_symlink()) and not _is_own(place, name):
        raise DataError(
            f"{name} in {os.fspath(place)!r} is a link, or no file; expected the file that equidp wrote: "
            "nothing outside of the folder is read. Copy the file there.",
            field=name,
        )


def _read_text(place: Path, name: str) -> str:
    """Return the text of a file of the folder; "" where there is none."""
    _check_own(place, name)
    return (place / name).read_text(errors="replace") if (place / name).exists() else ""


def _check_files(files: _Files) -> Check:
    """Compare each file with its checksum; a copy need not have all files that its list names."""
    place, whole = files.folder, not layout.is_given(files.folder)
    listed: list[tuple[str, str]] = []
    missing = []
    for name in (layout.GIVEN, layout.MANIFEST):
        if _is_own(place, name):
            listed += layout.read_checksums(_read_text(place, name))
        elif whole or name == layout.GIVEN:
            missing.append(name)
    names = list(dict.fromkeys(name for name, _ in listed))
    there = [name for name in names if _is_own(place, name)]
    changed = {name for name, digest in listed if name in there and files.digest(name) != digest}
    # What leads out of the folder is not read: it is no file that equidp wrote.
    changed |= {name for name in names if name not in there and _leads_out(place, name)}
    if whole:
        missing += [name for name in names if name not in there and name not in changed]
    in_full = whole or (place / layout.MANIFEST).exists()  # the other list names shareable files alone
    kinds = {name for name in _CHECKED if in_full or layout.FILES[name][0] == layout.SHAREABLE}
    unlisted = sorted(name for name in kinds if (place / name).exists() and name not in names)
    found = {
        "compared": len(there),
        "changed": [name for name in names if name in changed],
        "missing": missing,
        "unlisted": unlisted,
    }
    return Check("files", bool(there) and not (changed or missing or unlisted), found)


def _leads_out(place: Path, name: str) -> bool:
    """Return whether a name is that of a file elsewhere, or of a link."""
    return Path(name).name != name or (place / name).is_symlink()


def _check_card(files: _Files) -> Check:
    """Find the checksums of the weights and of the ledger's last line on the card."""
    named = _is_own(files.folder, layout.MODEL) and files.digest(layout.MODEL) in files.card
    found: dict[str, Any] = {"card": bool(files.card), "weights": named}
    if files.ledger is not None:
        found["ledger"] = files.ledger.checks[-1] in files.card
    return Check("card", bool(files.card) and all(found.values()), found)


def _check_ledger(files: _Files) -> Check:
    """Read the ledger, whose lines have chained checksums and a seal."""
    if files.ledger is None:
        return Check("ledger", False if files.ledger_error else None, {"error": files.ledger_error})
    ahead = sum(block.steps for block in files.ledger.blocks if not block.exact)
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
    found = {
        "steps": sum(count for event, count in files.entries.items() if is_step(event)),
        "planned": files.settings["plan"].get("steps"),
        "releases": [getattr(event, "name", str(event)) for event in files.entries if not is_step(event)],
    }
    if files.ledger is None:
        return Check("entries", None, found)
    return Check("entries", files.entries == dict(merge_entries(*files.ledger.entries)), found)


def _check_epsilon(files: _Files) -> Check:
    """Compare the card's epsilon with that of dp_accounting alone."""
    stated, planned_delta = files.stated, files.settings["plan"]["delta"]
    delta = planned_delta if stated is None else stated[1]
    written = [(plain(event), count) for event, count in files.entries.items()]
    recomputed = math.inf if delta is None else recompute_epsilon(written, delta)
    found = {
        "recomputed": recomputed,
        "delta": delta,
        "stated": None if stated is None else stated[0],
        "statements": sorted(files.statements),
        "planned_delta": planned_delta,
        "accountant": files.settings["config"]["target"]["accountant"],
    }
    if not files.card:
        return Check("epsilon", None, found)
    if stated is None:
        return Check("epsilon", math.isinf(recomputed), found)
    alone = len(files.statements) == 1 and f"{planned_delta:g}" == f"{stated[1]:g}"
    # What is stated was rounded up to a thousandth, and has six digits.
    least = float(f"{shown_epsilon(recomputed * (1 - 1e-9)):g}")
    return Check("epsilon", alone and least <= stated[0], found)


def _check_target(files: _Files) -> Check:
    """Compare epsilon with the target."""
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
