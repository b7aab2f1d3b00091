"""Recalibration: logits z of a finished model become a z + b, with a scale a and a shift b of each class.

Clipping shifts intercepts: examples of a rare class have the longest gradients, and lose most of them. A few
Newton steps on the training data's logits correct that, for a small share of epsilon.

What the fit reads, and what it costs:

1. Step t sums a row of each training example, of norm at most 1: gradient and curvature of its cross entropy
   in (a, b); of an example of several rows, such as a person, their sum. It is released as a Gaussian
   mechanism of noise multiplier sigma / sqrt(w_t), at sample rate 1. The w_t add up to 1, so all steps are
   dominated by one Gaussian mechanism of noise multiplier sigma (Dong, Roth and Su 2022, corollary 3.3):
   what `Ledger.pay` charges, just before the first step, once the logits are known.
2. All else follows from these sums: with little data beside the noise, a stays near 1 and b near 0.

Groups are not read. The fit knows classes alone, so people are not treated differently by their group.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

import torch
from torch import Tensor, nn

from equidp._validate import check_number
from equidp.accounting.limit import unstated_entries
from equidp.accounting.planned import RECALIBRATION
from equidp.data.views import Views
from equidp.engines import runs_batches
from equidp.engines.model import call_for_tensor, device_of, one_tensor, outputs_in
from equidp.engines.units import by_row
from equidp.errors import ModelError, SettingError
from equidp.kernel.bounding import bounded_rows, summed_rows
from equidp.kernel.inputs import in_parts, moved_to
from equidp.kernel.ledger import Payment, ReleaseEvent
from equidp.kernel.noise import to_double
from equidp.kernel.noisy_sum import release
from equidp.losses import Loss
from equidp.training import assemble
from equidp.training.initial_weights import copy_model
from equidp.training.run import Run
from equidp.training.trainer import Trainer

_SHARES = (1 / 32, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2)
"""Share of the mechanism that each Newton step gets: most for the last one, which decides."""

_UNIT = 5.0
"""Length of centred logits that counts as 1 in the scale's gradient, so that scale and shifts weigh alike."""

_GRADIENT, _CURVATURE = 2.0, 1.0
"""Lengths of gradient and curvature that an example has room for; public. Longer rows are scaled."""

_EXPECTED, _LONGEST = 1.0, 2.0
"""Expected move of scale (in `_UNIT`) and shifts, a prior for directions that noise leaves open; and the
longest step."""


_CHUNK, _NUMBERS = 4096, 2**22
"""Examples that logits are taken of at a time, and numbers that rows fill at a time."""


def recalibrate(run: Run, trainer: Trainer, noise_multiplier: float | Payment | None) -> Run:
    """Return the run with recalibrated logits, fitted on the training data.

    Each call draws a fit of its own and pays for it, in the trainer's ledger and its budget: keep what came
    out. `trainer.ledger.promise` sets it aside in a budget before the first step, and
    `trainer.ledger.pay("recalibration", sigma)` pays before; give what that returns in place of sigma.

    Args:
        run: returned by this trainer.
        trainer: of a classifier that is trained on cross entropy, perhaps weighted.
        noise_multiplier: sigma of the whole fit, such as that of `release_event(epsilon, delta)`; or its
            payment; 0 for a run without privacy; None: the run stays as it is.

    Raises:
        SettingError: the model or its loss has no logits to recalibrate, or the run is another trainer's.
        BudgetError: the fit does not fit into the budget; nothing is drawn.

    Example:
        >>> import equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> trainer = equidp.Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1), data,
        ...     policy=equidp.DPSGD(), batch_size=16, steps=4, noise_multiplier=2.0, delta=1e-3)
        >>> run = equidp.recalibrate(trainer.fit(), trainer, 20.0)
        >>> [event.noise_multiplier for event, _ in run.entries]
        [2.0, 20.0]
    """
    _check_run(run, trainer)
    if noise_multiplier is None:
        return run
    by, facts = fit_recalibration(run.model, trainer, noise_multiplier), replace(run.facts, recalibrated=True)
    return replace(run, model=by.apply_to(run.model), entries=trainer.ledger.entries, facts=facts)


def _check_run(run: object, trainer: object) -> None:
    """Refuse a run with steps that the ledger of the trainer lacks: epsilon would be without them."""
    for name, value, kind in (("run", run, Run), ("trainer", trainer, Trainer)):
        if not isinstance(value, kind):
            raise SettingError(
                f"{name} is a {type(value).__name__}; expected recalibrate(run, trainer, noise_multiplier), "
                "the run as the trainer returned it.",
                field=name,
            )
    assert isinstance(run, Run)
    assert isinstance(trainer, Trainer)
    missing = unstated_entries(tuple(run.entries), tuple(trainer.ledger.entries))
    if others := sum(steps for _, steps in missing):
        raise SettingError(
            f"{others} steps of the run are not in the trainer's ledger; recalibrate a run with the trainer "
            "that returned it.",
            field="trainer",
        )


@final
@dataclass(frozen=True)
class Recalibration:
    """Affine recalibration of logits: z becomes scale z + shift.

    Attributes:
        scale: of all classes, > 0.
        shift: of each class.
        payment: random id of the payment for the fit; "" if nothing was paid.

    >>> recalibrated = Recalibration(2.0, (0.0, 1.0)).apply_to(nn.Sequential(nn.Linear(3, 2)))
    >>> type(recalibrated[-1]).__name__
    'Linear'
    """

    scale: float
    shift: tuple[float, ...]
    payment: str = ""

    @classmethod
    def identity(cls, classes: int) -> Recalibration:
        """Recalibration that changes no logits."""
        return cls(1.0, (0.0,) * classes)

    def apply_to(self, model: nn.Module) -> nn.Module:
        """Return a copy of the model with recalibrated logits.

        The last linear layer of a `Sequential` takes scale and shift into its weights; other models are
        wrapped in `Recalibrated`. Which of the two it is follows from the model's layers alone.

        Raises:
            ModelError: the model cannot be copied.
        """
        model = copy_model(model, "recalibration")
        last = model
        while type(last) is nn.Sequential and len(last):
            last = last[-1]
        if type(last) is not nn.Linear or last.bias is None:
            return Recalibrated(model, self)
        with torch.no_grad():
            last.weight.mul_(self.scale)
            last.bias.mul_(self.scale).add_(torch.tensor(self.shift).to(last.bias))
        return model


@final
class Recalibrated(nn.Module):
    """Model with recalibrated logits; its `state_dict` holds scale and shift.

    >>> Recalibrated(nn.Identity(), Recalibration(2.0, (0.0, 1.0)))(torch.ones(1, 2))
    tensor([[2., 3.]])
    """

    def __init__(self, model: nn.Module, by: Recalibration) -> None:
        super().__init__()
        self.model = model
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        self.register_buffer("scale", torch.tensor(by.scale, device=device))
        self.register_buffer("shift", torch.tensor(by.shift, device=device))

    def forward(self, *inputs: Tensor, **named: Tensor) -> Tensor:
        """Logits, [batch, classes]."""
        logits = one_tensor(outputs_in(self.model(*inputs, **named)))
        return logits * self.scale + self.shift  # type: ignore[operator]


def check_recalibrates(trainer: Trainer) -> None:
    """Raise a SettingError unless the trainer's loss is cross entropy, perhaps weighted, of classes."""
    loss = Loss.of(trainer.loss).base
    plain = type(loss) is nn.CrossEntropyLoss and loss.weight is None and not loss.label_smoothing
    if not plain:
        raise SettingError(
            "recalibration corrects logits of classes that were trained by cross entropy; this run has "
            "a loss of its own. Leave recalibration out (--recalibration 0).",
            field="recalibration",
        )


def fit_recalibration(model: nn.Module, trainer: Trainer, noise: float | Payment) -> Recalibration:
    """Fit scale and shift for a model; the same in all processes.

    Formal guarantee: for training data that differ in one example, added or removed, this is a Gaussian
    mechanism of noise multiplier `noise_multiplier`, without sampling; see the module.

    | case | outcome |
    | --- | --- |
    | logits that are infinite or NaN | the example counts nowhere |
    | a class without examples | its shift is negative, as far as noise lets that be seen |
    | few examples beside the noise | scale about 1, shifts about 0 |
    | a second fit | paid for again |
    | the model fails on the data | nothing is paid, and a payment can be used again |
    | noise_multiplier = 0 | after training without privacy, the exact fit; otherwise SettingError |
    | several processes | each sums its shard; the first adds the noise |

    Raises:
        SettingError: see `check_recalibrates`.
        BudgetError: the budget cannot pay for the fit; no row is read.
        ModelError: the model's outputs are not logits, [batch, classes]; nothing is paid.
    """
    paid = [noise] if isinstance(noise, Payment) else []
    noise_multiplier = noise.event.noise_multiplier if isinstance(noise, Payment) else noise
    check_number("[0, inf)", noise_multiplier=noise_multiplier)
    check_recalibrates(trainer)
    if not noise_multiplier and trainer.event.noise_multiplier:
        raise SettingError(
            "noise_multiplier=0 would recalibrate a private run without noise, and end its guarantee; give "
            "the noise that was paid for."
        )
    first = trainer.processes.first  # which alone has the ledger that pays
    if paid and first:
        trainer.ledger.check_paid(paid[0])
    pays = bool(noise_multiplier) and not paid
    event = ReleaseEvent(1.0, noise_multiplier, name=RECALIBRATION)
    if pays:  # refused before a row is read
        trainer.processes.run_on_first(lambda: trainer.ledger.expect(event, 1))
    try:
        with trainer.processes.leave_group_on_failure(), trainer.randomness.for_model(device_of(model)):
            logits, targets, weights = _read(model, trainer)  # may draw, as the dataset may
    except BaseException:
        if pays and first:
            trainer.ledger.expect(event, 0)
        raise
    if pays:
        trainer.processes.run_on_first(
            lambda: paid.append(trainer.ledger.pay(RECALIBRATION, noise_multiplier))
        )
    if paid:
        paid[0].draw()
    with trainer.processes.leave_group_on_failure():
        classes = logits.shape[2]
        parameters = torch.zeros(classes + 1, dtype=torch.float64)
        for share in _SHARES:
            multiplier = noise_multiplier / math.sqrt(share)
            total = _sum_rows(logits, targets, weights, parameters.to(logits.device))
            release([total], 1.0, multiplier, trainer.randomness, 1.0, trainer.processes)
            parameters = _newton_step(parameters, total.cpu(), multiplier)
        fitted = to_double(parameters.to(logits.device))
        trainer.processes.copy_from_first([fitted])  # rounding may differ between machines
    scale, *shift = fitted.tolist()
    payment = paid[0].event.id if paid else ""
    return Recalibration(min(max(1 + scale / _UNIT, 0.1), 10.0), tuple(shift), payment)


def _read(model: nn.Module, trainer: Trainer) -> tuple[Tensor, Tensor, Tensor]:
    """Logits [n, rows, classes], classes and weights [n, rows] of this process' examples, on the model's
    device. The model is given each example alone unless a trial has shown that it keeps them apart in a batch
    (`engines.runs_batches`)."""
    shard = trainer.processes.shard(trainer.num_examples)
    load = assemble.loader(  # as prediction sees them
        trainer.train, None, 0, model, Views(), trainer.randomness, collation=trainer.collation
    )
    device, was_training = device_of(model), model.training
    at_a_time = None if runs_batches(trainer.engine, evaluating=True) else 1
    read: list[tuple[Tensor, Tensor, Tensor]] = []
    model.eval()
    try:
        with torch.no_grad():
            for batch in load(torch.arange(shard.start, shard.stop).split(_CHUNK)):
                inputs, pairs = moved_to((batch.inputs, batch.targets), device)
                assert isinstance(pairs, Tensor)  # cross entropy reads nothing else
                rows = pairs.shape[1] if pairs.dim() == 3 else 1  # of a unit of privacy
                units = in_parts(inputs, at_a_time) or [inputs]
                if pairs.dim() == 3:
                    units = [by_row(each) for each in units]
                logits = torch.cat([call_for_tensor(model, each) for each in units])
                targets = (pairs if pairs.dim() == 1 else pairs[..., 0]).long().view(-1, rows)
                weights = Loss.of(trainer.loss).weights(pairs).view(-1, rows)
                if logits.dim() != 2 or logits.shape[1] < 2:
                    raise ModelError(
                        f"the model's outputs have shape {list(logits.shape)}; recalibration expects logits "
                        "of two or more classes, [batch, classes].",
                        field="model",
                    )
                read.append((logits.view(-1, rows, logits.shape[1]), targets, weights))
    finally:
        model.train(was_training)
    logits, targets, weights = (torch.cat(each) for each in zip(*read, strict=True))
    return logits, targets, weights


def _sum_rows(logits: Tensor, targets: Tensor, weights: Tensor, parameters: Tensor) -> Tensor:
    """Sum over examples of their rows, of norm at most 1 for each example; [numbers of a row], float64."""
    count, size = logits.shape[1], logits.shape[2] + 1
    total = to_double(logits.new_zeros(size + size * (size + 1) // 2))
    step = max(1, _NUMBERS // (count * size * size))
    for some in zip(logits.split(step), targets.split(step), weights.split(step), strict=True):
        one, its_classes, its_weights = (each.flatten(0, 1) for each in some)
        rows = _rows(one, its_classes, its_weights, parameters)
        total += summed_rows(bounded_rows(rows.view(-1, count, rows.shape[1]).sum(dim=1), 1.0))
    return total


def _rows(logits: Tensor, targets: Tensor, weights: Tensor, parameters: Tensor) -> Tensor:
    """Gradient and curvature of each example's loss in scale and shifts, side by side; float64."""
    logits, parameters = to_double(logits), to_double(parameters)
    unit = (logits - logits.mean(dim=1, keepdim=True)) / _UNIT
    probabilities = torch.softmax(logits + parameters[0] * unit + parameters[1:], dim=1)
    residuals = probabilities - nn.functional.one_hot(targets, logits.shape[1])
    gradient = torch.cat([(residuals * unit).sum(1, keepdim=True), residuals], dim=1)
    features = torch.cat(
        [unit.unsqueeze(2), torch.eye(logits.shape[1]).to(unit).expand(len(unit), -1, -1)], 2
    )
    mean = (probabilities.unsqueeze(2) * features).sum(1)
    curvature = torch.einsum("nc,nci,ncj->nij", probabilities, features, features) - mean.unsqueeze(
        2
    ) * mean.unsqueeze(1)
    first, second, count = _upper(curvature.shape[1])
    rows = torch.cat([gradient / _GRADIENT, curvature[:, first, second] * count.to(unit) / _CURVATURE], dim=1)
    return rows * to_double(weights).unsqueeze(1) / math.sqrt(2)


def _upper(size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Places of a symmetric matrix' upper half, and factors that keep its norm."""
    first, second = torch.triu_indices(size, size)
    return first, second, torch.where(first == second, 1.0, math.sqrt(2))


def _newton_step(parameters: Tensor, total: Tensor, noise: float) -> Tensor:
    """Most likely next scale and shifts, given noisy gradient and curvature, and moves of `_EXPECTED`."""
    size = len(parameters)
    gradient = total[:size] * math.sqrt(2) * _GRADIENT
    first, second, count = _upper(size)
    curvature = torch.zeros(size, size, dtype=torch.float64)
    curvature[first, second] = total[size:] * math.sqrt(2) * _CURVATURE / count
    curvature[second, first] = curvature[first, second].clone()
    curvatures, directions = torch.linalg.eigh(curvature)
    curvatures = curvatures.clamp_min(0.0)
    damping = (noise * math.sqrt(2) * _GRADIENT / _EXPECTED) ** 2
    pull = curvatures * (directions.T @ gradient) + damping * (directions.T @ parameters)
    step = -(directions @ (pull / (curvatures.square() + damping).clamp_min(1e-9)))
    parameters = parameters + step * (_LONGEST / step.norm().clamp_min(_LONGEST))
    parameters[1:] -= parameters[1:].mean()  # a shift of all classes changes nothing
    return parameters.clamp(-20.0, 20.0)
