"""audit_step(): a lower bound on the epsilon of one private step, or a few, from many runs of it."""

from __future__ import annotations

import math
import os
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from dp_accounting import get_sigma_gaussian
from scipy.special import ndtri

from equidp._validate import check_number, check_whole
from equidp.accounting import calibrate_noise
from equidp.audit.asked import Progress, check_audit, fewest, procedure, randomness, resolve_plan, subject
from equidp.audit.bounds import Rates, noise_from_rates
from equidp.audit.draws import Arrays, check_draws
from equidp.audit.family import NoiseFamily
from equidp.audit.kept import Measurements
from equidp.audit.repeated import RepeatedRuns, Repetition
from equidp.audit.result import USEFUL, Audit, GroupBound
from equidp.audit.rules import bounds, training_runs
from equidp.data.dataset import ALL, GroupedDataset
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon as claimed_epsilon
from equidp.kernel.generators import restore_generators
from equidp.kernel.ledger import StepEvent
from equidp.kernel.policy import Policy, statistics_noise
from equidp.training.device import chosen_device
from equidp.training.plan import Plan

_BLOCK = 100


def audit_step(
    train: GroupedDataset,
    method: str | Policy = "dpsgd",
    *,
    plan: Plan | None = None,
    epsilon: float = 4.0,
    sample_rate: float = 1.0,
    steps: int = 1,
    runs: int = 2000,
    level: float = 0.95,
    engine: str = "ghost",
    device: str = "cpu",
    seed: int = 0,
    secure: bool = True,
    directory: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    on_progress: Progress | None = None,
) -> Audit:
    """Take one private step many times, with a canary and without, and bound its epsilon from below.

    An adversary who chose the canary's gradient, knows all other examples and sees what the optimizer and the
    policy see, guesses whether the canary took part. Sampler, private step, policy, engine and noise are the
    same as in training. Canaries are tried in each group. The model keeps its initial weights. Noise and
    samples of all steps are tested as well, in each parameter and for each example (`audit.draws`).

    Args:
        train: the data; a random part of b / q examples, b from the plan, takes part in the runs.
        method: a name from `METHODS`, an import path, or your own policy.
        plan: model, batch size, delta and settings of methods; default: `Plan()`.
        epsilon: the claim; noise is calibrated so that a run has this epsilon.
        sample_rate: q. At 1, every example takes part, and the audit sees most.
        steps: of one run.
        runs: number of runs with a canary in each group, and of runs without a canary.
        level: of confidence.
        engine: name of the gradient engine.
        device: where to train; a name as in `compare`. Kept results do not depend on it.
        seed: of the examples, the initial weights and, where `secure` is False, samples and noise.
        secure: draw samples and noise from the operating system.
        directory: measurements are kept here, and taken from here if data, settings and code are the same,
            also with other numbers of runs; None: nothing is kept.
        fresh: ignore measurements that are kept in `directory`; measure again.
        on_progress: called with (steps done, steps in all) from time to time.

    Returns:
        Bounds by group, which hold for all groups together at `level`, and the largest of them for "all".

    Raises:
        SettingError: invalid settings, or too few runs for a useful bound; before the first run.
        DataError, ModelError, PolicyError: see `Trainer`.

    Example:
        >>> import torch, equidp
        >>> data = equidp.GroupedDataset(torch.randn(40, 3), torch.arange(40) % 2, torch.arange(40) % 2,
        ...                              ("a", "b"), ("no", "yes"))
        >>> audit = equidp.audit_step(data, plan=equidp.Plan(batch_size=20), runs=100)
        >>> 0 < audit.bound < audit.claimed
        True
    """
    check_audit(level, seed)
    place = chosen_device(device)
    train = train.to("cpu") if isinstance(train, GroupedDataset) else train  # others are refused
    check_number("(0, 1]", ", a probability", sample_rate=sample_rate)
    check_whole(1, steps=steps, runs=runs)
    asked = resolve_plan(Plan() if plan is None else plan, method, train, len(train), None)
    examples = round(asked.plan.batch_size / sample_rate)
    if examples > len(train):
        raise SettingError(
            f"batch size {asked.plan.batch_size} at sample rate {sample_rate:g} takes {examples} examples, "
            f"and there are {len(train)}; choose a smaller batch size."
        )
    noise = _noise(epsilon, asked.delta, sample_rate, steps, asked.policy.statistics_ratio)
    event = StepEvent(float(sample_rate), noise, statistics_noise(asked.policy, noise))
    family, delta = NoiseFamily([(event, steps)]), asked.delta
    claimed = claimed_epsilon(family.entries, delta)
    corrected = 1 - (1 - level) / train.num_groups
    _check_runs(family, claimed, runs, delta, corrected)
    generator = np.random.default_rng([seed, examples])
    others = train.subset(torch.from_numpy(generator.choice(len(train), examples, replace=False)))
    model, measuring = subject(asked, others, engine, seed, place)
    repetition = Repetition(model, measuring, others, asked, event, steps)
    facts: dict[str, Any] = {
        "method": asked.method,
        "model": asked.plan.model_name,
        "batch_size": asked.plan.batch_size,
        "sample_rate": float(sample_rate),
        "steps": steps,
        "noise_multiplier": noise,
        "engine": engine,
        "seed": seed,
        "secure": secure,
    }
    kept = Measurements(directory, facts, asked, others, fresh=fresh)
    repeated = RepeatedRuns(repetition, generator)
    taken, stretches = _take(repeated, runs, kept, secure, seed, on_progress)
    found = [bounds(taken(group), family, delta, corrected) for group in range(train.num_groups)]
    rows = [GroupBound(name, 2 * runs, *bound) for name, bound in zip(train.group_names, found, strict=True)]
    largest = (max(each[place] for each in found) for place in range(2))
    rows.append(GroupBound(ALL, (1 + train.num_groups) * runs, *largest))
    settings = {**facts, "runs": runs, "canaries": "gradient"}
    draws = check_draws(stretches, repeated.tensors, float(sample_rate))
    return Audit(procedure(steps, train), asked.method, claimed, delta, level, tuple(rows), settings, draws)


def _noise(epsilon: float, delta: float, rate: float, steps: int, ratio: float | None) -> float:
    """Noise multiplier of an epsilon; in closed form where all steps together are one Gaussian mechanism."""
    check_number("(0, inf)", epsilon=epsilon)
    if rate < 1:
        return calibrate_noise(epsilon, delta, rate, steps, ratio)
    joint = float(get_sigma_gaussian(epsilon, delta)) * math.sqrt(steps)
    return joint if ratio is None else joint * math.hypot(1.0, 1 / ratio)


def _take(
    repeated: RepeatedRuns,
    runs: int,
    kept: Measurements,
    secure: bool,
    seed: int,
    on_progress: Progress | None,
) -> tuple[Any, list[Arrays]]:
    """Take all runs; return a function from a group to the features with its canary and without, and the
    draws of each block of runs."""
    subject = repeated.repetition
    sides = [None, *range(subject.others.num_groups)]
    total, done = len(sides) * runs * subject.steps, 0

    def take(side: int, block: int, size: int) -> npt.NDArray[np.float64]:
        with nullcontext() if secure else restore_generators():
            if not secure:  # the model's own draws, such as dropout
                torch.manual_seed(1_000_003 * side + block)
            rows = repeated.features(size, sides[side], randomness(secure, seed, side, block))
        drawn[side, block] = repeated.draws
        kept.put(f"draws-{side}-{block}", repeated.draws)
        return rows

    rows, drawn = [], {}
    for side in range(len(sides)):
        series = []
        for block in range(-(-runs // _BLOCK)):
            series.append(kept.rows(f"side-{side}-{block}", lambda: take(side, block, _BLOCK)))  # noqa: B023
            if (side, block) not in drawn and (before := kept.get(f"draws-{side}-{block}")) is not None:
                drawn[side, block] = before
            done += min(_BLOCK, runs - block * _BLOCK) * subject.steps
            if on_progress is not None:
                on_progress(done, total)
        rows.append(np.concatenate(series)[:runs])
    taken = lambda group: (repeated.split(rows[1 + group]), repeated.split(rows[0], group))  # noqa: E731
    return taken, list(drawn.values())


def _check_runs(family: NoiseFamily, claimed: float, runs: int, delta: float, level: float) -> None:
    """Check that the runs are enough for a bound of at least a tenth of a tight claim."""
    if _expected_bound(family, runs, delta, level) >= USEFUL * claimed:
        return
    needed = fewest(runs, lambda number: _expected_bound(family, number, delta, level) >= USEFUL * claimed)
    if needed is None:
        raise SettingError(
            f"{runs} runs say nothing about epsilon {claimed:.3g} at this sample rate, and ten million would "
            "not; audit at sample rate 1."
        )
    raise SettingError(
        f"{runs} runs are too few to say anything: a step that has all of epsilon {claimed:.3g} would get a "
        f"lower bound below a tenth of it. {needed} are enough."
    )


def _expected_bound(family: NoiseFamily, runs: int, delta: float, level: float) -> float:
    """Expected bound where the claim is tight."""
    counted = runs - training_runs(runs)
    best, chosen = -np.inf, None
    for rate in (0.5, 0.3, 0.1, 0.03, 0.01, 0.003, 0.001):
        guessed = Rates(
            round(counted * float(family.reach(1.0, rate))), counted, round(counted * rate), counted
        )
        found, false = guessed.limits(level)
        if found > false and (mu := ndtri(found) - ndtri(false)) > best:
            best, chosen = mu, guessed
    return 0.0 if chosen is None else noise_from_rates(chosen, family, delta, level)
