"""audit_training(): a lower bound on the epsilon of a whole training, from one run with many canaries."""

from __future__ import annotations

import os
import warnings
from contextlib import nullcontext
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from equidp._validate import check_number, check_whole, unknown_name
from equidp.audit.asked import Progress, check_audit, procedure, resolve_plan, subject
from equidp.audit.canary import Directions, with_canaries, with_wrong_labels
from equidp.audit.draws import DrawFinding, check_draws
from equidp.audit.family import NoiseFamily
from equidp.audit.guesses import check_canaries, equal_gaussian, guess_bound
from equidp.audit.kept import Measurements
from equidp.audit.result import Audit
from equidp.audit.watched import GradientWatch, LossWatch, WatchedTraining
from equidp.data.dataset import ALL, GroupedDataset
from equidp.errors import ApproximationWarning
from equidp.kernel.engine import Engine
from equidp.kernel.epsilon import epsilon as claimed_epsilon
from equidp.kernel.generators import restore_generators
from equidp.kernel.ledger import StepEvent
from equidp.kernel.policy import Policy, statistics_noise
from equidp.training.device import chosen_device
from equidp.training.plan import Plan

CANARIES = {"gradient": 1.0, "data": 0.5}
"""Kind -> the expected strength of its attack, as a share of what the claim allows.

gradient: gradients of one entry, seen in each released gradient (white box). data: rows with a wrong label,
seen in the final model's losses (black box).
"""


def audit_training(
    train: GroupedDataset,
    method: str | Policy = "dpsgd",
    *,
    plan: Plan | None = None,
    epsilon: float | None = None,
    canaries: str = "gradient",
    count: int = 1000,
    level: float = 0.95,
    engine: str = "ghost",
    device: str = "cpu",
    seed: int = 0,
    secure: bool = True,
    directory: str | os.PathLike[str] | None = None,
    fresh: bool = False,
    on_progress: Progress | None = None,
    checkpoint_seconds: float = 30.0,
) -> Audit:
    """Train once with many canaries, each of them in with probability 1/2, and bound epsilon from below.

    An adversary guesses which canaries were in, for the canaries it is surest of (Steinke, Nasr and Jagielski
    2023; Mahloujifar, Melis and Chaudhuri 2024). Sampler, private step, policy, engine, noise and optimizer
    are the same as in training. Sample rate and batch size follow from a public n, which counts all
    canaries, so that they do not reveal how many are in. Where canaries are gradients, noise and samples of
    the steps are tested as well (`audit.draws`).

    Args:
        train: the data, all of which is trained on.
        method: a name from `METHODS`, an import path, or your own policy.
        plan: how to train; default: `Plan()`.
        epsilon: the claim, to which noise is calibrated; None: the epsilon of the plan's noise multiplier.
        canaries: a name from `CANARIES`: "gradient" (white box) or "data" (black box).
        count: m, the number of canaries, spread over the groups.
        level: of confidence.
        engine: name of the gradient engine.
        device: where to train; a name as in `compare`. Kept results do not depend on it.
        seed: of the canaries, the initial weights and, where `secure` is False, everything else.
        secure: draw samples, noise and the canaries that are in from the operating system.
        directory: the state of training is kept here every `checkpoint_seconds`, and the scores at the end; a
            stopped audit continues from it. None: nothing is kept.
        fresh: ignore results that are kept in `directory`; train and measure again.
        on_progress: called with (steps done, steps in all) from time to time.

    Returns:
        Bounds by group, which hold for all groups together at `level`, and for all canaries at `level`.

    Raises:
        SettingError: invalid settings, or too few canaries for a useful bound; before the first step.
        DataError, ModelError, PolicyError: see `Trainer`.

    Example:
        >>> import torch, equidp
        >>> data = equidp.GroupedDataset(torch.randn(80, 50), torch.arange(80) % 2, torch.arange(80) % 2,
        ...                              ("a", "b"), ("no", "yes"))
        >>> plan = equidp.Plan(batch_size=180, epochs=2, noise_multiplier=1.0)
        >>> audit = equidp.audit_training(data, plan=plan, count=100)
        >>> audit.bound < audit.claimed
        True
    """
    check_audit(level, seed)
    place = chosen_device(device)
    train = train.to("cpu") if isinstance(train, GroupedDataset) else train  # others are refused
    check_whole(1, " canaries", count=count)
    check_number("[0, inf]", checkpoint_seconds=checkpoint_seconds)
    if canaries not in CANARIES:
        raise unknown_name("kind of canaries", canaries, CANARIES)
    asked = resolve_plan(Plan() if plan is None else plan, method, train, len(train) + count, epsilon)
    noise = asked.noise_multiplier
    event = StepEvent(asked.sample_rate, noise, statistics_noise(asked.policy, noise))
    family, delta = NoiseFamily([(event, asked.steps)]), asked.delta
    claimed = claimed_epsilon(family.entries, delta)
    mu = equal_gaussian(claimed, delta)
    check_canaries(count, claimed, mu, delta, level)
    facts: dict[str, Any] = {
        **{name: value for name, value in asked.settings.items() if name != "policy"},
        "canaries": canaries,
        "count": count,
        "engine": engine,
        "seed": seed,
        "secure": secure,
    }
    kept = Measurements(directory, facts, asked, train, fresh=fresh)
    groups = torch.arange(count) % train.num_groups
    model, measuring = subject(asked, train, engine, seed, place)
    everyone, watch = _watch(canaries, train, groups, model, measuring, np.random.default_rng([seed, count]))
    inside = _coins(kept, count, None if secure else [seed, 1])
    training = WatchedTraining(asked, event, model, everyone, inside, watch, secure, seed)
    with nullcontext() if secure else restore_generators():
        if not secure:  # the model's own draws, such as dropout
            torch.manual_seed(seed)
        scores = kept.rows("scores", lambda: training.scores(kept, on_progress, checkpoint_seconds))
    draws = _failed_draws(kept, training)
    attack, corrected = mu * CANARIES[canaries], 1 - (1 - level) / train.num_groups
    rows = []
    for group, name in enumerate(train.group_names):
        own = groups.numpy() == group
        if own.any():
            rows.append(guess_bound(name, scores[own], inside[own], family, attack, delta, corrected))
    rows.append(guess_bound(ALL, scores, inside, family, attack, delta, level))
    audited = f"training of {procedure(asked.steps, train)}"
    return Audit(audited, asked.method, claimed, delta, level, tuple(rows), facts, draws)


def _failed_draws(kept: Measurements, training: WatchedTraining) -> tuple[DrawFinding, ...]:
    """Return the tests that noise and samples failed; where the scores were kept, the kept tests."""
    if training.draws and isinstance(training.watch, GradientWatch):
        found = check_draws(training.draws, training.watch.tensors, training.event.sample_rate)
        kept.put("draws", {"failed": np.array([[*map(str, astuple(each))] for each in found])})
        return found
    before = kept.get("draws")
    failed = () if before is None else before["failed"]
    return tuple(DrawFinding(str(test), str(place), float(p_value)) for test, place, p_value in failed)


def _watch(
    kind: str,
    train: GroupedDataset,
    groups: torch.Tensor,
    model: nn.Module,
    measuring: Engine,
    generator: np.random.Generator,
) -> tuple[GroupedDataset, GradientWatch | LossWatch]:
    """Return the data with all canaries after it, and the watch that scores them."""
    if kind == "gradient":
        size = sum(each.numel() for each in model.parameters() if each.requires_grad)
        if len(groups) > size:
            warnings.warn(
                f"{len(groups):,} canaries share the model's {size:,} parameters and hide each other, so the "
                "bound will be far too low; audit a step (--of step, audit_step), or take fewer canaries or "
                "a larger model.",
                ApproximationWarning,
                stacklevel=3,
            )
        directions = Directions.single(len(groups), size, generator)
        watch = GradientWatch(measuring, model, directions, groups, train.num_classes)
        return with_canaries(train, groups), watch
    everyone = with_wrong_labels(train, groups, generator)
    canaries = everyone.subset(torch.arange(len(train), len(everyone)))
    return everyone, LossWatch(measuring, model, canaries)


def _coins(kept: Measurements, count: int, seed: list[int] | None) -> npt.NDArray[np.bool_]:
    """True for canaries that are in, [m]: probability 1/2 each, the same where a stopped audit continues."""
    drawn = kept.rows("coins", lambda: np.random.default_rng(seed).random(count))
    return drawn < 0.5
