"""audit_step(): a lower bound on the epsilon of one private step, or a few, from many runs of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from equidp._validate import check_number, check_seed, check_whole
from equidp.accounting.risk import Floats
from equidp.audit.canary import CanaryEngine, best_norms, log_likelihood_ratio
from equidp.audit.guesses import Bounds, Features, compute_bounds
from equidp.audit.result import Audit, GroupBound
from equidp.data.dataset import ALL, GroupedDataset
from equidp.engines.model import flat, flat_sums
from equidp.errors import DataError, SettingError
from equidp.evaluation.intervals import check_level
from equidp.kernel.bounding import SMALLEST_NORM
from equidp.kernel.epsilon import epsilon as claimed_epsilon
from equidp.kernel.event import Event, EventCounts, Label
from equidp.kernel.generators import restore_generators
from equidp.kernel.inputs import moved_to
from equidp.kernel.noise import Randomness, SeededRandomness, SystemRandomness
from equidp.kernel.policy import Policy
from equidp.policies.methods import MethodLike
from equidp.policies.weights import sensitivity_of, step_weights
from equidp.training.build import build_model
from equidp.training.device import chosen_device
from equidp.training.plan import Plan
from equidp.training.processes import alone
from equidp.training.resolved import ResolvedPlan
from equidp.training.trainer import Trainer


@alone()
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
    engine: str = "auto",
    device: str = "cpu",
    seed: int = 0,
    secure: bool = True,
) -> Audit:
    """Take one private step many times, with a canary and without, and bound its epsilon from below.

    An adversary guesses whether the canary took part. The adversary chose the canary's gradient, knows all
    other examples, and sees what the optimizer and the policy see. Sampler, private step, policy, engine and
    noise are the same as in training. Canaries are tried in each group. The model keeps its initial weights.

    In a group of torch.distributed, each process audits for itself.

    Args:
        train: training data. A random part of b / q examples, with b from the plan, takes part in the runs.
        method: name from `METHODS`, import path, or your own policy.
        plan: model, batch size, delta and settings of methods. Default: `Plan()`.
        epsilon: claimed epsilon, to which the noise is calibrated. Groups with other rates or bounds have
            their own.
        sample_rate: sampling rate q. At 1, every example takes part, and the audit sees most.
        steps: number of steps of one run.
        runs: number of runs with a canary in each group, and of runs without a canary, at least 20.
        level: confidence level.
        engine: name of the gradient engine.
        device: device for training, named as in `compare`.
        seed: seed of the examples, the initial weights and, if `secure` is False, samples and noise.
        secure: whether to draw samples and noise from the operating system.

    Returns:
        Bounds by group, which hold for all groups together at `level`, and the largest of them for "all".

    Raises:
        SettingError, DataError, ModelError, PolicyError: see `Trainer`.

    Example:
        >>> import torch, equidp
        >>> data = equidp.GroupedDataset(torch.randn(40, 3), torch.arange(40) % 2, torch.arange(40) % 2,
        ...                              ("a", "b"), ("no", "yes"))
        >>> audit = equidp.audit_step(data, plan=equidp.Plan(batch_size=20), runs=100)
        >>> 0 < audit.bound < audit.claimed
        True
    """
    check_level(level)
    check_seed(seed)
    check_number("(0, inf)", epsilon=epsilon)
    check_number("(0, 1]", ", a probability", sample_rate=sample_rate)
    check_whole(1, steps=steps)
    check_whole(20, runs=runs)
    place = chosen_device(device)
    if not isinstance(train, GroupedDataset) or not len(train):
        raise DataError(
            f"train is a {type(train).__name__} without examples; expected an equidp.GroupedDataset.",
            field="train",
        )
    plan = Plan() if plan is None else plan
    asked = _resolve_plan(plan, method, train)
    examples = round(asked.plan.batch_size / sample_rate)
    if examples > len(train):
        raise SettingError(
            f"batch_size={asked.plan.batch_size} at sample rate {sample_rate:g} takes {examples} examples, "
            f"and there are {len(train)}; choose a smaller batch size."
        )
    generator = np.random.default_rng([seed, examples])
    others = train.to("cpu").subset(torch.from_numpy(generator.choice(len(train), examples, replace=False)))
    with _seed_model(secure, seed):
        model = build_model(asked.plan.factory, others.input_shape, others.num_classes, seed).to(place)
        own = plan.for_method(method).with_changes(
            method=asked.policy,
            batch_size=asked.plan.batch_size,
            delta=asked.delta,
            epsilon=epsilon,
            sample_rate=float(sample_rate),
            steps=steps,
        )
        planned = Trainer(
            model.train(),
            torch.optim.SGD(model.parameters(), lr=0.0),
            others,
            own,
            engine=engine,
        )
        repeated = RepeatedRuns(planned)
    sides = []
    for side, group in enumerate([None, *range(others.num_groups)]):
        with _seed_model(secure, 1_000_003 * side):
            sides.append(repeated.features(runs, group, make_randomness(secure, seed, side)))
    without, *with_canaries = sides
    corrected = 1 - (1 - level) / others.num_groups
    rows = []
    for group, name in enumerate(others.group_names):
        claimed, found = 0.0, Bounds(0.0, 0.0)
        if claim := repeated.claim(group):
            claimed = claimed_epsilon(claim, asked.delta)
            found = compute_bounds((with_canaries[group][0], without[group]), claim, asked.delta, corrected)
        rows.append(GroupBound(name, 2 * runs, claimed, *found))
    largest = (
        max(each) for each in zip(*((x.claimed, x.epsilon, x.assumption_free) for x in rows), strict=True)
    )
    rows.append(GroupBound(ALL, (1 + others.num_groups) * runs, *largest))
    procedure = "one step" if steps == 1 else f"{steps} steps"
    if others.rows is not None:
        procedure += f" on people of up to {others.rows} rows"
    return Audit(procedure, asked.method, asked.delta, level, tuple(rows), planned.noise_multiplier)


def _resolve_plan(plan: Plan, method: MethodLike, train: GroupedDataset) -> ResolvedPlan:
    """Resolve the plan for a method, or reject what cannot be audited."""
    if plan.class_weight is not None:
        raise SettingError("an audit trains without class weights; leave them out.", field="class_weight")
    plan.image_views.refuse("an audit needs")
    plan = plan.for_method(method).without_groups()
    if not plan.private or plan.noise_multiplier == 0:
        raise SettingError(
            f"{plan.method_name} without noise claims no epsilon; there is nothing to audit.",
            field="noise_multiplier",
        )
    found = plan.with_changes(noise_multiplier=1.0).resolve(len(train))
    if found.policy.loss_terms:
        raise SettingError(
            f"an audit puts canaries of known gradients into the data, and {found.method} adds terms to "
            "losses, which canaries have not; audit dpsgd, whose weights are the same.",
            field="method",
        )
    return found


def make_randomness(secure: bool, seed: int, *part: int) -> Randomness:
    """Return the operating system's randomness, or a separate stream for each seed and part."""
    return SystemRandomness() if secure else SeededRandomness(seed, *part)


@contextmanager
def _seed_model(secure: bool, seed: int) -> Iterator[None]:
    """Seed the model's own draws, such as dropout, of an audit whose samples and noise come from a seed."""
    with nullcontext() if secure else restore_generators():
        if not secure:
            torch.manual_seed(seed)
        yield


@final
class RepeatedRuns:
    """Takes runs with a canary and without, and returns what an adversary sees of each.

    The canary's gradient points against the sum of the other examples' gradients, so that any
    effect that shrinks them is visible in the same direction.

    Args:
        planned: run on all examples but the canary, with its model in training mode.

    Attributes:
        event: event of one step.
        norms: norms of the canaries of each group, [K].
        known: norms of the others' gradients, and those along the canary's, [n] each, at the initial weights.
    """

    def __init__(self, planned: Trainer) -> None:
        assert isinstance(planned.train, GroupedDataset)
        self._data, self.event = planned.train, planned.event
        self._model, self._engine, self._steps = planned.model, planned.engine, planned.steps
        self._parameters = [each for each in planned.model.parameters() if each.requires_grad]
        self._policy, self._state = planned.policy, planned.policy_state
        shares, rate = self.event.shares, self.event.rate
        self._plan = Plan(
            method=planned.policy,
            batch_size=int(planned.expected_batch_size),
            delta=planned.delta,
            noise_multiplier=planned.noise_multiplier,
            sample_rate=rate,
            rates={each.label: each.rate / rate for each in shares},
            bound_shares={each.label: each.bound for each in shares},
        )
        self.norms = best_norms(self._policy, self._state, self._data.num_groups)
        device = self._parameters[0].device
        self._examples = moved_to((self._data.one_tensor, self._data.trained_targets), device)
        self._measure_others()

    def claim(self, group: int) -> EventCounts:
        """Return what a run costs the examples of a group, as one event. Empty: nothing."""
        cost = self.event.cost(Label(self.event.column, self._data.group_names[group]))
        return ((Event(*cost), self._steps),) if cost.rate else ()

    def features(self, runs: int, group: int | None, randomness: Randomness) -> list[Features]:
        """Take runs with a canary of the group. None: without, and return features for canaries of each."""
        data, n = self._data, len(self._data)
        judged = list(range(data.num_groups)) if group is None else [group]
        norm = float(self.norms[judged[0]])
        inputs, targets = self._examples
        engine = CanaryEngine(self._engine, inputs, targets, self._parameters, self._direction, norm)
        groups = torch.cat([data.groups, torch.tensor([] if group is None else [group]).long()])
        numbers = torch.arange(len(groups))
        released: list[Tensor] = []  # of one step; of more, where a fault steps twice

        def note(*_: Any) -> None:
            released.append(flat([each.grad for each in self._parameters], self._parameters).double())

        optimizer = torch.optim.SGD(self._parameters, lr=0.0)
        optimizer.register_step_post_hook(note)
        trainer = Trainer(
            self._model,
            optimizer,
            GroupedDataset(numbers[:, None], 0 * numbers, groups, data.group_names, ("no", "yes")),
            self._plan.with_changes(steps=runs * self._steps),
            engine=engine,
            seed=randomness,
        )
        sigma = self.event.noise
        rates = np.array(self.event.drawn_rates or [self.event.rate] * data.num_groups)[judged]
        likelihoods: list[Floats] = []
        seen: list[float] = []
        spreads, states = [], []
        while trainer.step():
            drawn, engine.drawn = engine.drawn.cpu(), engine.drawn[:0]
            background, shares, sensitivity = self._expected(trainer.weights_state, drawn[drawn < n], judged)
            total = float(torch.stack(released).sum(0) @ self._direction) * trainer.expected_batch_size
            released.clear()
            seen.append((total - background) / sensitivity)
            likelihood = log_likelihood_ratio(seen[-1], shares, sigma, rates)
            likelihoods.append(likelihood if len(seen) == 1 else likelihoods.pop() + likelihood)
            if len(seen) == self._steps:
                spreads.append(max(seen) - min(seen))
                states.append(_numbers(trainer.policy_state))
                seen = []
                trainer.restore({**trainer.state(), "policy": self._state._asdict()})
        seen_by_all = np.array(spreads), np.array(states)
        return [Features(each, *seen_by_all) for each in np.array(likelihoods).T]

    def _expected(self, state: Any, drawn: Tensor, judged: list[int]) -> tuple[float, Floats, float]:
        """Return, along the canary's direction, the weighted sum of the other examples' gradients that were
        drawn. Also return the norms of canaries as shares of the sensitivity, and the sensitivity."""
        policy = self._policy
        norms = torch.cat([self.known[0][drawn], self.norms[judged]])
        groups = torch.cat([self._data.groups[drawn], torch.tensor(judged)])
        count = self._data.num_groups
        weights = step_weights(policy, state, norms, groups, count).double()
        sensitivity = sensitivity_of(policy, state, count)
        if self.event.shares:
            most = torch.tensor([each.bound for each in self.event.shares]).double()[groups]
            weights = torch.minimum(weights, most * sensitivity / norms.double().clamp_min(SMALLEST_NORM))
        shares = (weights * norms)[len(drawn) :] / sensitivity
        return float(weights[: len(drawn)] @ self.known[1][drawn]), shares.numpy(), sensitivity

    def _measure_others(self) -> None:
        """Measure the other examples: norms, and gradients along a direction against their clipped sum."""
        measured = self._engine(*self._examples)
        norms = measured.norms.detach()
        data, policy = self._data, self._policy
        weights = step_weights(policy, self._state, norms.cpu(), data.groups, data.num_groups)
        total = flat_sums(measured.sums(weights.to(norms)), self._parameters).double()
        if not total.norm() > 1e-9:
            total = torch.ones_like(total)
        self._direction = -total / total.norm()
        along = [
            self._engine(x[None], y[None]).sums(torch.ones(1, device=norms.device))
            for x, y in zip(*self._examples, strict=True)
        ]
        gradients = (flat_sums(each, self._parameters).double() for each in along)
        self.known = norms.cpu(), torch.tensor([float(each @ self._direction) for each in gradients]).double()


def _numbers(state: Any) -> Floats:
    """All numbers of a policy's state, in order; NaN becomes 0."""
    numbers = [value.double().flatten() for value in state]
    return np.nan_to_num(torch.cat(numbers).numpy()) if numbers else np.zeros(0)
