"""The loop of a reading: what equidp's own training does, with the reading's choices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, final

import torch
from torch import Tensor, nn

from equidp import GroupedDataset, Policy, Setting, private_sum
from equidp.engines import MeasuringEngine, make_engine
from equidp.engines.measured import MeasuredBatch
from equidp.kernel.bounding import capped_weights, each_alone, example_rows
from equidp.kernel.engine import Sums
from equidp.kernel.noise import Randomness
from equidp.kernel.noisy_sum import release, totals_of
from equidp.kernel.policy import statistics_noise
from equidp.kernel.sampling import PoissonSampler
from papers.reproduction.readings import Planned, Reading

_LOSS = nn.CrossEntropyLoss(reduction="none")


@final
class Learner:
    """Takes steps of a method under a reading.

    Args:
        model: trained in place.
        policy: the method.
        reading: what is read otherwise.
        planned: sizes and rates.
        num_groups: K.

    Attributes:
        state: of the policy.

    Example:
        >>> from equidp import DPSGD
        >>> from equidp.kernel.noise import SeededRandomness
        >>> learner = Learner(nn.Linear(3, 2), DPSGD(), Reading(momentum=0.5), Planned(8, 4), num_groups=1)
        >>> targets = torch.tensor([0, 1, 1, 0])
        >>> learner.step(torch.randn(4, 3), targets, torch.zeros_like(targets), SeededRandomness(0)).shape
        torch.Size([4])
    """

    def __init__(
        self, model: nn.Module, policy: Policy, reading: Reading, planned: Planned, *, num_groups: int
    ) -> None:
        self.model, self.policy, self.reading, self.planned = model, policy, reading, planned
        self.parameters = list(model.parameters())
        self.optimizer = torch.optim.SGD(
            self.parameters,
            lr=planned.learning_rate * reading.learning_rate_factor,
            momentum=reading.momentum,
            weight_decay=planned.weight_decay * reading.penalty_factor,
        )
        self.state: Any = policy.init(
            Setting(num_groups, float(planned.batch_size), planned.noise_multiplier)
        )
        layers = [layer for layer in model.modules() if list(layer.parameters(recurse=False))]
        self._parts = [list(layer.parameters(recurse=False)) for layer in layers]
        if reading.layer_bound is None:
            self._parts = [self.parameters]
        self._engines = []
        for part in self._parts:
            with self._only(part):
                self._engines.append(make_engine("ghost", model, _LOSS))

    def step(self, inputs: Tensor, targets: Tensor, groups: Tensor, randomness: Randomness) -> Tensor:
        """One step of the optimizer on a batch.

        Args:
            inputs, targets, groups: [batch, ...], perhaps empty.
            randomness: where the noise comes from.

        Returns:
            The norms of the gradients, [batch].
        """
        measured = [
            self._measured(engine, part, inputs, targets)
            for engine, part in zip(self._engines, self._parts, strict=True)
        ]
        norms = torch.stack([each.norms.detach() for each in measured]).square().sum(dim=0).sqrt()
        self._release_statistics(norms, groups, randomness)
        bounds = self._bounds(groups)
        sums: Sums = {}
        for each in measured:
            weights = self._weights(each.norms.detach(), groups, bounds)
            sums.update(each.sum_gradients(weights))
        self._add_noise(sums, len(groups), bounds, randomness)
        self.optimizer.step()
        return norms

    def _measured(
        self, engine: MeasuringEngine, part: list[nn.Parameter], inputs: Tensor, targets: Tensor
    ) -> MeasuredBatch:
        if not len(targets):
            return MeasuredBatch(torch.zeros(0), lambda weights: {})
        with self._only(part):
            return engine(inputs, targets)

    @contextmanager
    def _only(self, part: list[nn.Parameter]) -> Iterator[None]:
        """Trains these parameters alone, so that norms are of their gradients alone."""
        for parameter in self.parameters:
            parameter.requires_grad_(any(parameter is one for one in part))
        try:
            yield
        finally:
            for parameter in self.parameters:
                parameter.requires_grad_(True)

    def _release_statistics(self, norms: Tensor, groups: Tensor, randomness: Randomness) -> None:
        noise = statistics_noise(self.policy, self.planned.noise_multiplier)
        if noise is None:
            return
        made_up = torch.ones(1), torch.zeros(1, dtype=torch.int64)  # shows how many cells an empty batch has
        asked = (norms, groups) if len(norms) else made_up
        rows = example_rows(self.policy, self.state, *asked)[: len(norms)]
        released = private_sum(rows, bound=1.0, noise_multiplier=noise, randomness=randomness).float()
        self.state = self.policy.update(
            self.state, released.floor() if self.reading.floored_counts else released
        )

    def _bounds(self, groups: Tensor) -> Tensor:
        """Bounds that noise is scaled to, [groups]: of all, or of those in the batch and 0 for others."""
        bounds = torch.tensor([self.policy.sensitivity(self.state)])
        if self.policy.needs_groups:
            bounds = self.policy.released(self.state)["clipping_bound"]
        if len(bounds) == 1 or not (self.reading.present_groups or self.reading.bounds_as_weights):
            return bounds
        present = torch.bincount(groups, minlength=len(bounds)) > 0
        return torch.where(present, bounds, 0.0)

    def _weights(self, norms: Tensor, groups: Tensor, bounds: Tensor) -> Tensor:
        """Weights of one part's gradients, [batch], from their norms."""
        share = self.reading.layer_bound or 1.0
        seen = norms / share  # a norm of share C is clipped as C is
        weights = each_alone(self.policy.weight, self.state, seen, groups) if len(norms) else norms
        weights = capped_weights(weights, seen, self.policy.sensitivity(self.state))
        if self.reading.bounds_as_weights and len(bounds) > 1:
            weights = weights * (bounds / bounds.mean())[groups].to(weights)
        return weights

    def _add_noise(self, sums: Sums, batch: int, bounds: Tensor, randomness: Randomness) -> None:
        """Puts noisy means of the sums into p.grad."""
        totals = totals_of(self.parameters, sums)
        reading, scale = self.reading, float(bounds.max())
        if not reading.noise_per_bound:
            scale = 1.0
        elif reading.bounds_as_weights and len(bounds) > 1:
            scale = float(bounds.max() / bounds.mean())
        divisor = max(1, batch) if reading.realised_size else self.planned.batch_size
        noise = self.planned.noise_multiplier * reading.noise_factor
        release(totals, scale, noise, randomness, float(divisor))
        for parameter, total in zip(self.parameters, totals, strict=True):
            parameter.grad = total.to(parameter)


def epoch_of_batches(
    reading: Reading, planned: Planned, epoch: int, randomness: Randomness
) -> Iterator[Tensor]:
    """Yields the indices of an epoch's batches, [batch] each.

    Args:
        reading, planned: how they are drawn, and how large they are.
        epoch: counted from 0; n / b Poisson samples are rarely a whole number, so epochs differ by one.
        randomness: where the draws come from.
    """
    n, size = planned.num_examples, planned.batch_size
    if not reading.shuffled:
        steps = (epoch + 1) * n // size - epoch * n // size
        yield from PoissonSampler(n, size / n, steps, randomness)
        return
    order = torch.from_numpy(randomness.uniform(n)).argsort()
    for start in range(0, n - size + 1, size):
        yield order[start : start + size]


def steps_before(reading: Reading, planned: Planned, epoch: int) -> int:
    """Returns how many steps the epochs before this one, counted from 0, have.

    >>> xu = Planned(54_649)
    >>> steps_before(Reading(), xu, 60), steps_before(Reading(shuffled=True), xu, 60)
    (12808, 12780)
    """
    n, size = planned.num_examples, planned.batch_size
    return epoch * (n // size) if reading.shuffled else epoch * n // size


def take_epoch(
    learner: Learner,
    train: GroupedDataset,
    epoch: int,
    randomness: Randomness,
    seen: Callable[[Tensor, Tensor], None],
) -> None:
    """Takes the steps of one epoch.

    Args:
        learner: takes the steps.
        train: what batches are drawn from.
        epoch: counted from 0.
        randomness: where batches and noise come from.
        seen: is told the norms and groups of each batch, [batch] each.
    """
    for indices in epoch_of_batches(learner.reading, learner.planned, epoch, randomness):
        groups = train.groups[indices]
        norms = learner.step(train.one_tensor[indices], train.targets[indices], groups, randomness)
        seen(norms, groups)
