"""`equidp verify`: whether a run's files agree, and its card states the epsilon that they give."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equidp._files import check_outputs, write_whole
from equidp.cli import options
from equidp.cli.app import command
from equidp.display import Column, Table, shown_epsilon
from equidp.errors import count_text
from equidp.runs import layout
from equidp.runs.verify import Check, verify_run

app = command("verify", "equidp verify run", "equidp verify run --json checks.json")


@app.default
def verify_command(
    run: Annotated[
        Path, Parameter(help="A folder that equidp train made, or a copy of its shareable files.")
    ],
    /,
    *,
    json_file: options.JsonFile = None,
) -> None:
    """Check a finished run: checksums, ledger, epsilon by dp_accounting alone, and the kernel's code.

    It loads no code and no weights of the folder. The exit code is 1 if a check fails.
    """
    check_outputs({"--json": json_file}, run)
    verified = verify_run(run)
    checks = verified.checks
    if json_file is not None:
        listed = [
            {"check": each.name, "passed": each.passed}
            # JSON has no infinity, the epsilon of a run without noise.
            | {name: None if value == math.inf else value for name, value in each.found.items()}
            for each in checks
        ]
        write_whole(json_file, (json.dumps(listed, indent=2) + "\n").encode())
    rows = [[each.name, _WORDS[each.passed], _SENTENCES[each.name](each)] for each in checks]
    columns = (Column("check", "name"), Column("result", "label"), Column("found", "text"))
    Table(columns, rows, f"Verification of {run}").print()
    for title, lines in (
        ("Notes on the data, with what epsilon does not cover:", verified.notes),
        (_OPEN, _UNSEEN),
    ):
        if lines:
            print(title)
            for line in lines:
                print(f"- {line}")
    failed = [each.name for each in checks if each.passed is False]
    if failed:
        print(f"{count_text(len(failed), 'check')} failed: {', '.join(failed)}.")
        sys.exit(1)


_WORDS = {True: "passed", False: "FAILED", None: "not checked"}
_OPEN = "What no file can show:"
_UNSEEN = (
    "that this code ran as it is: equidp.audit_step measures a lower bound on epsilon;",
    "that the files were not all rewritten: compare the card's checksum with one that was noted elsewhere;",
    "that no other run read the same data: equidp ledger show has what one budget holds.",
)


def _files_sentence(check: Check) -> str:
    found = check.found
    if check.passed:
        return f"{count_text(found['compared'], 'file')} as their checksums say."
    parts = []
    if found["changed"]:
        parts.append(f"changed since equidp wrote them: {', '.join(found['changed'])}")
    if found["missing"]:
        parts.append(f"missing: {', '.join(found['missing'])}")
    if found["unlisted"]:
        parts.append(f"without a checksum: {', '.join(found['unlisted'])}")
    return ("; ".join(parts) or "none of the listed files is there") + "."


def _card_sentence(check: Check) -> str:
    if not check.found["card"]:
        return f"{layout.CARD} is not there."
    wrong = [
        {"weights": layout.MODEL, "ledger": "the last line of the ledger"}[name]
        for name, named in check.found.items()
        if not named
    ]
    if wrong:
        return f"{layout.CARD} does not name the checksum of {', '.join(wrong)}."
    return f"{layout.CARD} names the checksums of the weights" + (
        " and of the ledger's last line." if "ledger" in check.found else "."
    )


def _ledger_sentence(check: Check) -> str:
    found = check.found
    if check.passed is None:
        return "these files are a copy without the ledger."
    if not check.passed:
        return str(found["error"])
    ahead = f"; {count_text(found['paid_ahead'], 'step')} charged ahead count in full" * bool(
        found["paid_ahead"]
    )
    torn = "; the last line is torn" * found["torn"]
    return (
        f"{count_text(found['lines'], 'line')} by {count_text(found['processes'], 'session')}, whole; "
        f"last checksum {found['last']}{ahead}{torn}."
    )


def _entries_sentence(check: Check) -> str:
    found = check.found
    releases = f", and releases: {', '.join(found['releases'])}" if found["releases"] else ""
    spent = f"{count_text(found['steps'], 'step')}{releases}; the plan had {found['planned']:,}."
    if check.passed is None:
        return f"Settings say {spent}"
    if check.passed:
        return f"Settings and ledger say {spent}"
    return f"Settings say {spent} The ledger says something else."


def _epsilon_sentence(check: Check) -> str:
    found = check.found
    recomputed = found["recomputed"]
    if math.isinf(recomputed):
        says = "states no guarantee" if found["stated"] is None else f"states epsilon {found['stated']:g}"
        return f"No noise: no epsilon follows, and the card {says}."
    if found["stated"] is None:
        return f"The card states no epsilon; {recomputed:.6g} follows at delta {found['delta']:g}."
    if len(found["statements"]) > 1:
        pairs = ", ".join(f"({epsilon:g}, {delta:g})" for epsilon, delta in found["statements"])
        return f"The card states several guarantees: {pairs}; dp_accounting gives {recomputed:.6g}."
    if found["planned_delta"] is None or f"{found['planned_delta']:g}" != f"{found['delta']:g}":
        return f"The card states delta {found['delta']:g}, and settings {found['planned_delta']}."
    by = "" if found["accountant"] == "pld" else f" ({found['accountant']})"
    return (
        f"dp_accounting gives {recomputed:.6g} at delta {found['delta']:g}; the card states "
        f"{found['stated']:g}{by}."
    )


def _target_sentence(check: Check) -> str:
    found = check.found
    if found["asked"] is None:
        return "the run had no target epsilon."
    if found["stated"] is None:
        return f"the target was {found['asked']:g}; the card states no epsilon."
    return f"the target was {shown_epsilon(found['asked']):g}; the card states {found['stated']:g}."


def _delta_sentence(check: Check) -> str:
    found = check.found
    if found["delta"] is None:
        return "the card states no delta."
    beside = "below" if check.passed else "not below"
    return f"delta {found['delta']:g} is {beside} 1/n, n = {found['examples']:,}."


def _code_sentence(check: Check) -> str:
    found = check.found
    own = f" Code of the user: {', '.join(found['own_code'])}." if found["own_code"] else ""
    if check.passed:
        return f"The kernel here is the one of the run: SHA-256 {found['kernel']}.{own}"
    return (
        f"The run was trained by equidp {found['version']} with kernel {found['kernel']}; here are "
        f"{found['version_here']} and {found['kernel_here']}.{own}"
    )


_SENTENCES: Mapping[str, Callable[[Check], str]] = {
    "files": _files_sentence,
    "card": _card_sentence,
    "ledger": _ledger_sentence,
    "entries": _entries_sentence,
    "epsilon": _epsilon_sentence,
    "target": _target_sentence,
    "delta": _delta_sentence,
    "code": _code_sentence,
}
