"""Optimizers and schedules of the learning rate, by name or as objects of torch, and checks of them."""

from __future__ import annotations

import math
import warnings
from abc import ABC
from collections.abc import Callable, Iterable
from inspect import unwrap
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR, ReduceLROnPlateau

from equidp._validate import check_number, unknown_name
from equidp.errors import SettingError
from equidp.kernel.step import PrivateStep
from equidp.policies.weights import sensitivity_of

OPTIMIZERS = ("sgd", "adam")

ADAM_RATE = 0.01
"""Default learning rate of Adam: about how far a step moves each weight."""

_SMALLEST = 1e-16
"""Lower bound of the second moment without noise: the squared epsilon of torch's Adam."""


class _EagerOptimizer(torch.optim.Optimizer, ABC):
    """Base of optimizers that do not load torch's compiler.

    torch wraps these methods so that `torch.compile` skips them. The wrappers import the compiler, which
    takes longer than importing the rest of torch. The wrapped methods are unchanged.
    """

    add_param_group = unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = unwrap(torch.optim.Optimizer.zero_grad)
    state_dict = unwrap(torch.optim.Optimizer.state_dict)
    load_state_dict = unwrap(torch.optim.Optimizer.load_state_dict)


_sgd_step = unwrap(torch.optim.SGD.step)


@final
class SGD(_EagerOptimizer, torch.optim.SGD):
    """`torch.optim.SGD`, step by step, without torch's compiler."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step along the gradients in `p.grad`."""
        _sgd_step(self)


@final
class PrivateAdam(_EagerOptimizer):
    """Adam with the noise variance subtracted from its second moments.

    The mean of squared private gradients is the mean of squared gradients plus the noise variance. This
    variance is the same in all coordinates and usually much larger, so plain Adam divides all coordinates by
    nearly the same value. The variance (sigma S / b)^2 is public, so it can be subtracted (DP-AdamBC: Tang,
    Shpilevskiy and Lecuyer, AAAI 2024, algorithm 1):

        theta <- theta - lr * m / sqrt(max(v - phi, floor * phi)),

    with m, v and phi the exponential means of gradients, squared gradients and noise variance, each divided
    by 1 - beta^t. Phi is a mean over steps because S of adaptive methods changes. The floor is a share of
    phi, so that it need not be tuned to S and b. The paper has a constant. Without noise this is Adam.

    The `Trainer` sets the noise of each step.

    Args:
        params: parameters or parameter groups, as for any torch optimizer.
        lr: learning rate.
        betas: decay rates of the means of gradients, and of squares and variances.
        weight_decay: decoupled weight decay, as in AdamW.
        floor: smallest second moment, as a share of the noise variance.

    Raises:
        SettingError: a value outside its range.

    Example:
        >>> import torch, equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> trainer = equidp.Trainer(
        ...     model, equidp.PrivateAdam(model.parameters(), lr=0.02), data, method=equidp.DPSGD(),
        ...     batch_size=16, steps=4, noise_multiplier=2.0, delta=1e-3)
        >>> trainer.optimizer.deviation()  # sigma C / b
        0.125
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        floor: float = 0.1,
    ) -> None:
        check_number("(0, inf)", lr=lr, floor=floor)
        check_number("[0, inf)", weight_decay=weight_decay)
        for beta in betas:
            check_number("[0, 1)", beta=beta)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "floor": floor})

    deviation: Callable[[], float] = staticmethod(lambda: 0.0)
    """Standard deviation of the noise in each coordinate of the current gradients."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step along the gradients in `p.grad`, whose noise has standard deviation `deviation()`."""
        variance = self.deviation() ** 2
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group, variance)

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], variance: float) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state |= {"step": 0, "mean": torch.zeros_like(parameter), "square": torch.zeros_like(parameter)}
            state["variance"] = 0.0
        state["step"] += 1
        state["mean"].lerp_(gradient, 1 - beta1)
        state["square"].mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        state["variance"] += (variance - state["variance"]) * (1 - beta2)
        known = 1 - beta2 ** state["step"]
        noise = state["variance"] / known
        second = (state["square"] / known - noise).clamp_(min=max(group["floor"] * noise, _SMALLEST))
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        rate = group["lr"] / (1 - beta1 ** state["step"])
        parameter.addcdiv_(state["mean"], second.sqrt_(), value=-rate)


def connect_noise(optimizer: torch.optim.Optimizer, step: PrivateStep) -> None:
    """Give `PrivateAdam` the deviation of the noise in each private gradient of a step."""
    if isinstance(optimizer, PrivateAdam):
        optimizer.deviation = lambda: noise_deviation(step)


def noise_deviation(step: PrivateStep) -> float:
    """sigma S / b of the last private gradient: public, for S follows from the policy's released state."""
    sigma = step.event.noise
    if not sigma:
        return 0.0
    return sigma * sensitivity_of(step.policy, step.weights_state, step.num_groups) / step.expected_batch_size


def check_optimizer_name(name: str, momentum: float) -> None:
    """Reject an unknown optimizer, and momentum for one that has its own.

    Raises:
        SettingError: the message names the closest one, or says what to leave out.
    """
    if name not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)
    if name == "adam" and momentum:
        raise SettingError(f"momentum={momentum} is of SGD, and adam has its own, 0.9; leave momentum out.")


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1 - done,
    "cosine": lambda done: (1 + math.cos(math.pi * done)) / 2,
}
"""Name -> function from the share of steps taken to the remaining share of the learning rate."""


def chosen_scheduler(
    given: Any, optimizer: torch.optim.Optimizer, steps: int, done: int
) -> LRScheduler | None:
    """Return the scheduler that a Trainer steps after each of its steps. None: the rate is constant.

    Args:
        given: a torch scheduler, or a name from `SCHEDULES`.
        optimizer: optimizer with the learning rates of the first step.
        steps: number of steps of the run. The schedule ends with the last one.
        done: number of them that the ledger has already.

    Raises:
        SettingError: an unknown name, or a scheduler that does not fit.

    >>> optimizer = torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.8)
    >>> scheduler = chosen_scheduler("linear", optimizer, steps=4, done=1)
    >>> scheduler.get_last_lr()
    [0.6000000000000001]
    """
    if not isinstance(given, str):
        _check_scheduler(given, optimizer, steps - done)
        return given  # type: ignore[no-any-return]
    if given not in SCHEDULES:
        raise unknown_name("schedule", given, SCHEDULES)
    if given == "constant":
        return None
    for group in optimizer.param_groups:
        group["initial_lr"] = float(group["lr"])
    left = SCHEDULES[given]
    return LambdaLR(optimizer, lambda step: left(min(step / max(1, steps), 1.0)), last_epoch=done - 1)


def restore_scheduler(scheduler: LRScheduler | None, state: dict[str, Any] | None, lost: int) -> None:
    """Set a scheduler to its saved state, and move it past steps that were lost since."""
    if scheduler is None or state is None:
        return
    scheduler.load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns when a scheduler steps without its optimizer
        for _ in range(lost):
            scheduler.step()


def check_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    """Reject an optimizer that lacks parameters the model trains, or takes several gradients a step."""
    several = isinstance(optimizer, torch.optim.LBFGS | torch.optim.SparseAdam)
    if several or not isinstance(optimizer, torch.optim.Optimizer):
        raise SettingError(
            f"optimizer={optimizer!r}; expected a torch optimizer that takes one dense gradient a step, such "
            "as torch.optim.SGD(model.parameters(), lr=0.1)."
        )
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
    left = [name for name, parameter in trained if id(parameter) not in held]
    if left:
        raise SettingError(
            f"the optimizer does not hold {', '.join(left[:3])}{' and others' if len(left) > 3 else ''}; "
            "make it from model.parameters() after the last change to the model (make_compatible is one), or "
            "freeze those (requires_grad_(False)).",
            field="optimizer",
        )


def _check_scheduler(scheduler: Any, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """Reject a scheduler that belongs to another optimizer, needs a value, or ends within this many steps."""
    if isinstance(scheduler, ReduceLROnPlateau):
        raise SettingError(
            "ReduceLROnPlateau follows a measured value, and the Trainer steps a scheduler "
            "without one; step it in a callback's after_epoch, with a value of public or test data.",
            field="scheduler",
        )
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise SettingError(
            "the scheduler was made for another optimizer, and would change nothing; make it for this one.",
            field="scheduler",
        )
    if isinstance(scheduler, OneCycleLR) and (left := scheduler.total_steps - scheduler.last_epoch) < steps:
        raise SettingError(
            f"the scheduler ends after {left} more steps, and the plan has {steps}; set its total_steps to "
            "cover them.",
            field="scheduler",
        )
