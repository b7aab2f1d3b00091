"""Which method, and with what settings: from the shape of the data and, if there is one, a profile of gradient norms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from equidp._validate import check_whole
from equidp.accounting import calibrate_noise
from equidp.accounting.schedule import default_delta
from equidp.advice.norm_profile import NormProfile
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon as epsilon_of
from equidp.kernel.epsilon import checked_delta
from equidp.kernel.ledger import StepEvent
from equidp.policies.methods import METHODS
from equidp.training.plan import ModelFactory, Plan

_LEAST_EPOCHS, _MOST_EPOCHS = 20.0, 100.0
_ENOUGH_STEPS = 200
_SMALLEST_BATCH = 64
_NOISE_SLACK = 1.25
_LEAST_QUANTILE, _MOST_QUANTILE = 0.5, 0.99
_SMOOTHING = 0.9
_COUNT_TO_NOISE = 3.0
_QUIET = 0.02
_LOUD = 0.5
_LEARNING_RATE = 0.5
_WANDERING = 4.0


@dataclass(frozen=True)
class Advice:
    """What to train with, and why.

    Attributes:
        method: a name from `METHODS`.
        settings: of `Plan`, the method's own included.
        steps: T.
        noise_multiplier: sigma, with which the advice and the training together cost `epsilon`.
        epsilon, delta: of advice and training together.
        spent: what the advice cost; nothing without a private profile.
        noise_ratio: length of the noise that is left in the mean of all steps' gradients, as a multiple of the clipping bound.
        reasons: a sentence for each choice.
    """

    method: str
    settings: dict[str, Any]
    steps: int
    noise_multiplier: float
    epsilon: float
    delta: float
    spent: tuple[tuple[StepEvent, int], ...]
    noise_ratio: float
    reasons: tuple[str, ...]

    @property
    def cost(self) -> float:
        """Epsilon of the advice alone, at `delta`."""
        return epsilon_of(self.spent, self.delta)

    def plan(self, model: str | ModelFactory) -> Plan:
        """The settings as a plan for this model, noise included."""
        return Plan(model, **self.settings, noise_multiplier=self.noise_multiplier, delta=self.delta)

    def in_words(self) -> list[str]:
        """Lines for a reader."""
        shown = [f"{name.replace('_', ' ')} {value:g}" for name, value in self.settings.items()]
        return [
            f"Method {self.method}: {', '.join(shown)}.",
            f"{self.steps:,} steps with noise multiplier {self.noise_multiplier:.4g}: "
            f"epsilon {self.epsilon:g} at delta {self.delta:g}, this advice included.",
            f"This advice cost epsilon {self.cost:.3g}." if self.spent else "This advice cost nothing.",
            "",
            *(f"- {reason}" for reason in self.reasons),
        ]


@dataclass(frozen=True)
class _Schedule:
    batch_size: int
    epochs: float
    steps: int
    noise_multiplier: float

    def noise_ratio(self, num_parameters: int) -> float:
        """sigma sqrt(d) / (b sqrt(T)): see `Advice.noise_ratio`."""
        return self.noise_multiplier * math.sqrt(num_parameters / self.steps) / self.batch_size


def advise(
    num_examples: int,
    num_parameters: int,
    *,
    epsilon: float,
    delta: float | None = None,
    num_groups: int = 1,
    profile: NormProfile | None = None,
) -> Advice:
    """Method and settings for a target epsilon, by the rules of docs/advise.md. Reads public numbers and the profile alone.

    Args:
        num_examples: n, to train on.
        num_parameters: d, trainable ones of the model.
        epsilon: of the profile, if it was private, and the training together.
        delta: None: a tenth of 1 / n, rounded down to a power of ten.
        num_groups: K.
        profile: from `public_profile` or `private_profile`.

    Raises:
        SettingError: numbers that make no sense, or a profile that leaves nothing of epsilon.
    """
    check_whole(1, num_examples=num_examples, num_parameters=num_parameters, num_groups=num_groups)
    delta = checked_delta(default_delta(num_examples) if delta is None else delta)
    spent = () if profile is None else profile.spent
    if spent and epsilon_of(spent, delta) >= epsilon:
        raise SettingError(
            f"the profile cost epsilon {epsilon_of(spent, delta):.3g} of {epsilon:g}; nothing is left to train with."
        )
    schedule, reasons = _schedule(num_examples, epsilon, delta, spent)
    ratio = schedule.noise_ratio(num_parameters)
    usable = profile if profile is not None and profile.is_usable else None
    if profile is not None and usable is None:
        reasons.append(
            "Profile: the counts of norms do not stand out from their noise, so it is as if there were none."
        )
    if usable is not None:
        bound, reason = _clipping_bound(usable, ratio)
        method, own, choice = _with_profile(usable, schedule, ratio, bound, num_groups)
    else:
        bound, reason = 1.0, "Clipping bound 1: no norms are known; the method finds its own scale."
        method, own, choice = _without_profile(ratio, num_groups)
    learning_rate, walk = _learning_rate(schedule, ratio, bound)
    settings: dict[str, Any] = {
        "clipping_bound": bound,
        "batch_size": schedule.batch_size,
        "epochs": schedule.epochs,
        "learning_rate": learning_rate,
        **own,
    }
    statistics = METHODS[method].make(Plan(**settings), num_groups).statistics_ratio
    rate = schedule.batch_size / num_examples
    noise = calibrate_noise(epsilon, delta, rate, schedule.steps, statistics, "pld", spent)
    return Advice(
        method,
        settings,
        schedule.steps,
        noise,
        epsilon,
        delta,
        spent,
        ratio,
        (choice, reason, *reasons, walk, _model(ratio, num_parameters)),
    )


def _schedule(
    n: int, epsilon: float, delta: float, spent: tuple[tuple[StepEvent, int], ...]
) -> tuple[_Schedule, list[str]]:
    """The smallest batch whose noise, averaged over the run, is close to the least that any batch has."""
    sizes = [2**power for power in range(int(math.log2(_SMALLEST_BATCH)), 15) if 2**power <= n / 2] or [n]
    options = []
    for size in sizes:
        epochs = min(_MOST_EPOCHS, max(_LEAST_EPOCHS, math.ceil(_ENOUGH_STEPS * size / n)))
        steps = math.floor(epochs * n / size)
        sigma = calibrate_noise(epsilon, delta, size / n, steps, None, "rdp", spent)
        options.append(_Schedule(size, epochs, steps, sigma))
    least = min(option.noise_ratio(1) for option in options)
    chosen = next(option for option in options if option.noise_ratio(1) <= _NOISE_SLACK * least)
    above = chosen.noise_ratio(1) / least - 1
    return chosen, [
        f"Batch size {chosen.batch_size}: the smallest power of two whose noise, averaged over all steps, is at most "
        f"{_NOISE_SLACK - 1:.0%} above the least that any has (here {above:.0%}).",
        f"Epochs {chosen.epochs:g}: {_LEAST_EPOCHS:g}, or what {_ENOUGH_STEPS} steps take, but {_MOST_EPOCHS:g} at most.",
    ]


def _clipping_bound(profile: NormProfile, ratio: float) -> tuple[float, str]:
    level = min(_MOST_QUANTILE, max(_LEAST_QUANTILE, 1 - ratio))
    bound = float(f"{profile.quantile(level):.3g}")
    return bound, (
        f"Clipping bound {bound:.3g}: the {level:.0%} quantile of the norms at the start. A lower bound cuts off more of the "
        f"gradient than it saves in noise, which is {ratio:.2g} of the bound when averaged over all steps."
    )


def _with_profile(
    profile: NormProfile, schedule: _Schedule, ratio: float, bound: float, num_groups: int
) -> tuple[str, dict[str, float], str]:
    if num_groups == 1:
        return "dpsgd", {}, "Method dpsgd: there is one group, so nothing to even out."
    smallest = min(profile.group_shares) * schedule.batch_size
    count_noise = (
        Plan().statistics_ratio * schedule.noise_multiplier * math.sqrt((1 - _SMOOTHING) / (1 + _SMOOTHING))
    )
    counts = (
        f"the smallest group has about {smallest:.3g} examples in a batch, beside noise of {count_noise:.3g} on "
        "its smoothed count"
    )
    if smallest >= _COUNT_TO_NOISE * count_noise:
        own = {"smoothing": _SMOOTHING}
        return "dpsgd-f-code", own, f"Method dpsgd-f-code: {counts}, so its bound can follow its gradients."
    if ratio <= _QUIET:
        own = {"initial_bound": bound}
        return (
            "global-adapt",
            own,
            f"Method global-adapt: {counts}, too little for a bound of its own, and noise is low enough to "
            "scale all gradients alike, so that long ones of rare groups keep their direction.",
        )
    return (
        "dpsgd",
        {},
        f"Method dpsgd: {counts}, and noise is {ratio:.2g} of the bound: methods that even out would add more than they "
        "take away. Rare groups will pay; more of their data, or a larger epsilon, would help.",
    )


def _without_profile(ratio: float, num_groups: int) -> tuple[str, dict[str, float], str]:
    if ratio >= _LOUD:
        return "automatic", {}, f"Method automatic: noise is {ratio:.2g} of the bound, so lengths say little."
    if num_groups > 1 and ratio <= _QUIET:
        return (
            "global-adapt",
            {},
            "Method global-adapt: noise is low enough to scale all gradients alike, and it learns the scale.",
        )
    return "quantile", {}, "Method quantile: its bound follows the median of the norms as it trains."


def _learning_rate(schedule: _Schedule, ratio: float, bound: float) -> tuple[float, str]:
    walk = ratio * bound * schedule.steps  # how far noise alone moves the weights at learning rate 1
    rate = float(f"{min(_LEARNING_RATE, _WANDERING / walk):.2g}")
    return rate, (
        f"Learning rate {rate:g}: {_LEARNING_RATE:g}, or less where noise alone would move the weights by more than {_WANDERING:g} "
        f"in all (here {rate * walk:.2g})."
    )


def _model(ratio: float, num_parameters: int) -> str:
    advice = (
        " A smaller model, or frozen layers, would lower it with the root of the number."
        if ratio > _QUIET
        else ""
    )
    return (
        f"Model: {num_parameters:,} parameters. The noise left is {ratio:.2g} of a clipped gradient.{advice}"
    )
