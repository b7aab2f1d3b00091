"""audit_step(): a lower bound on the epsilon of one private step, or a few, from many runs of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from dp_accounting import get_sigma_gaussian
from scipy.special import ndtri
from torch import Tensor, nn

from equidp._validate import check_number, check_whole
from equidp.accounting import calibrate_noise
from equidp.accounting.calibration import calibrate_step
from equidp.accounting.groups import GroupSettings
from equidp.audit.bounds import NoiseFamily, Rates, noise_from_rates
from equidp.audit.canary import CanaryEngine, Directions, best_norms, log_likelihood_ratio, with_canaries
from equidp.audit.draws import Arrays, DrawRecord, check_draws
from equidp.audit.guesses import Features, compute_bounds, training_runs
from equidp.audit.result import USEFUL, Audit, GroupBound
from equidp.audit.setup import (
    check_audit,
    checked_data,
    make_randomness,
    make_subject,
    procedure_text,
    resolve_plan,
    smallest_enough,
)
from equidp.data.dataset import ALL, GroupedDataset
from equidp.distributed.group import alone
from equidp.engines.model import device_of, flat, flat_sums
from equidp.errors import SettingError
from equidp.kernel.bounding import SMALLEST_NORM
from equidp.kernel.engine import Engine
from equidp.kernel.epsilon import epsilon as claimed_epsilon
from equidp.kernel.generators import restore_generators
from equidp.kernel.inputs import moved_to
from equidp.kernel.ledger import GroupedStepEvent, MemoryLedger, StepEvent
from equidp.kernel.noise import Randomness, to_double
from equidp.kernel.policy import Policy, copy_state
from equidp.policies.weights import step_weights
from equidp.training.device import chosen_device
from equidp.training.plan import Plan, ResolvedPlan
from equidp.training.trainer import Trainer

_BLOCK = 100


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
    engine: str = "ghost",
    device: str = "cpu",
    seed: int = 0,
    secure: bool = True,
) -> Audit:
    """Take one private step many times, with a canary and without, and bound its epsilon from below.

    An adversary who chose the canary's gradient, knows all other examples and sees what the optimizer and the
    policy see, guesses whether the canary took part. Sampler, private step, policy, engine and noise are the
    same as in training. Canaries are tried in each group. The model keeps its initial weights. Noise and
    samples of all steps are tested as well, in each parameter and for each example (`audit.draws`).

    In a group of torch.distributed, each process audits for itself.

    Args:
        train: the data; a random part of b / q examples, b from the plan, takes part in the runs.
        method: a name from `METHODS`, an import path, or your own policy.
        plan: model, batch size, delta and settings of methods; default: `Plan()`. With rates, bounds or
            budgets by group, each group has a claim of its own.
        epsilon: the claim; noise is calibrated so that a run has this epsilon, for the group with the
            largest epsilon.
        sample_rate: q. At 1, every example takes part, and the audit sees most.
        steps: of one run.
        runs: number of runs with a canary in each group, and of runs without a canary.
        level: of confidence.
        engine: name of the gradient engine.
        device: where to train; a name as in `compare`.
        seed: of the examples, the initial weights and, where `secure` is False, samples and noise.
        secure: draw samples and noise from the operating system.

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
    train = checked_data(train)
    check_number("(0, 1]", ", a probability", sample_rate=sample_rate)
    check_whole(1, steps=steps, runs=runs)
    plan = Plan() if plan is None else plan
    asked = resolve_plan(plan, method, train)
    examples = round(asked.plan.batch_size / sample_rate)
    if examples > len(train):
        raise SettingError(
            f"batch_size={asked.plan.batch_size} at sample rate {sample_rate:g} takes {examples} examples, "
            f"and there are {len(train)}; choose a smaller batch size."
        )
    delta = asked.delta
    event, groups = _find_event(
        epsilon,
        delta,
        float(sample_rate),
        steps,
        asked.policy,
        plan.for_method(method).groups,
        train.group_names,
    )
    noise = event.noise_multiplier
    by_group = isinstance(event, GroupedStepEvent)
    families = [_family_of(event, name, steps) for name in train.group_names]
    claims = [0.0 if each is None else claimed_epsilon(each.entries, delta) for each in families]
    corrected = 1 - (1 - level) / train.num_groups
    largest_claim = int(np.argmax(claims))
    if (family := families[largest_claim]) is not None:
        _check_runs(family, claims[largest_claim], runs, delta, corrected)
    generator = np.random.default_rng([seed, examples])
    others = train.subset(torch.from_numpy(generator.choice(len(train), examples, replace=False)))
    model, measuring = make_subject(asked, others, engine, seed, place)
    repetition = Repetition(model, measuring, others, asked, event, steps, float(sample_rate), groups)
    facts: dict[str, Any] = {
        "method": asked.method,
        "model": asked.plan.model_name,
        "batch_size": asked.plan.batch_size,
        "sample_rate": float(sample_rate),
        "steps": steps,
        "noise_multiplier": noise,
        **(
            {"by_group": [asdict(each) for each in event.by_group]}
            if isinstance(event, GroupedStepEvent)
            else {}
        ),
        "engine": engine,
        "seed": seed,
        "secure": secure,
    }
    with _seed_model(secure, seed):
        repeated = RepeatedRuns(repetition, generator)
    taken, stretches = _take_runs(repeated, runs, secure, seed)
    found = [
        (0.0, 0.0) if family is None else compute_bounds(taken(group), family, delta, corrected)
        for group, family in enumerate(families)
    ]
    rows = [
        GroupBound(name, 2 * runs, *bound, claim if by_group else None)
        for name, bound, claim in zip(train.group_names, found, claims, strict=True)
    ]
    largest = (max(each[place] for each in found) for place in range(2))
    rows.append(GroupBound(ALL, (1 + train.num_groups) * runs, *largest))
    settings = {**facts, "runs": runs, "canaries": "gradient"}
    draws = check_draws(stretches, repeated.tensors, float(sample_rate))
    return Audit(
        procedure_text(steps, train), asked.method, max(claims), delta, level, tuple(rows), settings, draws
    )


def _find_event(
    epsilon: float,
    delta: float,
    rate: float,
    steps: int,
    policy: Policy,
    groups: GroupSettings,
    group_names: Sequence[str],
) -> tuple[StepEvent, GroupSettings]:
    """Event of a step whose runs have this epsilon, of the group with the largest epsilon, and its rates and
    bounds."""
    ratio = policy.statistics_ratio
    unit = groups.step_event(rate, 1.0, ratio, group_names)
    if not isinstance(unit, GroupedStepEvent):
        noise = _find_noise(epsilon, delta, unit.sample_rate, steps, ratio)
    else:
        noise = calibrate_step(epsilon, delta, unit, steps)
    groups.run_epsilon(epsilon, group_names)  # refuses budgets that are not of this epsilon
    event = groups.step_event(rate, noise, ratio, group_names)
    met = groups.meet_budgets(event, steps, delta, epsilon, group_names=group_names)
    return met.step_event(rate, noise, ratio, group_names), met


def _family_of(event: StepEvent, name: str, steps: int) -> NoiseFamily | None:
    """Claim for the examples of a group; None: their steps cost nothing."""
    own = event.of_group(name) if isinstance(event, GroupedStepEvent) else event
    return None if own is None else NoiseFamily([(own, steps)])


def _find_noise(epsilon: float, delta: float, rate: float, steps: int, ratio: float | None) -> float:
    """Noise multiplier of an epsilon; in closed form where all steps together are one Gaussian mechanism."""
    check_number("(0, inf)", epsilon=epsilon)
    if rate < 1:
        return calibrate_noise(epsilon, delta, rate, steps, ratio)
    joint = float(get_sigma_gaussian(epsilon, delta)) * math.sqrt(steps)
    return joint if ratio is None else joint * math.hypot(1.0, 1 / ratio)


@contextmanager
def _seed_model(secure: bool, seed: int) -> Iterator[None]:
    """Seed the model's own draws, such as dropout, of an audit whose samples and noise come from a seed."""
    with nullcontext() if secure else restore_generators():
        if not secure:
            torch.manual_seed(seed)
        yield


def _take_runs(repeated: RepeatedRuns, runs: int, secure: bool, seed: int) -> tuple[Any, list[Arrays]]:
    """Take all runs; return a function from a group to the features with its canary and without, and the
    draws of each block of runs."""
    sides = [None, *range(repeated.repetition.others.num_groups)]
    rows = []
    drawn: list[Arrays] = []
    for side, group in enumerate(sides):
        series = []
        for block in range(-(-runs // _BLOCK)):
            with _seed_model(secure, 1_000_003 * side + block):
                randomness = make_randomness(secure, seed, side, block)
                series.append(repeated.features(_BLOCK, group, randomness))
            drawn.append(repeated.draws)
        rows.append(np.concatenate(series)[:runs])
    taken = lambda group: (repeated.split(rows[1 + group]), repeated.split(rows[0], group))  # noqa: E731
    return taken, drawn


def _check_runs(family: NoiseFamily, claimed: float, runs: int, delta: float, level: float) -> None:
    """Check that the runs are enough for a bound of at least a tenth of a tight claim."""
    if _expected_bound(family, runs, delta, level) >= USEFUL * claimed:
        return
    needed = smallest_enough(
        runs, lambda number: _expected_bound(family, number, delta, level) >= USEFUL * claimed
    )
    if needed is None:
        raise SettingError(
            f"runs={runs} say nothing about epsilon {claimed:.3g} at this sample rate, and ten million would "
            "not; audit at sample rate 1."
        )
    raise SettingError(
        f"runs={runs} are too few to say anything: a step that has all of epsilon {claimed:.3g} would get a "
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


@final
@dataclass(frozen=True)
class Repetition:
    """Parts of the run that is repeated.

    Attributes:
        model: its weights do not change: the optimizer records private gradients and takes no step.
        engine: measures the examples.
        others: all examples but the canary.
        plan: method, loss, delta and batch size.
        event: of one step.
        steps: of one run.
        sample_rate: q, which rates of groups are multiples of.
        groups: rates and bounds by group.
    """

    model: nn.Module
    engine: Engine
    others: GroupedDataset
    plan: ResolvedPlan
    event: StepEvent
    steps: int
    sample_rate: float
    groups: GroupSettings


class _Known(NamedTuple):
    """Facts on the other examples, at the initial weights, that an adversary knows; on the CPU."""

    norms: Tensor
    along: Tensor
    directions: Directions


@final
class _Noted(torch.optim.Optimizer):
    """Optimizer that sums private gradients along directions; the parameters do not change."""

    def __init__(self, parameters: list[nn.Parameter], directions: Directions) -> None:
        super().__init__(parameters, {})
        self._parameters, self._directions = parameters, directions
        self.total, self.released = 0.0, torch.empty(0)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Record `p.grad`."""
        self.released = flat([parameter.grad for parameter in self._parameters], self._parameters)
        self.total += float(self._directions.along(self.released)[0])

    def take_total(self) -> float:
        """Return the sum since the last call, and reset it."""
        total, self.total = self.total, 0.0
        return total


@final
class RepeatedRuns:
    """Takes the runs of a repetition, and returns what an adversary sees of each.

    The canary's gradient points against the sum of the other examples' gradients, so that any
    effect that shrinks them is visible in the same direction.

    Args:
        repetition: what is repeated.
        generator: of the canary's direction, where the others' gradients vanish.

    Attributes:
        tensors: name of each tensor of parameters -> number of parameters.
        draws: noise and samples of the last runs (`DrawRecord.arrays`).
    """

    def __init__(self, repetition: Repetition, generator: np.random.Generator) -> None:
        self.repetition = repetition
        trained = {name: each for name, each in repetition.model.named_parameters() if each.requires_grad}
        self._parameters = list(trained.values())
        self.tensors = {name: each.numel() for name, each in trained.items()}
        self.draws: dict[str, npt.NDArray[np.float64]] = {}
        self._run_id = MemoryLedger().run_id  # all Trainers here are one run: the model stays as it is
        first = self._trainer(
            repetition.engine, repetition.others, torch.optim.SGD(self._parameters, lr=0.0), 1, None
        )
        self._state = first.policy_state
        self.norms = best_norms(repetition.plan.policy, self._state, repetition.others.num_groups)
        self._known = self._know(generator)

    def features(self, runs: int, group: int | None, randomness: Randomness) -> npt.NDArray[np.float64]:
        """Take runs; return one row of values each.

        Args:
            runs: number of runs.
            group: of the canary; None: no canary, and the likelihood is computed for each group.
            randomness: of samples and noise.

        Returns:
            [runs, likelihoods + 1 + numbers of the state]: likelihoods (one, or one per group), spread,
            state.
        """
        subject, others = self.repetition, self.repetition.others
        judged = list(range(others.num_groups)) if group is None else [group]
        data = others if group is None else with_canaries(others, torch.tensor([group]))
        norms = self.norms[judged[:1]]
        engine = CanaryEngine(
            subject.engine, self._parameters, self._known.directions, norms, others.num_classes
        )
        noted = _Noted(self._parameters, self._known.directions)
        trainer = self._trainer(engine, data, noted, runs * subject.steps, randomness)
        rows, seen, likelihood = [], [], np.zeros(len(judged))
        sigma, rates = subject.event.noise_multiplier, self._rates(data.groups)
        judged_rates = self._rates(torch.tensor(judged))
        record = DrawRecord(self.tensors, len(data), rates)
        for batch in trainer.batches():
            trainer.step(batch)
            _, total = engine.take_sums()
            state = trainer.policy_state
            background, shares, sensitivity = self._weigh_examples(
                trainer.weights_state, batch.indices.cpu(), judged
            )
            noise = to_double(noted.released) * trainer.expected_batch_size
            noise = noise if total is None else noise - total.to(noise)
            record.note((noise / (sigma * sensitivity)).cpu().numpy(), batch.indices.cpu().numpy())
            seen.append((noted.take_total() * trainer.expected_batch_size - background) / sensitivity)
            likelihood += log_likelihood_ratio(np.array(seen[-1]), shares, sigma, judged_rates)
            if len(seen) == subject.steps:
                spread = max(seen) - min(seen)
                rows.append(np.concatenate([likelihood, [spread], _numbers(state)]))
                seen, likelihood = [], np.zeros(len(judged))
                trainer.restore({**trainer.state(), "policy": self._state._asdict()})
        self.draws = record.arrays()
        return np.stack(rows)

    def split(self, rows: npt.NDArray[np.float64], place: int = 0) -> Features:
        """Split rows of `features` into named columns, with the likelihood at `place`."""
        likelihoods = rows.shape[1] - 1 - len(_numbers(self._state))
        return Features(rows[:, place], rows[:, likelihoods], rows[:, likelihoods + 1 :])

    def _trainer(
        self,
        engine: Engine,
        data: GroupedDataset,
        optimizer: torch.optim.Optimizer,
        steps: int,
        randomness: Randomness | None,
    ) -> Trainer:
        subject = self.repetition
        return Trainer(
            subject.model,
            optimizer,
            data,
            policy=subject.plan.policy,
            batch_size=subject.plan.plan.batch_size,
            steps=steps,
            noise_multiplier=subject.event.noise_multiplier,
            delta=subject.plan.delta,
            loss=subject.plan.plan.loss_function,
            engine=engine,
            ledger=MemoryLedger(run=self._run_id),
            randomness=randomness,
            sample_rate=subject.sample_rate,
            rates=subject.groups.rates,
            bound_shares=subject.groups.bound_shares,
        )

    def _rates(self, groups: Tensor) -> npt.NDArray[np.float64] | float:
        """Rates at which examples of these groups are drawn, [n]; one number where all are equal."""
        event = self.repetition.event
        if not isinstance(event, GroupedStepEvent):
            return event.sample_rate
        found: npt.NDArray[np.float64] = np.array(event.drawn_rates)[groups.numpy()]
        return found

    def _weigh_examples(
        self, state: Any, sample: Tensor, judged: list[int]
    ) -> tuple[float, npt.NDArray[np.float64], float]:
        """Return, along the canary's direction, the weighted sum of the other examples' gradients, the norms
        of canaries as shares of the sensitivity, and the sensitivity."""
        subject, known = self.repetition, self._known
        others = sample[sample < len(subject.others)]
        norms = torch.cat([known.norms[others], self.norms[judged]])
        groups = torch.cat([subject.others.groups[others], torch.tensor(judged)])
        policy = subject.plan.policy
        weights = step_weights(policy, state, norms, groups).double()
        sensitivity = float(policy.sensitivity(copy_state(state)))
        if isinstance(subject.event, GroupedStepEvent):
            most = torch.tensor([each.bound_share for each in subject.event.by_group]).double()[groups]
            weights = torch.minimum(weights, most * sensitivity / norms.double().clamp_min(SMALLEST_NORM))
        shares = (weights * norms)[len(others) :] / sensitivity
        return float(weights[: len(others)] @ known.along[others]), shares.numpy(), sensitivity

    def _know(self, generator: np.random.Generator) -> _Known:
        """Measure the other examples: norms, and gradients along a direction against their clipped sum."""
        subject, data = self.repetition, self.repetition.others
        device = device_of(subject.model)
        inputs, targets = moved_to((data.one_tensor, data.trained_targets), device)
        measured = subject.engine(inputs, targets)
        norms = measured.norms.detach().cpu()
        weights = step_weights(subject.plan.policy, self._state, norms, data.groups)
        total = self._sum(measured, weights.to(device)).cpu()
        if not total.norm() > 1e-9:
            total = torch.from_numpy(generator.standard_normal(len(total)))
        directions = Directions.dense(-to_double(total))
        along = [
            directions.along(self._sum(subject.engine(x[None], y[None]), torch.ones(1, device=device)))
            for x, y in zip(inputs, targets, strict=True)
        ]
        return _Known(norms, torch.cat(along), directions)

    def _sum(self, measured: Any, weights: Tensor) -> Tensor:
        return flat_sums(measured.sum_gradients(weights), self._parameters)


def _numbers(state: Any) -> npt.NDArray[np.float64]:
    """All numbers of a policy's state, in order; NaN becomes 0."""
    numbers = [value.double().flatten() for value in state]
    return np.nan_to_num(torch.cat(numbers).numpy()) if numbers else np.zeros(0)
