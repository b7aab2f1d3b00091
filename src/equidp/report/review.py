"""Source files that an auditor of a run reads."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from equidp.training.release import RELEASES, release_class
from equidp.training.run import Run

_RELEASE_FILES = ("accounting/planned.py", "training/release.py", "runs/begin.py", "runs/releases/")
_ENGINE_FILES = {
    "GhostEngine": ("engines/ghost.py", "engines/layers/"),
    "FunctionalEngine": ("engines/functional.py",),
}
_EVERY_RUN: dict[str, tuple[str, ...]] = {
    "each step, its noise, the record and epsilon": ("kernel/",),
    "the record, and what all runs in it spent": ("ledger/",),
    "norms and sums of gradients": ("engines/check.py", "engines/model.py"),
    "which rows a sample holds, and their losses": (
        *("training/trainer.py", "training/loading.py", "training/collation.py"),
        *("data/dataset.py", "losses.py"),
    ),
    "what this page states": ("training/run.py", "report/guarantee.py"),
    "attack risk, and epsilon for replacing an example or for several": (
        *("accounting/risk.py", "accounting/replacement.py"),
        "accounting/rows.py",
    ),
}
_BY_GROUP = (
    *("accounting/groups.py", "accounting/calibration.py"),
    *("training/plan.py", "training/resolved.py", "training/assemble.py"),
)
_PROTOTYPES = (
    *("policies/prototypes.py", "policies/table.py"),
    *("models.py", "losses.py", "data/efficientnet.py"),
)


def files_to_review(
    run: Run, releases: Collection[str], *, further: Mapping[str, Sequence[str]] | None = None
) -> dict[str, str]:
    """Return the files of `src/equidp` that an auditor of this run reads, by the reason to read them.

    docs/guarantees.md has what the kernel trusts. The first five rows are all of it for a run on single rows
    in one process, with equal groups and no releases other than its steps.

    Args:
        run: the finished run.
        releases: names of its releases other than steps.
        further: files of releases by name.
    """
    facts = run.facts
    files: dict[str, tuple[str, ...]] = dict(_EVERY_RUN)
    engine = (f"the code of {facts.engine}, which was given to the trainer",)
    why = "norms and sums of gradients"
    files[why] = (*_ENGINE_FILES.get(facts.engine, engine), *files[why])
    if any(event.shares for event, _ in run.entries):
        files["rates and bounds by group"] = _BY_GROUP
    method = facts.method.get("method", "") if facts.plan is None else facts.plan.method
    if method == "prototypes":
        files["prototypes"] = _PROTOTYPES
    if facts.rows is not None:
        files["people as examples"] = ("data/people.py", "engines/units.py")
    # Estimators and loops of the user draw releases of these names too.
    audited: dict[str, Sequence[str]] = {
        name: release_class(name).audited for name in releases if name in RELEASES
    }
    audited |= further or {}
    for name in releases:
        if name in audited:
            files[name] = (*audited[name], *_RELEASE_FILES)
    if facts.processes > 1:
        files["several processes"] = ("kernel/processes.py",)
    return {why: ", ".join(names) for why, names in files.items()}
