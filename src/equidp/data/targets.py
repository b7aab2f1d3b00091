"""Targets with their weights, and class weights.

A weight multiplies the loss of one example before its gradient is clipped, so it scales only that example's
gradient. The private step measures the norm of the scaled gradient and bounds it as any other. The
sensitivity stays the same, and weights cost nothing, as long as they are public. A weight beyond clipping
bound / norm has no further effect, so weights do most if the largest is about 1.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from equidp._validate import MOST_WEIGHT, check_number, names, unknown_name
from equidp.errors import SettingError


def with_weights(targets: Tensor, weights: Tensor) -> Tensor:
    """Return targets and weights side by side, [..., 2], float32, which holds classes up to 2^24 exactly."""
    return torch.stack([targets.to(torch.float32), weights.to(torch.float32)], dim=-1)


def hidden_weights_sentence(largest: float) -> str:
    """Return the warning on row weights above 1. They are not divided, unlike class weights, because the
    largest weight of the given rows is private."""
    return (
        f"weights of rows reach {largest:,.0f}: what is above clipping bound / norm has no effect. Divide "
        "them by a public number, so that the largest is about 1."
    )


def weights_of_classes(given: Mapping[str, float], class_names: tuple[str, ...]) -> Tensor:
    """Return the weight of each class, [classes], float32, divided by the largest.

    Only ratios matter: a clipped gradient counts no more at weight 8 than at 1, so the heaviest class has
    weight 1 and the others less. Classes that are not named have weight 1 before this division.

    Raises:
        SettingError: a name is not a class, a weight is outside [0, `MOST_WEIGHT`], or no weight is above
            zero.

    >>> weights_of_classes({"yes": 8}, ("no", "yes"))
    tensor([0.1250, 1.0000])
    """
    for name, weight in given.items():
        if name not in class_names:
            raise unknown_name("class in the class weights", name, class_names)
        check_number(f"[0, {MOST_WEIGHT:g}]", f", the weight of class {name!r}", class_weight=weight)
    weights = [float(given.get(name, 1.0)) for name in class_names]
    if sum(weight > 0 for weight in weights) < 2:
        raise SettingError(
            f"class_weight={dict(given)} leaves fewer than two classes of {', '.join(class_names)} with a "
            "weight above zero; a classifier needs two."
        )
    return torch.tensor(weights) / max(weights)


def parse_class_weights(text: str) -> dict[str, float]:
    """Return the weight of each named class.

    Raises:
        SettingError: a part of the text that is not "class=weight".

    >>> parse_class_weights("no=1, yes=8")
    {'no': 1.0, 'yes': 8.0}
    """
    weights: dict[str, float] = {}
    for part in names(text):
        name, _, number = part.rpartition("=")
        try:
            weight = float(number)
        except ValueError:
            weight = -1.0
        if not (name.strip() and 0 <= weight <= MOST_WEIGHT):
            raise SettingError(
                f"class weight {part!r}; expected class=number with a number from 0 to {MOST_WEIGHT:g}, such "
                "as no=1,yes=8; equidp train and compare also take balanced.",
                field="class_weight",
            )
        if name.strip() in weights:
            raise SettingError(
                f"class weights {text!r} name class {name.strip()!r} twice; name each once.",
                field="class_weight",
            )
        weights[name.strip()] = weight
    if not weights:
        raise SettingError(
            "class weights are empty; expected class=number, such as no=1,yes=8.", field="class_weight"
        )
    return weights
