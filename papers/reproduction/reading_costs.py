"""What a reading is worth in epsilon: by equidp's own accounting where a bound is known."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import final

from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent
from papers.reproduction.reading_loop import steps_before
from papers.reproduction.readings import Planned, Reading


@final
@dataclass(frozen=True)
class Worth:
    """What can be said of a reading's privacy.

    Attributes:
        epsilon: the smallest that is proven, for one example added or removed (shuffled: replaced by a
            gradient of zero); infinite where none is.
        estimate: of what one example reveals, where nothing is proven; NaN where it is.
        reason: why, in a sentence.
    """

    epsilon: float
    estimate: float = math.nan
    reason: str = ""


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
    """What a training under this reading is worth; see `equidp.epsilon` for how it is bounded.

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
    """What of a reading changes epsilon, in a sentence; "" where nothing does."""
    known = {
        "noise_factor": "noise of another size",
        "noise_per_bound": "noise is not scaled to the largest bound",
        "layer_bound": "layers together move by more, or less, than the bound",
        "shuffled": "batches without replacement are not amplified by any known bound",
        "more_epochs": "other steps",
    }
    free = replace(reading, momentum=0.0, learning_rate_factor=1.0, decayed=False, other_weights=False)
    return "; ".join(known[name] for name in free.changes() if name in known)
