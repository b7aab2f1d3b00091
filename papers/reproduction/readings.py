"""Other readings of a paper's setup: one choice changed at a time, to see why figures differ.

A text leaves open how batches are drawn, what noise is scaled to, whether there is momentum. `Learner` trains
with such a choice changed; most of them break the guarantee, so nothing here is part of the private step, no
ledger is charged, and models are measured on public data and thrown away. With no choice changed, it takes
the same steps as `equidp.Trainer`. `worth` says what a reading is worth in epsilon.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, final

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from equidp import METHODS, GroupedDataset, Policy, Setting, default_plan, private_sum
from equidp.comparison.cells import split_facts
from equidp.data import open_source
from equidp.data.dataset import ALL
from equidp.engines import make_engine
from equidp.evaluation.groups import group_metrics
from equidp.evaluation.predictions import predict
from equidp.extend import check_number, check_whole, unknown_name, write_whole
from equidp.kernel.bounding import capped_weights, each_alone, example_rows, group_bounds
from equidp.kernel.engine import Engine, Measured, Sums
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event
from equidp.kernel.noise import Randomness, SeededRandomness
from equidp.kernel.noisy_sum import join_sums, parameter_blocks, release, split_sums
from equidp.kernel.policy import statistics_noise
from equidp.kernel.sampling import PoissonSampler
from equidp.policies.methods import make_policy
from equidp.training.build import build_model
from papers.reproduction.item import COLUMNS, Request

_LARGEST_BOUND = 2.65
"""Largest bound that DPSGD-F reaches on MNIST, over C."""
DRAWN = (ALL, "2", "8", "Male", "Female")
"""Groups whose accuracy is kept for each epoch: those of the plots."""


@dataclass(frozen=True)
class Reading:
    """One reading of a setup; the defaults are equidp's own training.

    Attributes:
        shuffled: batches of a fixed size from shuffled passes over the data, the rest of a pass dropped, in
            place of Poisson samples.
        realised_size: divide a sum by the size of its batch, in place of the expected size.
        present_groups: scale noise to the largest bound of the groups in the batch, in place of all groups.
        noise_factor: multiplies the standard deviation of the noise on gradients.
        noise_per_bound: whether noise on gradients is sigma times the bound, or sigma alone.
        floored_counts: round released counts down to whole numbers before they are used.
        bounds_as_weights: multiply clipped gradients by the bound of their group over the mean bound, and
            scale noise to the largest such weight. Groups that are absent from the batch have bound 0.
        layer_bound: bound of each layer's own gradient, as a share of the bound of all; None: all layers
            are clipped together.
        momentum: of SGD.
        learning_rate_factor: multiplies the learning rate.
        penalty_factor: multiplies the weight decay.
        decayed: a tenth of the learning rate from half of the epochs on, a hundredth from three quarters on.
        more_epochs: added to the epochs; may be negative.
        other_weights: draw the initial weights from another seed.

    Example:
        >>> Reading(momentum=0.5).changes()
        {'momentum': 0.5}
    """

    shuffled: bool = False
    realised_size: bool = False
    present_groups: bool = False
    noise_factor: float = 1.0
    noise_per_bound: bool = True
    floored_counts: bool = False
    bounds_as_weights: bool = False
    layer_bound: float | None = None
    momentum: float = 0.0
    learning_rate_factor: float = 1.0
    penalty_factor: float = 1.0
    decayed: bool = False
    more_epochs: int = 0
    other_weights: bool = False

    def __post_init__(self) -> None:
        check_number("[0, inf)", noise_factor=self.noise_factor, penalty_factor=self.penalty_factor)
        check_number("[0, 1)", momentum=self.momentum)
        check_number("(0, inf)", learning_rate_factor=self.learning_rate_factor)
        if self.layer_bound is not None:
            check_number("(0, 1]", layer_bound=self.layer_bound)

    def changes(self) -> dict[str, Any]:
        """Return the choices that differ from equidp's own training."""
        own = Reading()
        return {name: value for name, value in vars(self).items() if value != getattr(own, name)}


READINGS: Mapping[str, Reading] = {
    "base": Reading(),
    "fixed-batches": Reading(shuffled=True),
    "realised-size": Reading(realised_size=True),
    "present-groups": Reading(present_groups=True),
    "counts-floored": Reading(floored_counts=True),
    "noise-without-bound": Reading(noise_per_bound=False),
    "noise-by-example": Reading(noise_factor=16.0),
    "noise-as-variance": Reading(noise_factor=math.sqrt(0.8) / 0.8),
    "no-noise": Reading(noise_factor=0.0),
    "bounds-as-weights": Reading(bounds_as_weights=True),
    "layers": Reading(layer_bound=0.5),
    "layers-whole": Reading(layer_bound=1.0),
    "momentum-.5": Reading(momentum=0.5),
    "momentum-.9": Reading(momentum=0.9),
    "learning-rate-2": Reading(learning_rate_factor=2.0),
    "learning-rate-5": Reading(learning_rate_factor=5.0),
    "learning-rate-10": Reading(learning_rate_factor=10.0),
    "penalty-2": Reading(penalty_factor=2.0),
    "decay": Reading(decayed=True),
    "epoch-less": Reading(more_epochs=-1),
    "epoch-more": Reading(more_epochs=1),
    "other-weights": Reading(other_weights=True),
    "code-of-predecessor": Reading(shuffled=True, momentum=0.5, more_epochs=-1),
    "code-of-authors": Reading(shuffled=True, momentum=0.5, more_epochs=-1, bounds_as_weights=True),
}
"""Name -> reading of Xu et al.'s settings (KDD 2021, section 6.1): b 256 and, on MNIST, sigma 0.8 and C 1.

noise-by-example: noise of sigma C on each gradient, so sqrt(b) sigma C on their sum; noise of sigma C /
sqrt(b) on each is what equidp does. noise-as-variance: sigma is the variance. penalty-2: the parameter times
the squared norm of the weights, not half of it. layers: C / sqrt(4) for each of four layers.
code-of-predecessor: what the published code of Bagdasaryan et al. (NeurIPS 2019), whose setting they say they
replicate, does beside what the text says. code-of-authors: this, and the weights of DPSGD-F as a public copy
of their loop has them.
"""


@dataclass(frozen=True)
class Planned:
    """Public sizes and rates of a training, beside the reading.

    Attributes:
        num_examples: n.
        batch_size: b, expected.
        noise_multiplier: sigma; 0 without privacy.
        learning_rate, weight_decay: of SGD, before the reading's factors.
    """

    num_examples: int
    batch_size: int = 256
    noise_multiplier: float = 0.8
    learning_rate: float = 0.01
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_whole(1, num_examples=self.num_examples, batch_size=self.batch_size)
        check_number("[0, inf)", noise_multiplier=self.noise_multiplier, weight_decay=self.weight_decay)
        check_number("(0, inf)", learning_rate=self.learning_rate)


@final
@dataclass(frozen=True)
class Worth:
    """Privacy of a reading.

    Attributes:
        epsilon: the smallest that is proven, for one example added or removed (shuffled: replaced by a
            gradient of zero); infinite where none is.
        estimate: of what one example reveals, where nothing is proven; NaN where it is.
        reason: why, in a sentence.
    """

    epsilon: float
    estimate: float = math.nan
    reason: str = ""


def steps_before(reading: Reading, planned: Planned, epoch: int) -> int:
    """Return how many steps the epochs before this one, counted from 0, have.

    >>> xu = Planned(54_649)
    >>> steps_before(Reading(), xu, 60), steps_before(Reading(shuffled=True), xu, 60)
    (12808, 12780)
    """
    n, size = planned.num_examples, planned.batch_size
    return epoch * (n // size) if reading.shuffled else epoch * n // size


def worth(
    reading: Reading,
    planned: Planned,
    *,
    epochs: int,
    delta: float,
    statistics_noise: float | None = None,
    largest_bound: float = 1.0,
    layers: int = 4,
    parameters: int = 431_080,
) -> Worth:
    """Epsilon of a training under this reading, bounded as by `equidp.epsilon`.

    | choice | what follows |
    | --- | --- |
    | momentum, rates, decay, weights, counts floored | they read noisy sums alone: nothing changes |
    | noise_factor f | noise multiplier f sigma |
    | noise_per_bound False | one example moves the sum by its group's bound: sigma / max C^k |
    | layer_bound share s | all L layers together move by sqrt(L) s C: sigma / (sqrt(L) s) |
    | bounds_as_weights | weight C^k / m of a gradient of C^k, noise sigma max C^k / m: sigma / max C^k; and |
    | | as present_groups |
    | present_groups | nothing is proven: see below |
    | shuffled | each example is in at most one batch of an epoch: a Gaussian an epoch, not amplified |
    | realised_size | nothing is proven of Poisson samples, nothing changes for batches of a fixed size |

    present_groups: where an example alone has its group in a batch, its presence changes the noise of all
    parameters by a ratio of bounds. Hundreds of thousands of draws show such a ratio with certainty. An
    example whose group is expected 2.3 times in a batch is alone in one of ten of its batches: of the
    thousands of steps, some show it, with a probability far above delta.

    realised_size: a batch of b + 1 has its noise divided by b + 1, so an example changes the scale of the
    noise of all d parameters by 1 / b. The divergence of both scales, about d / b^2, adds to that of the
    gradient, 1 / (2 sigma^2); the estimate is of a Gaussian of their sum.

    shuffled: bounds for one example replaced by another are looser: noise counts half, since the sum moves by
    2 C. No better bound is known that holds for passes over shuffled data; Poisson accounting, as printed in
    papers, is too low for it (Chua et al. 2024).

    Args:
        reading, planned: what is trained.
        epochs: before those that the reading adds.
        delta: of the whole run.
        statistics_noise: sigma_s; None: the method reads none.
        largest_bound: max C^k / C that the run reached; above 1 for DPSGD-F alone.
        layers, parameters: of the model.

    >>> xu = Planned(54_649)
    >>> round(worth(Reading(), xu, epochs=60, delta=1e-6).epsilon, 2)
    5.43
    >>> worth(Reading(present_groups=True), xu, epochs=60, delta=1e-6, largest_bound=2.5).epsilon
    inf
    """
    rate = planned.batch_size / planned.num_examples
    passes = epochs + reading.more_epochs
    steps = steps_before(reading, planned, passes)
    sigma = planned.noise_multiplier * reading.noise_factor
    if reading.layer_bound is not None:
        sigma /= math.sqrt(layers) * reading.layer_bound
    if reading.bounds_as_weights or not reading.noise_per_bound:
        sigma /= largest_bound

    def spent(noise: float) -> float:
        drawn = (1.0, passes) if reading.shuffled else (rate, steps)
        return epsilon([(Event(drawn[0], noise, statistics_noise), drawn[1])], delta)

    if (reading.present_groups or reading.bounds_as_weights) and largest_bound > 1:
        reason = "the scale of the noise tells which groups are in a batch"
        return Worth(math.inf, spent(sigma), f"{reason}; the estimate is without that")
    if reading.realised_size and not reading.shuffled and sigma:
        ratio = (planned.batch_size + 1) / planned.batch_size
        scales = parameters * ((ratio**2 - 1) / 2 - math.log(ratio))
        noise = (2 * (scales + 0.5 / sigma**2)) ** -0.5
        return Worth(math.inf, spent(noise), "the scale of the noise tells the size of the sample")
    return Worth(spent(sigma), reason=_reason(reading))


def _reason(reading: Reading) -> str:
    """Sentence on the choices that change epsilon; "" where none does."""
    known = {
        "noise_factor": "noise of another size",
        "noise_per_bound": "noise is not scaled to the largest bound",
        "layer_bound": "layers together move by more, or less, than the bound",
        "shuffled": "batches without replacement are not amplified by any known bound",
        "more_epochs": "other steps",
    }
    free = replace(reading, momentum=0.0, learning_rate_factor=1.0, decayed=False, other_weights=False)
    return "; ".join(known[name] for name in free.changes() if name in known)


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
        self.num_groups = num_groups
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
            self._measure(engine, part, inputs, targets)
            for engine, part in zip(self._engines, self._parts, strict=True)
        ]
        norms = torch.stack([each.norms.detach() for each in measured]).square().sum(dim=0).sqrt()
        self._release_statistics(norms, groups, randomness)
        bounds = self._bounds(groups)
        sums: Sums = {}
        for each in measured:
            weights = self._weights(each.norms.detach(), groups, bounds)
            sums.update(each.sums(weights))
        self._add_noise(sums, len(groups), bounds, randomness)
        self.optimizer.step()
        return norms

    def _measure(self, engine: Engine, part: list[nn.Parameter], inputs: Tensor, targets: Tensor) -> Measured:
        if not len(targets):
            return Measured(torch.zeros(0), None, lambda weights: {})
        with self._only(part):
            return engine(inputs, targets)

    @contextmanager
    def _only(self, part: list[nn.Parameter]) -> Iterator[None]:
        """Train these parameters alone, so that norms are of their gradients alone."""
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
        bounds = group_bounds(self.policy, self.state, self.num_groups).float()
        bounds = bounds if self.policy.needs_groups else bounds[:1]
        if len(bounds) == 1 or not (self.reading.present_groups or self.reading.bounds_as_weights):
            return bounds
        present = torch.bincount(groups, minlength=len(bounds)) > 0
        return torch.where(present, bounds, 0.0)

    def _weights(self, norms: Tensor, groups: Tensor, bounds: Tensor) -> Tensor:
        """Weights of one part's gradients, [batch], from their norms."""
        share = self.reading.layer_bound or 1.0
        seen = norms / share  # a norm of share C is clipped as C is
        weights = each_alone(self.policy.weight, self.state, seen, groups) if len(norms) else norms
        weights = capped_weights(
            weights, seen, float(group_bounds(self.policy, self.state, self.num_groups).max())
        )
        if self.reading.bounds_as_weights and len(bounds) > 1:
            weights = weights * (bounds / bounds.mean())[groups].to(weights)
        return weights

    def _add_noise(self, sums: Sums, batch: int, bounds: Tensor, randomness: Randomness) -> None:
        """Put noisy means of the sums into p.grad."""
        blocks = parameter_blocks(self.parameters)
        totals = join_sums(blocks, sums)
        reading, scale = self.reading, float(bounds.max())
        if not reading.noise_per_bound:
            scale = 1.0
        elif reading.bounds_as_weights and len(bounds) > 1:
            scale = float(bounds.max() / bounds.mean())
        divisor = max(1, batch) if reading.realised_size else self.planned.batch_size
        noise = self.planned.noise_multiplier * reading.noise_factor
        release(totals, scale, noise, randomness, float(divisor))
        for parameter, mean in zip(self.parameters, split_sums(blocks, totals), strict=True):
            parameter.grad = mean


def epoch_of_batches(
    reading: Reading, planned: Planned, epoch: int, randomness: Randomness
) -> Iterator[Tensor]:
    """Yield the indices of an epoch's batches, [batch] each.

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


def take_epoch(
    learner: Learner,
    train: GroupedDataset,
    epoch: int,
    randomness: Randomness,
    on_batch: Callable[[Tensor, Tensor], None],
) -> None:
    """Take the steps of one epoch.

    Args:
        learner: takes the steps.
        train: what batches are drawn from.
        epoch: counted from 0.
        randomness: where batches and noise come from.
        on_batch: called with the norms and groups of each batch, [batch] each.
    """
    for indices in epoch_of_batches(learner.reading, learner.planned, epoch, randomness):
        groups = train.groups[indices]
        norms = learner.step(train.one_tensor[indices], train.targets[indices], groups, randomness)
        on_batch(norms, groups)


@final
@dataclass(frozen=True)
class ReadingStudy:
    """A method under readings of a setup; rows call it "method, reading".

    Attributes:
        data: name of the source.
        method: to train with.
        readings: names in `READINGS`.
        hours: about how long one seed takes on one core.
        epochs: of each run, before those that a reading adds.

    Raises:
        SettingError: an unknown method or reading, or no epochs.
    """

    data: str
    method: str
    readings: tuple[str, ...]
    hours: float
    epochs: int = 60

    def __post_init__(self) -> None:
        for reading in self.readings:
            if reading not in READINGS:
                raise unknown_name("reading", reading, READINGS)
        if self.method not in METHODS:
            raise unknown_name("method", self.method, METHODS)
        check_whole(1, epochs=self.epochs)

    def shorten(self) -> ReadingStudy:
        """Return the short form: one epoch, or two where a reading takes one away."""
        return replace(self, epochs=2)

    def rows(self, request: Request) -> tuple[pd.DataFrame, float]:
        """Train what is not kept; return a row per figure and seed, `COLUMNS`, and seconds of all runs."""
        parts, seconds = [], 0.0
        for seed in request.seeds:
            for done, name in enumerate(self.readings, start=1):
                one = replace(self, readings=(name,))
                code = (sys.modules[__name__],)
                table, taken = request.load_or_make(one, seed, partial(_train, one), code)
                last = table[table["at"] == table["at"].max()].assign(at=np.nan)
                parts += [
                    last,
                    table[(table["quantity"] == "accuracy") & table["group"].isin(DRAWN)],
                    last[:1].assign(**self._epsilon(name, seed)),
                ]
                seconds += taken
                if request.on_progress is not None:
                    request.on_progress(done, len(self.readings))
        return pd.concat(parts, ignore_index=True)[COLUMNS], seconds

    def _epsilon(self, name: str, seed: int) -> dict[str, Any]:
        """Epsilon of the runs of a reading, as changes of a row; infinite where nothing is proven."""
        examples = split_facts(open_source(self.data), seed).num_train
        resolved = default_plan(self.data).for_method(self.method).resolve(examples)
        planned = Planned(
            examples, resolved.plan.batch_size, resolved.noise_multiplier, resolved.learning_rate
        )
        value = math.inf
        if resolved.policy.private:
            found = worth(
                READINGS[name],
                planned,
                epochs=self.epochs,
                delta=resolved.delta,
                statistics_noise=statistics_noise(resolved.policy, resolved.noise_multiplier),
                largest_bound=_LARGEST_BOUND if resolved.policy.needs_groups else 1.0,
            )
            value = found.epsilon
        return {"group": ALL, "quantity": "epsilon", "value": value}


def _train(study: ReadingStudy, seed: int, folder: Path) -> pd.DataFrame:
    """Figures of every epoch of the one reading of a study, from the last epoch in the folder on.

    Quantities are accuracy and loss on the test set, and norm, the mean of the epoch's gradient norms.
    """
    split = open_source(study.data).split(seed)
    learner = learner_of(study, split.train, seed)
    epochs = study.epochs + learner.reading.more_epochs
    milestones = [epochs // 2, 3 * epochs // 4] if learner.reading.decayed else []
    schedule = torch.optim.lr_scheduler.MultiStepLR(learner.optimizer, milestones, gamma=0.1)
    rows: list[dict[str, Any]] = []
    done, checkpoint = 0, folder / "checkpoint.pt"
    if checkpoint.exists():
        held = torch.load(BytesIO(checkpoint.read_bytes()), weights_only=True)
        learner.model.load_state_dict(held["model"])
        learner.optimizer.load_state_dict(held["optimizer"])
        schedule.load_state_dict(held["schedule"])
        learner.state = type(learner.state)(**held["state"])
        rows, done = json.loads(held["rows"]), held["done"]
    folder.mkdir(parents=True, exist_ok=True)
    for epoch in range(done, epochs):
        before = steps_before(learner.reading, learner.planned, epoch)
        norms = _Means(split.train.num_groups)
        randomness = SeededRandomness(seed, *([before] if before else []))
        take_epoch(learner, split.train, epoch, randomness, norms.take)
        schedule.step()
        names = {"data": study.data, "method": f"{study.method}, {study.readings[0]}"}
        rows += [
            {**names, "group": group, "quantity": quantity, "at": epoch + 1, "seed": seed, "value": value}
            for group, quantity, value in _figures(learner, split.test, norms)
        ]
        saved = {
            "model": learner.model.state_dict(),
            "optimizer": learner.optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "state": learner.state._asdict(),
            "rows": json.dumps(rows),
            "done": epoch + 1,
        }
        content = BytesIO()
        torch.save(saved, content)
        write_whole(checkpoint, content.getvalue())
    return pd.DataFrame(rows)


def learner_of(study: ReadingStudy, train: GroupedDataset, seed: int) -> Learner:
    """The learner of a study's first reading: the published settings of its data, changed by the reading."""
    reading = READINGS[study.readings[0]]
    plan = default_plan(study.data).with_changes({"epochs": study.epochs})
    resolved = plan.for_method(study.method).resolve(len(train))
    model = build_model(
        resolved.plan.factory, train.input_shape, train.num_classes, seed + 1000 * reading.other_weights
    )
    planned = Planned(
        len(train),
        resolved.plan.batch_size,
        resolved.noise_multiplier,
        resolved.learning_rate,
        resolved.plan.weight_decay,
    )
    policy = make_policy(study.method, vars(resolved.policy))
    return Learner(model, policy, reading, planned, num_groups=train.num_groups)


@final
class _Means:
    """Mean gradient norms by group."""

    def __init__(self, groups: int) -> None:
        self._sums, self._counts = torch.zeros(groups), torch.zeros(groups)

    def take(self, norms: Tensor, groups: Tensor) -> None:
        self._sums.index_add_(0, groups, norms)
        self._counts += torch.bincount(groups, minlength=len(self._counts))

    def by_group(self) -> list[float]:
        means = [*(self._sums / self._counts).tolist(), float(self._sums.sum() / self._counts.sum())]
        return [round(mean, 4) for mean in means]


def _figures(learner: Learner, test: GroupedDataset, norms: _Means) -> list[tuple[str, str, float]]:
    """Accuracy and loss on the test set by group, and the norms of this epoch's gradients."""
    table = group_metrics(predict(learner.model, test.inputs), test.targets, test.groups, test.group_names)
    figures = [
        (str(row["group"]), quantity, round(float(row[quantity]), 5))
        for row in table.to_dict("records")
        for quantity in ("accuracy", "loss")
    ]
    groups = [*test.group_names, ALL]
    return figures + [(name, "norm", value) for name, value in zip(groups, norms.by_group(), strict=True)]
