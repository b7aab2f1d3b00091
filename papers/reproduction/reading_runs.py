"""Runs of readings, kept as they come: one JSON a run, and a checkpoint while it lasts."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from equidp import METHODS, GroupedDataset, default_plan
from equidp.data import open_source
from equidp.data.dataset import ALL
from equidp.evaluation.groups import group_metrics
from equidp.evaluation.predict import predict
from equidp.extend import check_whole, unknown_name, versions, write_whole
from equidp.kernel.noise import SeededRandomness
from equidp.policies.methods import make_policy
from equidp.training.build import build_model
from papers.reproduction.reading_loop import Learner, steps_before, take_epoch
from papers.reproduction.readings import READINGS, Planned

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
        commit: of the code, or a digest of it, to be told with the figures.
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
        """Names the run's files: what it is, and a digest of that with the reading's choices."""
        content = json.dumps([asdict(self), asdict(READINGS[self.reading])], sort_keys=True)
        digest = hashlib.sha256(content.encode()).hexdigest()[:10]
        return f"{self.data}-{self.method}-{self.reading}-{self.epochs}-{self.seed}-{digest}"


@final
@dataclass(frozen=True)
class KeptRun:
    """What a run gave.

    Attributes:
        rows: data, method, reading, group, quantity, at (epoch), seed and value, of every epoch. Quantities
            are accuracy and loss on the test set, and norm, the mean of the epoch's gradient norms.
        seconds: that it took.
    """

    rows: list[Row]
    seconds: float


def kept_run(
    run: ReadingRun, folder: Path, on_epoch: Callable[[int, list[Row]], None] = lambda epoch, rows: None
) -> KeptRun:
    """A run from its file, or trained and written to it.

    A run that was stopped goes on from the last epoch that it completed.

    Args:
        run: what to train.
        folder: of kept runs; made if it is not there.
        on_epoch: is told how many epochs are done, and the rows of the last one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run.key}.json"
    if path.exists():
        content = json.loads(path.read_text(encoding="utf-8"))
        return KeptRun(content["rows"], content["seconds"])
    checkpoint = folder / f"{run.key}.pt"
    found = _trained(run, checkpoint, on_epoch)
    facts = {"run": asdict(run), "reading": asdict(READINGS[run.reading]), "versions": versions()}
    write_whole(path, (json.dumps({**facts, **asdict(found)}, indent=1) + "\n").encode())
    checkpoint.unlink(missing_ok=True)
    return found


def _trained(run: ReadingRun, checkpoint: Path, on_epoch: Callable[[int, list[Row]], None]) -> KeptRun:
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
    return KeptRun(rows, round(spent, 2))


def learner_of(run: ReadingRun, train: GroupedDataset) -> Learner:
    """The learner of a run: the published settings of its data, changed by its reading."""
    reading = READINGS[run.reading]
    plan = default_plan(run.data).with_changes({"epochs": run.epochs})
    resolved = plan.resolve(run.method, len(train))
    seed = run.seed + 1000 * reading.other_weights
    model = build_model(resolved.factory, train.input_shape, train.num_outputs, seed)
    planned = Planned(
        len(train),
        resolved.batch_size,
        resolved.noise_multiplier,
        resolved.learning_rate,
        resolved.weight_decay,
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
    told = {"data": run.data, "method": run.method, "reading": run.reading}
    figures = [
        (str(row["group"]), quantity, round(float(row[quantity]), 5))
        for row in table.to_dict("records")
        for quantity in ("accuracy", "loss")
    ]
    names = [*test.group_names, ALL]
    figures += [(name, "norm", value) for name, value in zip(names, norms.by_group(), strict=True)]
    return [
        {**told, "group": group, "quantity": quantity, "at": epoch, "seed": run.seed, "value": value}
        for group, quantity, value in figures
    ]
