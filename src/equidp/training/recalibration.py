"""Recalibration: logits z of a finished model become a z + b, with a scale a and a shift b of each class.

Clipping shifts intercepts: examples of a rare class have the longest gradients, and lose most of them. A few
Newton steps on the training data's logits mend that, for a small share of epsilon.

What the fit reads, and what it costs:

1. Step t sums a row of each training example, of norm at most 1: gradient and curvature of its cross entropy
   in (a, b); of an example of several rows, such as a person, their sum. It is released as a Gaussian
   mechanism of noise multiplier sigma / sqrt(w_t), at sample rate 1. The w_t add up to 1, so all steps are
   dominated by one Gaussian mechanism of noise multiplier sigma (Dong, Roth and Su 2022, corollary 3.3):
   `StepEvent(1.0, sigma)`, which is charged before.
2. All else follows from these sums: with little data beside the noise, a stays near 1 and b near 0.

Groups are not read. The fit knows classes alone, so people are not treated differently by their group.
"""

from __future__ import annotations

import math
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from equidp._validate import check_number
from equidp.data.dataset import GroupedDataset
from equidp.data.views import Views
from equidp.data.weights import ClassWeighted, RowWeighted
from equidp.engines.called import called
from equidp.engines.preserved import device_of
from equidp.engines.units import UnitLoss, by_row
from equidp.errors import ModelError, SettingError
from equidp.kernel.bounding import bounded_rows
from equidp.kernel.inputs import moved_to
from equidp.kernel.ledger import StepEvent
from equidp.kernel.noise import doubled
from equidp.kernel.noisy_sum import release
from equidp.training import parts
from equidp.training.recalibrated import Recalibration
from equidp.training.run import Run
from equidp.training.trainer import Trainer

_SHARES = (1 / 32, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Of the mechanism, of each Newton step: the last one decides."""

_UNIT = 5.0
"""Length of centred logits that counts as 1 in the scale's gradient, so that scale and shifts weigh alike."""

_GRADIENT, _CURVATURE = 2.0, 1.0
"""Lengths of gradient and curvature that an example has room for; public. Longer rows are scaled."""

_EXPECTED, _LONGEST = 1.0, 2.0
"""How far scale (in `_UNIT`) and shifts are expected to move, for where noise leaves it open; and the
longest step."""

_drawn: WeakKeyDictionary[Trainer, int] = WeakKeyDictionary()
"""Trainer -> fits that were drawn: each is paid for by a count of its own in the ledger."""

_CHUNK, _NUMBERS = 4096, 2**22
"""Examples that logits are taken of at a time, and numbers that rows fill at a time."""


def recalibrate(run: Run, trainer: Trainer, noise_multiplier: float | None) -> Run:
    """Returns the run with recalibrated logits, fitted on the training data.

    Pay for it first: spend `StepEvent(1.0, noise_multiplier)`, such as `release_event(epsilon, delta)`, in
    the trainer's ledger, before the first step where all is to be checked against a budget. Draw it once.

    Args:
        run: what the trainer gave.
        trainer: of a classifier that is trained on cross entropy, perhaps weighted.
        noise_multiplier: sigma of the whole fit; 0 for a run without privacy; None: the run stays as it is.

    Raises:
        SettingError: the ledger does not hold the event, or the model or its loss has no logits to mend.

    Example:
        >>> import equidp
        >>> from equidp.kernel.ledger import StepEvent
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> trainer = equidp.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), data,
        ...     policy=equidp.DPSGD(), batch_size=16, steps=4, noise_multiplier=2.0, delta=1e-3)
        >>> trainer.ledger.spend(StepEvent(1.0, 20.0))
        >>> run = equidp.recalibrate(trainer.fit(), trainer, 20.0)
        >>> [event.noise_multiplier for event, _ in run.entries]
        [20.0, 2.0]
    """
    if noise_multiplier is None:
        return run
    model = fitted(run.model, trainer, noise_multiplier).applied(run.model)
    return replace(run, model=model, facts=replace(run.facts, recalibrated=True))


def check_recalibrates(trainer: Trainer) -> None:
    """Raises a SettingError unless the trainer's loss is cross entropy, perhaps weighted, of classes."""
    loss, _ = _unweighted(trainer.loss)
    numbers = isinstance(trainer.train, GroupedDataset) and trainer.train.target_bounds is not None
    plain = type(loss) is nn.CrossEntropyLoss and loss.weight is None and not loss.label_smoothing
    if numbers or not plain:
        has = "a target that is a number" if numbers else "a loss of its own"
        raise SettingError(
            f"recalibration mends the logits of classes that were trained by cross entropy; this run has "
            f"{has}. Leave recalibration out (--recalibration 0)."
        )


def fitted(model: nn.Module, trainer: Trainer, noise_multiplier: float) -> Recalibration:
    """Returns scale and shift for a model, the same in all processes.

    Formal guarantee: for training data that differ in one example, added or removed, this is a Gaussian
    mechanism of noise multiplier `noise_multiplier`, without sampling; see the module.

    | case | outcome |
    | --- | --- |
    | logits that are infinite or NaN | the example counts nowhere |
    | a class without examples | its shift is negative, as far as noise lets that be seen |
    | few examples beside the noise | scale about 1, shifts about 0 |
    | a second fit, paid for once | SettingError |
    | noise_multiplier = 0 | after training without privacy, the exact fit; otherwise SettingError |
    | several processes | each sums its shard; the first adds the noise |

    Raises:
        SettingError: the trainer's ledger does not hold `StepEvent(1.0, noise_multiplier)`, or see
            `check_recalibrates`.
        ModelError: outputs are no logits, [batch, classes].
    """
    check_number("[0, inf)", noise_multiplier=noise_multiplier)
    check_recalibrates(trainer)
    event = StepEvent(1.0, noise_multiplier)
    if not noise_multiplier and trainer.event.noise_multiplier:
        raise SettingError(
            "noise_multiplier=0 would recalibrate a private run without noise, and end its guarantee; give "
            "the noise that was paid for."
        )
    if noise_multiplier and event == trainer.event:
        raise SettingError(
            f"{event} is a step of the training itself, so that the ledger cannot tell the two apart; choose "
            "another noise multiplier for the recalibration."
        )
    if noise_multiplier and trainer.ledger.count_of(event) <= _drawn.get(trainer, 0):
        raise SettingError(
            f"the ledger does not hold {event}, which pays for this recalibration, or one was drawn for it "
            "already; spend it there first: trainer.ledger.spend(...)."
        )
    _drawn[trainer] = _drawn.get(trainer, 0) + 1
    with trainer.processes.or_leave():
        with trainer.randomness.for_model(device_of(model)):  # which may draw, as the dataset may
            logits, targets, weights = _read(model, trainer)
        classes = logits.shape[2]
        place = torch.zeros(classes + 1, dtype=torch.float64)
        for share in _SHARES:
            noise = noise_multiplier / math.sqrt(share)
            total = _summed(logits, targets, weights, place.to(logits.device))
            release([total], 1.0, noise, trainer.randomness, 1.0, trainer.processes)
            place = _moved(place, total.cpu(), noise)
        found = doubled(place.to(logits.device))
        trainer.processes.share([found])  # rounding may differ between machines
    scale, *shift = found.tolist()
    return Recalibration(min(max(1 + scale / _UNIT, 0.1), 10.0), tuple(shift))


def _unweighted(loss: object) -> tuple[object, ClassWeighted | None]:
    """The loss of one example without its weights, and the weights of classes where there are any."""
    by_class = None
    while isinstance(loss, ClassWeighted | RowWeighted | UnitLoss):
        by_class = loss if isinstance(loss, ClassWeighted) else by_class
        loss = loss.loss
    return loss, by_class


def _read(model: nn.Module, trainer: Trainer) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [n, rows, classes], classes and weights [n, rows] of this process' examples, on the model's
    device."""
    shard = trainer.processes.shard(trainer.num_examples)
    load = parts.loader(trainer.train, None, 0, model, Views(), trainer.randomness)  # as prediction sees them
    device, was_training = device_of(model), model.training
    _, by_class = _unweighted(trainer.loss)
    read: list[tuple[Tensor, Tensor, Tensor]] = []
    model.eval()
    try:
        with torch.no_grad():
            for batch in load(torch.arange(shard.start, shard.stop).split(_CHUNK)):
                inputs, pairs = moved_to((batch.inputs, batch.targets), device)
                rows = pairs.shape[1] if pairs.dim() == 3 else 1  # of a unit of privacy
                logits = called(model, by_row(inputs) if pairs.dim() == 3 else inputs)
                targets = (pairs if pairs.dim() == 1 else pairs[..., 0]).long().view(-1, rows)
                weights = pairs[..., 1].view(-1, rows) if pairs.dim() > 1 else torch.ones_like(targets)
                if by_class is not None:
                    weights = weights * by_class.weights.to(device)[targets]
                if logits.dim() != 2 or logits.shape[1] < 2:
                    raise ModelError(
                        f"the model's outputs have shape {list(logits.shape)}; recalibration expects logits "
                        "of two or more classes, [batch, classes]."
                    )
                read.append((logits.view(-1, rows, logits.shape[1]), targets, weights))
    finally:
        model.train(was_training)
    logits, targets, weights = (torch.cat(each) for each in zip(*read, strict=True))
    return logits, targets, weights


def _summed(logits: Tensor, targets: Tensor, weights: Tensor, place: Tensor) -> Tensor:
    """The sum over examples, each of norm at most 1 with all its rows; [numbers of a row], float64."""
    count, size = logits.shape[1], logits.shape[2] + 1
    total = doubled(logits.new_zeros(size + size * (size + 1) // 2))
    step = max(1, _NUMBERS // (count * size * size))
    for some in zip(logits.split(step), targets.split(step), weights.split(step), strict=True):
        one, its_classes, its_weights = (each.flatten(0, 1) for each in some)
        rows = _rows(one, its_classes, its_weights, place)
        total += bounded_rows(rows.view(-1, count, rows.shape[1]).sum(dim=1), 1.0).sum(dim=0)
    return total


def _rows(logits: Tensor, targets: Tensor, weights: Tensor, place: Tensor) -> Tensor:
    """Gradient and curvature of each example's loss in scale and shifts, side by side; float64."""
    logits, place = doubled(logits), doubled(place)
    unit = (logits - logits.mean(dim=1, keepdim=True)) / _UNIT
    chances = torch.softmax(logits + place[0] * unit + place[1:], dim=1)
    wrong = chances - nn.functional.one_hot(targets, logits.shape[1])
    gradient = torch.cat([(wrong * unit).sum(1, keepdim=True), wrong], dim=1)
    ways = torch.cat([unit.unsqueeze(2), torch.eye(logits.shape[1]).to(unit).expand(len(unit), -1, -1)], 2)
    mean = (chances.unsqueeze(2) * ways).sum(1)
    curvature = torch.einsum("nc,nci,ncj->nij", chances, ways, ways) - mean.unsqueeze(2) * mean.unsqueeze(1)
    first, second, count = _upper(curvature.shape[1])
    rows = torch.cat([gradient / _GRADIENT, curvature[:, first, second] * count.to(unit) / _CURVATURE], dim=1)
    return rows * doubled(weights).unsqueeze(1) / math.sqrt(2)


def _upper(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Places of a symmetric matrix' upper half, and factors that keep its norm."""
    first, second = torch.triu_indices(size, size)
    return first, second, torch.where(first == second, 1.0, math.sqrt(2))


def _moved(place: Tensor, total: Tensor, noise: float) -> Tensor:
    """The next place: the most likely one, given noisy gradient and curvature, and moves of `_EXPECTED`."""
    size = len(place)
    gradient = total[:size] * math.sqrt(2) * _GRADIENT
    first, second, count = _upper(size)
    curvature = torch.zeros(size, size, dtype=torch.float64)
    curvature[first, second] = total[size:] * math.sqrt(2) * _CURVATURE / count
    curvature[second, first] = curvature[first, second].clone()
    sizes, ways = torch.linalg.eigh(curvature)
    sizes = sizes.clamp_min(0.0)
    doubt = (noise * math.sqrt(2) * _GRADIENT / _EXPECTED) ** 2
    pull = sizes * (ways.T @ gradient) + doubt * (ways.T @ place)
    step = -(ways @ (pull / (sizes.square() + doubt).clamp_min(1e-9)))
    place = place + step * (_LONGEST / step.norm().clamp_min(_LONGEST))
    place[1:] -= place[1:].mean()  # a shift of all classes changes nothing
    return place.clamp(-20.0, 20.0)
