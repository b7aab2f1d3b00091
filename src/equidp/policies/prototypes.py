"""Prototypes: one noisy sum of unit features for each class (DPPL, Wahdany et al., 2406.08039)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equidp.kernel.policy import Policy


@dataclass(frozen=True)
class Prototypes(Policy):
    """Releases the sum of each class's features, scaled to norm 1, once; predicts the largest cosine.

    The name brings its own plan (`Method.options` of the table). The model `prototypes` is linear in unit
    features, from weights of zero. Its loss is minus the output of the example's own class, and one step is
    taken at sampling rate 1. An example's gradient is then its feature in the row of its class, of norm 1.
    The step therefore releases S_c = sum of f_i over class c + N(0, sigma^2 I) for all classes at once.
    Prediction uses only S_c and sigma.

    Formal guarantee: for training data that differ in one example, added or removed, this is a Gaussian
    mechanism of noise multiplier sigma without sampling, as the kernel's step is (`equidp.kernel.step`).

    | case | what it adds to the sums |
    | --- | --- |
    | an example | a vector of norm 1 in one class |
    | features of norm 0 | nothing |
    | features that are infinite or NaN | nothing: the kernel gives such a gradient weight 0 |
    | a person with several rows, perhaps of several classes | the sum of the rows, clipped to norm 1 |
    | a public weight of a row | the feature times the weight, clipped to norm 1 |
    | a class without examples | only noise, so it is hardly ever predicted |

    Example:
        >>> import torch, equidp
        >>> equidp.METHODS["prototypes"].policy().weight(equidp.NoState(), torch.tensor(2.0), torch.tensor(0))
        tensor(0.5000)
    """

    def bound(self, state: Any, group: Tensor) -> float:
        return 1.0
