"""Source files of equidp that hold the guarantee of a run, for its auditor."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from equidp.accounting.planned import COUNTS, INDIVIDUAL, PREPROCESSING, RECALIBRATION
from equidp.kernel.ledger import ChoiceEvent
from equidp.training.run import Run

_RELEASE = ("accounting/planned.py", "runs/begin.py", "runs/train.py", "runs/releases/")
_OF_RELEASES: Mapping[str, Sequence[str]] = {
    PREPROCESSING: ("tables/release.py", "tables/private_encode.py"),
    COUNTS: ("tables/release.py",),
    RECALIBRATION: ("training/recalibration.py",),
    INDIVIDUAL: ("individual/",),
}
"""Files of releases of equidp's own, which estimators and loops of one's own draw too."""
_PEOPLE = ("data/people.py", "engines/units.py")
_CHOICE = ("runs/experimental/private_choice.py", "tables/release.py")
_ENGINES = {
    "GhostEngine": "engines/ghost.py, engines/layers/",
    "FunctionalEngine": "engines/functional.py",
}
_PROCESSES = ("distributed/", "training/together.py")
_BUDGET = ("accounting/budget.py", "accounting/limit.py")


def audited_files(
    run: Run,
    releases: Collection[str],
    *,
    in_budget: bool = False,
    further: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, str]:
    """Return the files of `src/equidp` that an auditor of this run reads: reason -> files, with commas.

    docs/guarantees.md has what the kernel trusts; the first three rows are the whole of it for a run on
    single rows in one process, without releases beside its steps.

    Args:
        run: the finished run.
        releases: names of releases in addition to its steps.
        in_budget: True where a budget limits the run.
        further: files of releases by name.
    """
    facts = run.facts
    engine = _ENGINES.get(facts.engine, f"the code of {facts.engine}, which was given to the trainer")
    files = {
        "each step, its noise, the record and epsilon": ("kernel/",),
        "the record on disk": ("ledger/",),
        "norms and sums of gradients": (
            engine,
            "engines/measurement.py",
            "engines/failures.py",
            "training/trainer.py",
        ),
    }
    if facts.rows is not None:
        files["people as examples"] = _PEOPLE
    of_releases = {**_OF_RELEASES, **(further or {})}
    for name in releases:
        if name in of_releases:
            files[name] = (*of_releases[name], *_RELEASE)
    if any(isinstance(event, ChoiceEvent) for event, _ in run.entries):
        files["a private choice of settings"] = _CHOICE
    if facts.processes > 1:
        files["several processes"] = _PROCESSES
    if in_budget:
        files["the budget"] = _BUDGET
    return {why: ", ".join(names) for why, names in files.items()}
