"""Training under a reading: the loop, and runs, kept as one JSON each and a checkpoint while they last."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, final

import pandas as pd
import torch
from torch import Tensor, nn

from equidp import METHODS, GroupedDataset, Policy, Setting, default_plan, private_sum
from equidp.data import open_source
from equidp.data.dataset import ALL
from equidp.engines import make_engine
from equidp.engines.measurement import MeasuredBatch
from equidp.evaluation.groups import group_metrics
from equidp.evaluation.predict import predict
from equidp.extend import check_whole, unknown_name, versions, write_whole
from equidp.kernel.bounding import capped_weights, each_alone, example_rows
from equidp.kernel.engine import Engine, Measured, Sums
from equidp.kernel.noise import Randomness, SeededRandomness
from equidp.kernel.noisy_sum import release, totals_of
from equidp.kernel.policy import statistics_noise
from equidp.kernel.sampling import PoissonSampler
from equidp.policies.methods import make_policy
from equidp.store import Entry, Store, key_of
from equidp.training.build import build_model
from papers.reproduction.readings import READINGS, Planned, Reading, steps_before

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
            self._measure(engine, part, inputs, targets)
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

    def _measure(self, engine: Engine, part: list[nn.Parameter], inputs: Tensor, targets: Tensor) -> Measured:
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


def take_epoch(
    learner: Learner,
    train: GroupedDataset,
    epoch: int,
    randomness: Randomness,
    on_batch: Callable[[Tensor, Tensor], None],
) -> None:
    """Takes the steps of one epoch.

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


Row = dict[str, Any]


@final
@dataclass(frozen=True)
class ReadingRun:
    """One training under a reading.

    Attributes:
        method: a name in `equidp.policies.METHODS`.
        reading: a name in `READINGS`.
        epochs: passes over the data, before those that the reading adds.
        seed: of data, weights, batches and noise.
        data: name of a source, whose published settings are used.
        commit: of the code, or a digest of it, saved with the figures.
    """

    method: str = "dpsgd"
    reading: str = "base"
    epochs: int = 60
    seed: int = 0
    data: str = "mnist"
    commit: str = "unknown"

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise unknown_name("reading", self.reading, READINGS)
        if self.method not in METHODS:
            raise unknown_name("method", self.method, METHODS)
        check_whole(1, epochs=self.epochs)
        check_whole(0, seed=self.seed)

    @property
    def key(self) -> str:
        """Key of the run's figures: equal for equal settings and choices of the reading."""
        return key_of(asdict(self), asdict(READINGS[self.reading]))


@final
@dataclass(frozen=True)
class ReadingFigures:
    """Figures of a run.

    Attributes:
        rows: data, method, reading, group, quantity, at (epoch), seed and value, of every epoch. Quantities
            are accuracy and loss on the test set, and norm, the mean of the epoch's gradient norms.
        seconds: that it took.
    """

    rows: list[Row]
    seconds: float

    @classmethod
    def read(cls, entry: Entry) -> ReadingFigures:
        """Figures that are kept in a store."""
        rows: list[Row] = entry.table("rows").to_dict("records")
        return cls(rows, entry.facts["seconds"])


def load_or_train(
    run: ReadingRun, folder: Path, on_epoch: Callable[[int, list[Row]], None] = lambda epoch, rows: None
) -> ReadingFigures:
    """Figures of a run, kept in a folder or trained and kept there.

    A run that was stopped goes on from the last epoch that it completed.

    Args:
        run: what to train.
        folder: of kept runs; made if it is not there.
        on_epoch: called with the number of epochs done, and the rows of the last one.
    """
    store = Store(folder)
    store.check()
    entry = store.get(run.key)
    if entry is None:
        checkpoint = folder / f"{run.key}.pt"
        found = _train(run, checkpoint, on_epoch)
        facts = {"run": asdict(run), "reading": asdict(READINGS[run.reading]), "versions": versions()}
        what = f"{run.data} {run.method} {run.reading} seed {run.seed}"
        entry = store.put(
            run.key, {"rows": pd.DataFrame(found.rows)}, {**facts, "seconds": found.seconds}, what=what
        )
        checkpoint.unlink(missing_ok=True)
    return ReadingFigures.read(entry)


def _train(run: ReadingRun, checkpoint: Path, on_epoch: Callable[[int, list[Row]], None]) -> ReadingFigures:
    split = open_source(run.data).split(run.seed)
    train = split.train
    learner = learner_of(run, train)
    epochs = run.epochs + learner.reading.more_epochs
    milestones = [epochs // 2, 3 * epochs // 4] if learner.reading.decayed else []
    schedule = torch.optim.lr_scheduler.MultiStepLR(learner.optimizer, milestones, gamma=0.1)
    rows: list[Row] = []
    done, spent = 0, 0.0
    if checkpoint.exists():
        held = torch.load(BytesIO(checkpoint.read_bytes()), weights_only=True)
        learner.model.load_state_dict(held["model"])
        learner.optimizer.load_state_dict(held["optimizer"])
        schedule.load_state_dict(held["schedule"])
        learner.state = type(learner.state)(**held["state"])
        rows, done, spent = json.loads(held["rows"]), held["done"], held["seconds"]
    for epoch in range(done, epochs):
        began = time.perf_counter()
        before = steps_before(learner.reading, learner.planned, epoch)
        norms = _Means(train.num_groups)
        randomness = SeededRandomness(run.seed, *([before] if before else []))
        take_epoch(learner, train, epoch, randomness, norms.take)
        schedule.step()
        found = _figures(run, learner, split.test, epoch + 1, norms)
        rows += found
        spent += time.perf_counter() - began
        content = BytesIO()
        saved = {
            "model": learner.model.state_dict(),
            "optimizer": learner.optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "state": learner.state._asdict(),
            "rows": json.dumps(rows),
            "done": epoch + 1,
            "seconds": spent,
        }
        torch.save(saved, content)
        write_whole(checkpoint, content.getvalue())
        on_epoch(epoch + 1, found)
    return ReadingFigures(rows, round(spent, 2))


def learner_of(run: ReadingRun, train: GroupedDataset) -> Learner:
    """The learner of a run: the published settings of its data, changed by its reading."""
    reading = READINGS[run.reading]
    plan = default_plan(run.data).with_changes({"epochs": run.epochs})
    resolved = plan.resolve(run.method, len(train))
    seed = run.seed + 1000 * reading.other_weights
    model = build_model(resolved.plan.factory, train.input_shape, train.num_outputs, seed)
    planned = Planned(
        len(train),
        resolved.plan.batch_size,
        resolved.noise_multiplier,
        resolved.learning_rate,
        resolved.plan.weight_decay,
    )
    policy = make_policy(run.method, vars(resolved.policy))
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


def _figures(run: ReadingRun, learner: Learner, test: GroupedDataset, epoch: int, norms: _Means) -> list[Row]:
    """Accuracy and loss on the test set by class, and the norms of this epoch's gradients."""
    table = group_metrics(predict(learner.model, test.inputs), test.targets, test.groups, test.group_names)
    names = {"data": run.data, "method": run.method, "reading": run.reading}
    figures = [
        (str(row["group"]), quantity, round(float(row[quantity]), 5))
        for row in table.to_dict("records")
        for quantity in ("accuracy", "loss")
    ]
    groups = [*test.group_names, ALL]
    figures += [(name, "norm", value) for name, value in zip(groups, norms.by_group(), strict=True)]
    return [
        {**names, "group": group, "quantity": quantity, "at": epoch, "seed": run.seed, "value": value}
        for group, quantity, value in figures
    ]
