"""Prototypes: one noisy sum of unit features for each class (DPPL, Wahdany et al., 2406.08039)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from equidp.kernel.policy import Policy


@dataclass(frozen=True)
class Prototypes(Policy):
    """One release of the sum of each class's features, scaled to norm 1; the largest cosine is predicted.

    By name it is a plan of its own (`Method.options` of the table): the model `prototypes` is linear in unit
    features, from weights of zero, its loss is minus the output of the example's own class, and one step is
    taken at sample rate 1. An example's gradient is then its feature in the row of its class, of norm 1, so
    that the step releases S_c = sum of f_i over class c + N(0, sigma^2 I) for all classes at once. Prediction
    reads S_c and sigma alone.

    Formal guarantee: for training data that differ in one example, added or removed, this is a Gaussian
    mechanism of noise multiplier sigma without sampling, as the kernel's step is (`equidp.kernel.step`).

    | case | what it adds to the sums |
    | --- | --- |
    | an example | a vector of norm 1 in one class |
    | features of norm 0 | nothing |
    | features that are infinite or NaN | nothing: the kernel gives such a gradient weight 0 |
    | a person with several rows, perhaps of several classes | the sum of the rows, shortened to norm 1 |
    | a public weight of a row | the feature times the weight, shortened to norm 1 |
    | a class without examples | noise alone, so it is hardly ever predicted |

    Example:
        >>> import torch, equidp
        >>> equidp.METHODS["prototypes"].policy().weight(equidp.NoState(), torch.tensor(2.0), torch.tensor(0))
        tensor(0.5000)
    """

    def bound(self, state: Any, group: Tensor) -> float:
        return 1.0
