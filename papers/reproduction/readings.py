"""Other readings of a paper's setup: one choice changed at a time, to see why figures differ.

A text leaves open how batches are drawn, what noise is scaled to, whether there is momentum. This loop trains
with such a choice changed; most of them break the guarantee, so nothing here is part of the private step, no
ledger is charged, and models are measured on public data and thrown away. With no choice changed, it takes
the same steps as `equidp.Trainer`. `worth` says what a reading is worth in epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

from equidp.extend import check_number, check_whole
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent


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
        """Returns the choices that differ from equidp's own training."""
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
    """Returns how many steps the epochs before this one, counted from 0, have.

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
        return epsilon([(StepEvent(drawn[0], noise, statistics_noise), drawn[1])], delta)

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
