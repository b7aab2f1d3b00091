"""Private run of a few steps, repeated from the same start, with a canary or without."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equidp.audit.canary import CanaryEngine, Directions, best_norms, log_likelihood_ratio, with_canaries
from equidp.audit.draws import DrawRecord
from equidp.audit.rules import Features
from equidp.data.dataset import GroupedDataset
from equidp.engines.model import device_of, flat, flat_sums
from equidp.kernel.engine import Engine
from equidp.kernel.inputs import moved_to
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.noise import Randomness, to_double
from equidp.kernel.policy import copy_state
from equidp.policies.weights import step_weights
from equidp.training.plan import ResolvedPlan
from equidp.training.trainer import Trainer


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
    """

    model: nn.Module
    engine: Engine
    others: GroupedDataset
    plan: ResolvedPlan
    event: StepEvent
    steps: int


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
        """Take runs; return one row of figures each.

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
        sigma, rate = subject.event.noise_multiplier, subject.event.sample_rate
        record = DrawRecord(self.tensors, len(data), rate)
        for batch in trainer.batches():
            trainer.step(batch)
            _, total = engine.take_sums()
            state = trainer.policy_state
            background, shares, sensitivity = self._weigh_examples(state, batch.indices.cpu(), judged)
            noise = to_double(noted.released) * trainer.expected_batch_size
            noise = noise if total is None else noise - total.to(noise)
            record.note((noise / (sigma * sensitivity)).cpu().numpy(), batch.indices.cpu().numpy())
            seen.append((noted.take_total() * trainer.expected_batch_size - background) / sensitivity)
            likelihood += log_likelihood_ratio(np.array(seen[-1]), shares, sigma, rate)
            if len(seen) == subject.steps:
                spread = max(seen) - min(seen)
                rows.append(np.concatenate([likelihood, [spread], _numbers(state)]))
                seen, likelihood = [], np.zeros(len(judged))
                trainer.restore(self._state._asdict())
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
            sample_rate=subject.event.sample_rate,
        )

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
