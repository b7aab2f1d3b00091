"""Optimizers by name. They see private gradients alone, so they cost no privacy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, final

import torch
from torch import Tensor

from equidp._validate import check_number, unknown_name
from equidp.errors import SettingError
from equidp.kernel.policy import copy_state
from equidp.kernel.step import PrivateStep

OPTIMIZERS = ("sgd", "adam")

ADAM_RATE = 0.01
"""Learning rate of Adam where none is given: about how far a step moves each weight."""

_SMALLEST = 1e-16
"""Of the second moment, where there is no noise: the square of the epsilon of torch's Adam."""


def _no_noise() -> float:
    return 0.0


@final
class PrivateAdam(torch.optim.Optimizer):
    """Adam whose second moments are those of the gradients, without the variance of their noise.

    The mean of squared private gradients is the mean of squared gradients plus the noise's variance, which
    is the same in all coordinates and as a rule much larger: plain Adam then divides all by the same. The
    variance (sigma S / b)^2 is public, so it is subtracted (DP-AdamBC: Tang, Shpilevskiy and Lecuyer, AAAI
    2024, algorithm 1):

        theta <- theta - lr * m / sqrt(max(v - phi, floor * phi)),

    with m, v and phi the exponential means of gradients, of their squares and of the noise's variance, each
    divided by 1 - beta^t. S of adaptive methods changes, so phi is a mean over steps too. The floor is a
    share of phi, where the paper has a constant, so that it need not be tuned to S and b. Without noise this
    is Adam.

    The `Trainer` that it is given to tells it the noise of each step.

    Args:
        params: parameters or groups of them, as for any torch optimizer.
        lr: learning rate.
        betas: of the means of gradients, and of squares and variances.
        weight_decay: share of the weights, times lr, that each step takes off, as AdamW does.
        floor: smallest second moment, as a share of the noise's variance.

    Raises:
        SettingError: a value outside its range.

    Example:
        >>> import torch, equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> trainer = equidp.Trainer(
        ...     model, equidp.PrivateAdam(model.parameters(), lr=0.02), data, policy=equidp.DPSGD(),
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

    deviation: Callable[[], float] = staticmethod(_no_noise)
    """Of the noise in each coordinate of the gradients that are there."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Takes a step along the gradients in `p.grad`, whose noise has the deviation `deviation()`."""
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


def follow(optimizer: torch.optim.Optimizer, step: PrivateStep) -> None:
    """Lets an optimizer that asks for it know the deviation of the noise in each private gradient."""
    if isinstance(optimizer, PrivateAdam):
        optimizer.deviation = lambda: noise_deviation(step)


def noise_deviation(step: PrivateStep) -> float:
    """sigma S / b of the last private gradient: public, for S follows from the policy's released state."""
    sigma = step.event.noise_multiplier
    if not sigma:
        return 0.0
    return sigma * float(step.policy.sensitivity(copy_state(step.state))) / step.expected_batch_size


def check_optimizer_name(name: str, momentum: float) -> None:
    """Refuses an unknown optimizer, and momentum for one that has its own.

    Raises:
        SettingError: names the closest one, or says what to leave out.
    """
    if name not in OPTIMIZERS:
        raise unknown_name("optimizer", name, OPTIMIZERS)
    if name == "adam" and momentum:
        raise SettingError(f"momentum={momentum} is of SGD, and adam has its own, 0.9; leave momentum out.")
