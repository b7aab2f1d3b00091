"""`equidp audit`: a lower bound on epsilon, measured, beside the one that is claimed."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from equidp._files import check_folder, check_outputs, write_whole
from equidp.accounting.target import Target
from equidp.advice.advise import DEFAULT_EPSILON
from equidp.advice.chosen_plan import (
    ASKED,
    DATASET,
    RECOMMENDED,
    ChosenPlan,
    ChosenRun,
    choose_plan,
    setting_rows,
    source_to_read,
)
from equidp.audit import Audit, audit_step, audit_training
from equidp.audit.setup import Progress
from equidp.audit.training import CANARIES
from equidp.cli import options
from equidp.cli.app import command
from equidp.cli.messages import progress_bar, stoppable
from equidp.cli.settings import changes
from equidp.data import GroupedDataset
from equidp.errors import SettingError
from equidp.policies.methods import check_not_fixed
from equidp.report.audit import print_audit
from equidp.report.plan import plan_table
from equidp.training.plan import Plan

_PROCEDURES = ("step", "training")
_STEP_EPSILON = 4.0
_COMMON = ("level", "engine", "device", "seed", "directory", "fresh")
_STEP_ALONE = {"runs": 2000, "sample_rate": 1.0, "steps": 1}
_TRAINING_ALONE = {"canaries": 1000, "by": "gradient"}

app = command(
    "audit",
    "equidp audit people.csv --target income --group sex --method dpsgd-f --epsilon 4",
    "equidp audit adult --of training --model mlp --canaries 1000 --epsilon 4",
    "equidp audit adult --of training --by data --json audit.json",
)


@Parameter(name="*")
@dataclass(frozen=True)
class AuditOptions:
    """Options of the audit."""

    of: Annotated[str, Parameter(choices=_PROCEDURES)] = "step"
    """One step, taken again and again; or one whole training."""
    epsilon: float | None = None
    """The claim, which noise is calibrated to; default: 4 for a step; for a training 3, or that of the noise
    that is given or published."""
    runs: int | None = None
    """Runs with a canary of each group, and without, in audits of a step; default: 2000."""
    sample_rate: float | None = None
    """Probability of each example to be drawn, in audits of a step; default: 1, where an audit sees most."""
    steps: int | None = None
    """Number of steps in a run, in audits of a step; default: 1."""
    canaries: int | None = None
    """Number of canaries, each in with probability 1/2, in audits of a training; default: 1000."""
    by: Annotated[str | None, Parameter(choices=CANARIES)] = None
    """Canaries by gradient (white box) or by data (black box), in audits of a training; default: gradient."""
    level: float = 0.95
    """Confidence of the lower bounds."""
    engine: options.Engine = "ghost"
    device: options.Device = "cpu"
    seed: int = 0
    """Seed of the split, the canaries and the initial weights."""
    seeded: bool = False
    """Draw samples and noise from the seed too, so that the audit can be repeated to the last digit."""
    directory: Path = Path("equidp-audits")
    """Folder where what was measured is kept; a stopped audit continues from it."""
    fresh: options.Fresh = False


@app.default
def audit_command(
    data: options.Data,
    *,
    method: options.Method = "dpsgd",
    settings_from: options.Settings = RECOMMENDED,
    wanted: AuditOptions = AuditOptions(),
    json_file: options.JsonFile = None,
    config: options.Config = None,
    table: options.TableOptions = options.TableOptions(),
    plan: options.PlanOptions = options.PlanOptions(),
    settings: options.MethodOptions = options.MethodOptions(),
) -> None:
    """Measure a lower bound on epsilon with canaries in each group, beside the epsilon that is claimed.

    Settings are those that equidp train takes for the method, and are shown with their origins.
    No budget is charged: keep the results, and the folder of what was measured, to yourself.
    The exit code is 1 where the bound exceeds the claim.
    """
    check_outputs({"--json": json_file}, data, config, table.recipe)
    check_folder(wanted.directory)
    changed = changes(plan, settings, [method])
    options.check_noise([] if wanted.epsilon is None else [wanted.epsilon], changed)
    _check_procedure(wanted, changed)
    check_not_fixed(changed, method)
    source = table.open(data)
    stopped = "stopped. What was measured is kept: the same command continues from it."
    with stoppable(stopped), progress_bar() as on_progress:
        read = source_to_read(source, changed, settings_from)
        train = read.split(wanted.seed).train
        of_noise = "noise_multiplier" in changed and wanted.epsilon is None
        target = Target() if of_noise else Target(wanted.epsilon or DEFAULT_EPSILON)
        chosen = choose_plan(source, train, wanted.seed, changed, settings_from, method=method, target=target)
        if (with_features := chosen.source(read)) != read:
            train = with_features.split(wanted.seed).train
        rows = setting_rows([ChosenRun(chosen, chosen.plan.resolve(method, len(train)), targeted=False)])
        if wanted.epsilon is None and wanted.of == "training" and not _noise_is_chosen(chosen):
            wanted = replace(wanted, epsilon=DEFAULT_EPSILON)
        audit = _run_audit(train, method, chosen.plan, wanted, on_progress)
    if json_file is not None:
        write_whole(json_file, audit.to_json().encode())
    plan_table([row for row in rows if row.name != "noise_multiplier"]).print()
    print_audit(audit)
    if audit.exceeds:
        sys.exit(1)


def _noise_is_chosen(chosen: ChosenPlan) -> bool:
    """True where the user or the dataset gives the noise."""
    return chosen.origin("noise_multiplier") in (ASKED, DATASET)


def _check_procedure(wanted: AuditOptions, changed: dict[str, object]) -> None:
    """Refuse options of the other procedure."""
    others = _TRAINING_ALONE if wanted.of == "step" else _STEP_ALONE
    for name in others:
        if getattr(wanted, name) is not None:
            other = _PROCEDURES[wanted.of == "step"]
            raise SettingError(
                f"--{name.replace('_', '-')} is for audits of a {other}; give --of {other}, or leave it out."
            )
    if wanted.of == "step" and "noise_multiplier" in changed:
        raise SettingError("--noise-multiplier is for audits of a training; a step's noise is of --epsilon.")


def _run_audit(
    train: GroupedDataset, method: str, plan: Plan, wanted: AuditOptions, on_progress: Progress
) -> Audit:
    common: dict[str, Any] = {
        **{name: getattr(wanted, name) for name in _COMMON},
        "plan": plan,
        "secure": not wanted.seeded,
        "on_progress": on_progress,
    }
    if wanted.of == "step":
        runs, rate, steps = (
            _option_or_default(wanted, name, default) for name, default in _STEP_ALONE.items()
        )
        epsilon = _STEP_EPSILON if wanted.epsilon is None else wanted.epsilon
        return audit_step(train, method, epsilon=epsilon, runs=runs, sample_rate=rate, steps=steps, **common)
    count, kind = (_option_or_default(wanted, name, default) for name, default in _TRAINING_ALONE.items())
    return audit_training(train, method, epsilon=wanted.epsilon, canaries=kind, count=count, **common)


def _option_or_default(wanted: AuditOptions, name: str, default: object) -> Any:
    value = getattr(wanted, name)
    return default if value is None else value
