"""`equidp verify`: whether a run's files agree and give the epsilon on its card, or what a ledger says."""

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
from equidp.ledger.ledger import Ledger
from equidp.report.guarantee import ledger_lines
from equidp.runs.folder import CARD, MODEL, RUN
from equidp.runs.verify import Check, verify

app = command(
    "verify", "equidp verify run", "equidp verify run --json checks.json", "equidp verify people.ledger"
)


@app.default
def verify_command(
    run: Annotated[
        Path, Parameter(help="A folder that equidp train made, a copy of its share/, or a ledger's file.")
    ],
    /,
    *,
    json_file: options.JsonFile = None,
) -> None:
    """Check a finished run: checksums, ledger, epsilon by dp_accounting alone, and the kernel's code.

    It loads no code and no weights from the folder. The exit code is 1 if a check fails.
    For a ledger, it prints what each run spent and the total, with dp_accounting's line for it.
    """
    check_outputs({"--json": json_file}, run)
    if run.is_file():
        print(f"{run}:", *ledger_lines(Ledger.read(run)), sep="\n")
        return
    verified = verify(run)
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
    if failed := verified.failed:
        print(f"{count_text(len(failed), 'check')} failed: {', '.join(failed)}.")
        sys.exit(1)


_WORDS = {True: "passed", False: "FAILED", None: "not checked"}
_OPEN = "What no file can show:"
_UNSEEN = (
    "that this code ran as it is: equidp.audit_step measures a lower bound on epsilon;",
    "that the files were not all rewritten: compare the checksum of SHA256SUMS with one noted elsewhere;",
    "that no other run read the same data: a ledger has the runs that were given it.",
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
        return f"{CARD} is not there."
    names = "names" if check.passed else "does not name"
    return f"{CARD} {names} the checksum of {MODEL}."


def _ledger_sentence(check: Check) -> str:
    found = check.found
    if check.passed is None:
        return "these files are a copy without the ledger."
    if not check.passed:
        return str(found.get("error", f"{CARD} does not name its last line of run {found.get('run')}."))
    limit = "" if found["limit"] is None else f" of a limit of {found['limit'][0]:g}"
    return (
        f"whole, with {count_text(found['runs'], 'run')}; this one is {found['run']}, up to checksum "
        f"{found['last']}. All steps together: epsilon {found['epsilon']:.6g}{limit} at delta "
        f"{found['delta']:g}, by Renyi divergences of order {found['order']:g}, "
        f"which bound it more loosely than privacy loss distributions; dp_accounting gives the same by "
        f"{found['code']}."
    )


def _entries_sentence(check: Check) -> str:
    found = check.found
    releases = f", and releases: {', '.join(found['releases'])}" if found["releases"] else ""
    spent = f"{count_text(found['steps'], 'step')}{releases}; the plan had {found['planned']:,}."
    if check.passed is None:
        return f"{RUN} says {spent}"
    if check.passed:
        return f"{RUN} and ledger say {spent}"
    return f"{RUN} says {spent} The ledger says something else."


def _epsilon_sentence(check: Check) -> str:
    found = check.found
    recomputed, epsilon, delta = found["recomputed"], found["epsilon"], found["delta"]
    stated = ", ".join(f"({each:g}, {at:g})" for each, at in found["statements"]) or "no guarantee"
    if math.isinf(recomputed):
        return f"No noise: no epsilon follows, and the card states {stated}."
    by = "" if found["accountant"] == "pld" else f" ({found['accountant']})"
    says = "no epsilon" if epsilon is None else f"{epsilon:.6g}{by}"
    return f"dp_accounting gives {recomputed:.6g} at delta {delta:g}; {RUN} says {says}, the card {stated}."


def _target_sentence(check: Check) -> str:
    found = check.found
    if found["asked"] is None:
        return "the run had no target epsilon."
    if found["epsilon"] is None:
        return f"the target was {found['asked']:g}; the run has no epsilon."
    return (
        f"the target was {shown_epsilon(found['asked']):g}; the run has {shown_epsilon(found['epsilon']):g}."
    )


def _delta_sentence(check: Check) -> str:
    found = check.found
    if check.passed is None:
        return "the run has no epsilon, and so no delta."
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
