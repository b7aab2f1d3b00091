"""audit_training(): a lower bound on the epsilon of a whole training, from one run with many canaries."""

from __future__ import annotations

import os
import time
import warnings
from contextlib import nullcontext
from dataclasses import astuple, dataclass, field
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equidp._validate import check_number, check_whole, unknown_name
from equidp.audit.bounds import NoiseFamily
from equidp.audit.canary import (
    CanaryEngine,
    Directions,
    best_norms,
    log_likelihood_ratio,
    with_canaries,
    with_wrong_labels,
)
from equidp.audit.draws import Arrays, DrawFinding, DrawRecord, check_draws
from equidp.audit.guesses import check_canaries, equal_gaussian, guess_bound
from equidp.audit.result import Audit
from equidp.audit.setup import (
    Measurements,
    Progress,
    check_audit,
    checked_data,
    make_randomness,
    make_subject,
    procedure_text,
    resolve_plan,
)
from equidp.data.dataset import ALL, GroupedDataset
from equidp.distributed.group import alone
from equidp.engines.model import flat
from equidp.engines.units import reader_of
from equidp.errors import ApproximationWarning, SettingError
from equidp.evaluation.predictions import predict
from equidp.kernel.engine import Engine
from equidp.kernel.epsilon import epsilon as claimed_epsilon
from equidp.kernel.generators import restore_generators
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.noise import to_double
from equidp.kernel.policy import Policy, copy_state
from equidp.policies.weights import step_weights
from equidp.training.build import build
from equidp.training.checkpoint import restore_state, trainer_state
from equidp.training.device import chosen_device
from equidp.training.plan import FILTER_OPTIONS, GROUP_OPTIONS, LOSS_OPTIONS, Plan, ResolvedPlan
from equidp.training.trainer import Trainer

CANARIES = {"gradient": 1.0, "data": 0.5}
"""Kind -> the expected strength of its attack, as a share of what the claim allows.

gradient: gradients of one entry, seen in each released gradient (white box). data: rows with a wrong label,
seen in the final model's losses (black box).
"""


@alone()
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

    In a group of torch.distributed, each process audits for itself.

    Args:
        train: the data, all of which is trained on.
        method: a name from `METHODS`, an import path, or your own policy.
        plan: how to train; default: `Plan()`.
        epsilon: the claim, to which noise is calibrated; None: the epsilon of the plan's noise multiplier.
        canaries: a name from `CANARIES`: "gradient" (white box) or "data" (black box).
        count: m, the number of canaries, spread over the groups.
        level: of confidence.
        engine: name of the gradient engine.
        device: where to train; a name as in `compare`. Stored results do not depend on it.
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
    train = checked_data(train)
    check_whole(1, " canaries", count=count)
    check_number("[0, inf]", checkpoint_seconds=checkpoint_seconds)
    if canaries not in CANARIES:
        raise unknown_name("kind of canaries", canaries, CANARIES)
    plan = Plan() if plan is None else plan
    if by_group := plan.for_method(method).groups:
        raise SettingError(
            f"an audit of a training has one claim for all groups; leave out {by_group.field}, or audit a "
            "step (audit_step, --of step), whose groups have claims of their own.",
            field=by_group.field,
        )
    asked = resolve_plan(plan, method, train, len(train) + count, epsilon)
    event = asked.step_event()
    family, delta = NoiseFamily([(event, asked.steps)]), asked.delta
    claimed = claimed_epsilon(family.entries, delta)
    mu = equal_gaussian(claimed, delta)
    check_canaries(count, claimed, mu, delta, level)
    left_out = ("policy", *GROUP_OPTIONS, *LOSS_OPTIONS, *FILTER_OPTIONS)
    facts: dict[str, Any] = {
        **{name: value for name, value in asked.settings.items() if name not in left_out},
        "canaries": canaries,
        "count": count,
        "engine": engine,
        "seed": seed,
        "secure": secure,
    }
    kept = Measurements(directory, facts, asked, train, fresh=fresh)
    groups = torch.arange(count) % train.num_groups
    model, measuring = make_subject(asked, train, engine, seed, place)
    everyone, watch = _make_watch(
        canaries, train, groups, model, measuring, np.random.default_rng([seed, count])
    )
    inside = _draw_coins(kept, count, None if secure else [seed, 1])
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
    audited = f"training of {procedure_text(asked.steps, train)}"
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


def _make_watch(
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


def _draw_coins(kept: Measurements, count: int, seed: list[int] | None) -> npt.NDArray[np.bool_]:
    """True for canaries that are in, [m]: probability 1/2 each, the same where a stopped audit continues."""
    drawn = kept.rows("coins", lambda: np.random.default_rng(seed).random(count))
    return drawn < 0.5


_SAVED = "training"
_STRETCH = 200
"""Steps whose noise and samples are added up together."""


@final
class GradientWatch:
    """Sums log likelihood ratios of released gradients with a canary's gradient and without it (white box).

    Args:
        engine: measures all examples but the canaries.
        model: the trained model.
        directions: of the canaries' gradients, [m, parameters].
        groups: of the canaries, [m].
        classes: number of classes.

    Attributes:
        tensors: name of each tensor of parameters -> number of parameters.
        noise: of the last step, in units of the claimed standard deviation, [parameters].
    """

    def __init__(
        self, engine: Engine, model: nn.Module, directions: Directions, groups: Tensor, classes: int
    ) -> None:
        trained = {name: each for name, each in model.named_parameters() if each.requires_grad}
        self.parameters = list(trained.values())
        self.tensors = {name: each.numel() for name, each in trained.items()}
        self.noise = np.zeros(sum(self.tensors.values()))
        self.directions, self.groups = directions, groups
        self.engine = CanaryEngine(engine, self.parameters, directions, torch.ones(len(groups)), classes)
        self.total = torch.zeros(len(groups), dtype=torch.float64)
        self._by_group: Tensor | None = None

    def choose_norms(self, trainer: Trainer) -> None:
        """Give canaries the norms at which the policy, in its first state, uses most of its sensitivity."""
        assert trainer.num_groups is not None
        self._by_group = best_norms(trainer.policy, trainer.policy_state, trainer.num_groups)
        self.engine.norms = self._by_group[self.groups]

    def after_step(self, trainer: Trainer) -> None:
        """Add the private gradient in `p.grad` to the scores."""
        assert self._by_group is not None
        background, total = self.engine.take_sums()
        policy, state = trainer.policy, trainer.weights_state
        sensitivity = float(policy.sensitivity(copy_state(state)))
        known = torch.arange(len(self._by_group))
        weights = step_weights(policy, state, self._by_group, known)
        shares = ((weights * self._by_group).double() / sensitivity)[self.groups]
        gradient = flat([each.grad for each in self.parameters], self.parameters)
        event = trainer.event
        released = to_double(gradient) * trainer.expected_batch_size
        noise = released if total is None else released - total.to(released)
        self.noise = (noise / (event.noise_multiplier * sensitivity)).cpu().numpy()
        seen = (self.directions.along(gradient) * trainer.expected_batch_size - background) / sensitivity
        ratio = log_likelihood_ratio(seen.numpy(), shares.numpy(), event.noise_multiplier, event.sample_rate)
        self.total += torch.from_numpy(ratio)

    def scores(self) -> Tensor:
        """Scores of the canaries, [m]; higher means "in"."""
        return self.total


@final
class LossWatch:
    """Compares the canaries' losses before and after training (black box).

    Args:
        engine: measures all examples.
        model: the trained model.
        canaries: the examples whose losses are compared.
    """

    def __init__(self, engine: Engine, model: nn.Module, canaries: GroupedDataset) -> None:
        self.engine, self.model, self.canaries = engine, model, canaries
        self.total = self._losses()

    def after_step(self, trainer: Trainer) -> None:
        """Do nothing: a black-box adversary sees the released model alone."""

    def scores(self) -> Tensor:
        """Decrease of each canary's loss, [m]."""
        return (self.total - self._losses()).nan_to_num(nan=0.0)

    def _losses(self) -> Tensor:
        loss = self.canaries.training_loss()
        outputs = predict(reader_of(self.model, loss), self.canaries.inputs)
        return loss(outputs.double(), self.canaries.trained_targets)


@final
@dataclass(frozen=True)
class WatchedTraining:
    """One training whose canaries are scored.

    Attributes:
        plan: how to train.
        event: of one step.
        model: trained in place.
        everyone: all examples, the canaries last.
        inside: which canaries take part, [m].
        watch: scores them.
        secure, seed: of samples and noise.
        draws: noise and samples (`DrawRecord.arrays`) of the steps that this process took.
    """

    plan: ResolvedPlan
    event: StepEvent
    model: nn.Module
    everyone: GroupedDataset
    inside: npt.NDArray[np.bool_]
    watch: GradientWatch | LossWatch
    secure: bool
    seed: int
    draws: list[Arrays] = field(default_factory=list)

    def scores(
        self, kept: Measurements, on_progress: Progress | None, checkpoint_seconds: float
    ) -> npt.NDArray[np.float64]:
        """Train, from the state that an earlier start saved, and return the canaries' scores, [m]."""
        saved = kept.load(_SAVED)
        trainer = self._trainer(*(() if saved is None else (saved["run"], int(saved["steps"]))))
        if isinstance(self.watch, GradientWatch):
            self.watch.choose_norms(trainer)
        if saved is not None:
            restore_state(trainer, saved)
            self.watch.total = saved["total"]
        steps, last = trainer.steps, time.monotonic()
        for taken, batch in enumerate(trainer.batches()):
            trainer.step(batch)
            self.watch.after_step(trainer)
            done = trainer.steps_done
            if isinstance(self.watch, GradientWatch):
                if taken % _STRETCH == 0:
                    record = DrawRecord(self.watch.tensors, trainer.num_examples, trainer.sample_rate)
                record.note(self.watch.noise, batch.indices.cpu().numpy())
                if (taken + 1) % _STRETCH == 0 or done == steps:
                    self.draws.append(record.arrays())
            if on_progress is not None:
                on_progress(done, steps)
            if time.monotonic() - last >= checkpoint_seconds:
                kept.save(_SAVED, {**trainer_state(trainer), "total": self.watch.total})
                last = time.monotonic()
        if isinstance(self.watch, LossWatch):
            self.watch.model = trainer.released_model
        return np.asarray(self.watch.scores().numpy())

    def _trainer(self, run: str = "", done: int = 0) -> Trainer:
        """Trainer of the examples that take part, at the sample rate of all, after `done` steps of a run."""
        return build(
            self.plan,
            self._data(),
            seed=self.seed,
            secure=self.secure,
            model=self.model,
            engine=self.watch.engine,
            ledger=MemoryLedger(((self.event, done),), run),
            randomness=make_randomness(self.secure, self.seed, 2, done),
            sample_rate=self.event.sample_rate,
        )

    def _data(self) -> GroupedDataset:
        """Return the examples that take part: all but the canaries, and the canaries that are in."""
        first = len(self.everyone) - len(self.inside)
        chosen = np.concatenate([np.arange(first), first + np.flatnonzero(self.inside)])
        return self.everyone.subset(torch.from_numpy(chosen))
