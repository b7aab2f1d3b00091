"""Advice on a method and its settings from public numbers and, optionally, a profile of gradient norms."""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any, NamedTuple

from equidp._validate import check_whole
from equidp.accounting import calibrate_noise
from equidp.accounting.planned import default_delta
from equidp.advice.norm_profile import NormProfile, Spent
from equidp.errors import SettingError
from equidp.kernel.epsilon import checked_delta, epsilon as epsilon_of
from equidp.policies.methods import make_policy
from equidp.training.plan import ModelFactory, Plan


@dataclass(frozen=True)
class Rules:
    """Numbers behind the advice, each with its reason (docs/advise.md); none can cost privacy."""

    least_epochs: float = 20.0  # Xu et al. and Esipova et al. train tables for 20 epochs
    most_epochs: float = 100.0  # bounds the time on small datasets
    enough_steps: int = (
        200  # with fewer, a small dataset stays untrained at any learning rate that noise allows
    )
    smallest_batch: int = 64  # smaller ones need more steps for more noise
    noise_slack: float = (
        1.25  # closer to the least noise, larger batches cost more time than they bring accuracy
    )
    least_quantile: float = 0.5  # Abadi et al. 2016 clip at the median
    most_quantile: float = 0.99  # keeps single extreme norms from setting the bound
    smoothing: float = 0.9  # of DPSGD-F's counts: averages their noise over about 20 steps
    count_to_noise: float = 3.0  # a count of three standard deviations of its noise is seldom noise alone
    quiet: float = 0.02  # noise ratio: global-adapt gains on MNIST at 0.018, and dpsgd on digits at 0.036
    loud: float = 0.5  # noise ratio from which the length of a gradient says little (Bu et al. 2022)
    learning_rate: float = 0.5  # of runs that noise does not limit
    wandering: float = 4.0  # length of the random walk by noise alone that weights of order 1 tolerate


_RULES = Rules()


@dataclass(frozen=True)
class Advice:
    """Recommended method and settings, with reasons.

    Attributes:
        method: a name from `METHODS`.
        settings: fields of `Plan` and settings of the method, by name.
        steps: T.
        noise_multiplier: sigma, with which advice and training together cost `epsilon`.
        epsilon, delta: of advice and training together.
        spent: entries that the advice spent; empty without a private profile.
        noise_ratio: length of the noise left in the mean of all steps' gradients, in clipping bounds.
        reasons: a sentence for each choice.
    """

    method: str
    settings: dict[str, Any]
    steps: int
    noise_multiplier: float
    epsilon: float
    delta: float
    spent: Spent
    noise_ratio: float
    reasons: tuple[str, ...]

    @property
    def cost(self) -> float:
        """Epsilon of the advice alone, at `delta`."""
        return epsilon_of(self.spent, self.delta)

    def plan(self, model: str | ModelFactory) -> Plan:
        """Return the settings as a plan for this model, noise included."""
        plan = Plan(model, noise_multiplier=self.noise_multiplier, delta=self.delta)
        return plan.with_changes(self.settings)

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in self.in_words() if line)

    def in_words(self) -> list[str]:
        """Return lines for a reader."""
        shown = [f"{name.replace('_', ' ')} {value:g}" for name, value in self.settings.items()]
        return [
            f"Method {self.method}: {', '.join(shown)}.",
            f"{self.steps:,} steps with noise multiplier {self.noise_multiplier:.4g}: epsilon "
            f"{self.epsilon:g} at delta {self.delta:g}, this advice included.",
            f"This advice cost epsilon {self.cost:.3g}; another costs as much again."
            if self.spent
            else "This advice cost nothing.",
            "",
            *(f"- {reason}" for reason in self.reasons),
        ]


class _Schedule(NamedTuple):
    batch_size: int
    epochs: float
    steps: int
    noise_multiplier: float

    def noise_ratio(self, num_parameters: int) -> float:
        """sigma sqrt(d) / (b sqrt(T)): see `Advice.noise_ratio`."""
        return self.noise_multiplier * math.sqrt(num_parameters / self.steps) / self.batch_size


class _Choice(NamedTuple):
    method: str
    settings: dict[str, float]
    why: str


def advise(
    num_examples: int,
    num_parameters: int,
    *,
    epsilon: float,
    delta: float | None = None,
    num_groups: int = 1,
    profile: NormProfile | None = None,
) -> Advice:
    """Return method and settings for a target epsilon, from public numbers and the profile alone.

    Args:
        num_examples: n, of the training data.
        num_parameters: d, number of trainable parameters of the model.
        epsilon: of the profile, if it was private, and the training together.
        delta: None: a tenth of 1 / n, rounded down to a power of ten.
        num_groups: K.
        profile: from `public_profile` or `private_profile`.

    Raises:
        SettingError: a number out of range, or a profile that leaves nothing of epsilon.

    Example:
        >>> advice = advise(1_229, 10**6, epsilon=1.0, num_groups=2)
        >>> advice.method, advice.settings["batch_size"]
        ('automatic', 64)
    """
    check_whole(1, num_examples=num_examples, num_parameters=num_parameters, num_groups=num_groups)
    delta = checked_delta(default_delta(num_examples) if delta is None else delta)
    spent = () if profile is None else profile.spent
    if spent and epsilon_of(spent, delta) >= epsilon:
        raise SettingError(
            f"the profile cost epsilon {epsilon_of(spent, delta):.3g} of {epsilon:g}; nothing is left to "
            "train with. Give it less, or raise epsilon."
        )
    schedule, reasons = _schedule(num_examples, epsilon, delta, spent)
    ratio = schedule.noise_ratio(num_parameters)
    if profile is not None and not profile.is_usable:
        reasons.append(
            "Profile: the counts of norms do not stand out from their noise, so it is as if there were none."
        )
        profile = None
    if profile is None:
        bound, reason = 1.0, "Clipping bound 1: no norms are known; the method finds its own scale."
        choice = _without_profile(ratio, num_groups)
    else:
        bound, reason = _clipping_bound(profile, ratio)
        choice = _with_profile(profile, schedule, ratio, bound, num_groups)
    learning_rate, walk = _learning_rate(schedule, ratio, bound)
    settings: dict[str, Any] = {
        "clipping_bound": bound,
        "batch_size": schedule.batch_size,
        "epochs": schedule.epochs,
        "learning_rate": learning_rate,
        **choice.settings,
    }
    statistics = make_policy(choice.method, settings).statistics_ratio
    rate = schedule.batch_size / num_examples
    return Advice(
        choice.method,
        settings,
        schedule.steps,
        calibrate_noise(epsilon, delta, rate, schedule.steps, statistics, "pld", spent),
        epsilon,
        delta,
        spent,
        ratio,
        (f"Method {choice.method}: {choice.why}", reason, *reasons, walk, _model(ratio, num_parameters)),
    )


def _schedule(n: int, epsilon: float, delta: float, spent: Spent) -> tuple[_Schedule, list[str]]:
    """Return the smallest batch whose noise, averaged over the run, is close to the least of any batch."""
    first = int(math.log2(_RULES.smallest_batch))
    options = []
    for size in [2**power for power in range(first, 15) if 2**power <= n / 2] or [n]:
        epochs = max(_RULES.least_epochs, math.ceil(_RULES.enough_steps * size / n))
        epochs = min(_RULES.most_epochs, epochs)
        steps = math.floor(epochs * n / size)
        sigma = calibrate_noise(epsilon, delta, size / n, steps, None, "rdp", spent)
        options.append(_Schedule(size, epochs, steps, sigma))
    least = min(option.noise_ratio(1) for option in options)
    chosen = next(option for option in options if option.noise_ratio(1) <= _RULES.noise_slack * least)
    above = chosen.noise_ratio(1) / least - 1
    return chosen, [
        f"Batch size {chosen.batch_size}: the smallest power of two whose noise, averaged over all steps, is "
        f"at most {_RULES.noise_slack - 1:.0%} above the least that any has (here {above:.0%}).",
        f"Epochs {chosen.epochs:g}: {_RULES.least_epochs:g}, or what {_RULES.enough_steps} steps take, but "
        f"{_RULES.most_epochs:g} at most.",
    ]


def _clipping_bound(profile: NormProfile, ratio: float) -> tuple[float, str]:
    level = min(_RULES.most_quantile, max(_RULES.least_quantile, 1 - ratio))
    bound = float(f"{profile.quantile(level):.3g}")
    return bound, (
        f"Clipping bound {bound:.3g}: the {level:.0%} quantile of the norms at the start. A lower bound cuts "
        f"off more of the gradient than it saves in noise, which is {ratio:.2g} of the bound when averaged "
        "over all steps."
    )


def _with_profile(
    profile: NormProfile, schedule: _Schedule, ratio: float, bound: float, num_groups: int
) -> _Choice:
    if num_groups == 1:
        return _Choice("dpsgd", {}, "there is one group, so nothing to even out.")
    expected = min(profile.group_shares) * schedule.batch_size
    followed = make_policy("dpsgd-f-code", {"smoothing": _RULES.smoothing})
    averaged = math.sqrt((1 - _RULES.smoothing) / (1 + _RULES.smoothing))
    noise = float(followed.statistics_ratio or 0) * schedule.noise_multiplier * averaged
    counts = (
        f"the smallest group has about {expected:.3g} examples in a batch, beside noise of {noise:.3g} on "
        "its smoothed count"
    )
    if expected >= _RULES.count_to_noise * noise:
        why = f"{counts}, so its bound can follow its gradients."
        return _Choice("dpsgd-f-code", {"smoothing": _RULES.smoothing}, why)
    if ratio <= _RULES.quiet:
        why = (
            f"{counts}, too little for a bound of its own, and noise is low enough to scale all gradients "
            "alike, so that long ones of rare groups keep their direction."
        )
        return _Choice("global-adapt", {"initial_bound": bound}, why)
    why = (
        f"{counts}, and noise is {ratio:.2g} of the bound: methods that even out would add more than they "
        "take away. Rare groups will pay; more of their data, or a larger epsilon, would help."
    )
    return _Choice("dpsgd", {}, why)


def _without_profile(ratio: float, num_groups: int) -> _Choice:
    if ratio >= _RULES.loud:
        return _Choice("automatic", {}, f"noise is {ratio:.2g} of the bound, so lengths say little.")
    if num_groups > 1 and ratio <= _RULES.quiet:
        why = "noise is low enough to scale all gradients alike, and it learns the scale."
        return _Choice("global-adapt", {}, why)
    return _Choice("quantile", {}, "its bound follows the median of the norms as it trains.")


def _learning_rate(schedule: _Schedule, ratio: float, bound: float) -> tuple[float, str]:
    walk = ratio * bound * schedule.steps  # how far noise alone moves the weights at learning rate 1
    rate = float(f"{min(_RULES.learning_rate, _RULES.wandering / walk):.2g}")
    return rate, (
        f"Learning rate {rate:g}: {_RULES.learning_rate:g}, or less where noise alone would move the weights "
        f"by more than {_RULES.wandering:g} in all (here {rate * walk:.2g})."
    )


def _model(ratio: float, num_parameters: int) -> str:
    text = f"Model: {num_parameters:,} parameters. The noise left is {ratio:.2g} of a clipped gradient."
    advice = " A smaller model, or frozen layers, would lower it with the root of the number."
    return text + (advice if ratio > _RULES.quiet else "")
