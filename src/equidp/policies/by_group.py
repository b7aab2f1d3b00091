"""Settings of a policy that differ by group: a mapping from names to numbers, then a tuple in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from equidp.errors import PolicyError, SettingError
from equidp.kernel.noise import exact_place
from equidp.kernel.policy import Policy

ByGroup = float | Mapping[str, float] | tuple[float, ...]
"""A setting that may differ by group: by name, or in the order of the groups once a Trainer knows them."""
AnyPolicy = TypeVar("AnyPolicy", bound=Policy)


def in_groups(policy: AnyPolicy, names: Sequence[str]) -> AnyPolicy:
    """Return the policy for data with these groups: mappings among its settings become tuples in this order.

    Raises:
        SettingError: a setting does not have one number for each group.

    >>> import equidp
    >>> in_groups(equidp.DPSGD(clipping_bound={"a": 1.0, "*": 0.5}), ("a", "b"))
    DPSGD(clipping_bound=(1.0, 0.5))
    """
    found: dict[str, tuple[float, ...]] = {}
    for field in (each.name for each in fields(policy)):  # type: ignore[arg-type]
        given = getattr(policy, field)
        if isinstance(given, Mapping):
            if not ({*given} - {"*"} <= {*names} and ("*" in given or {*names} <= {*given})) or not names:
                raise SettingError(
                    f"{field} by name of a group: {', '.join(given)}; expected a number for each of the "
                    f"data's groups, {', '.join(names) or 'which has no names'}, or for all others as '*'.",
                    field=field,
                )
            found[field] = tuple(float(given[name if name in given else "*"]) for name in names)
    return replace(policy, **found) if found else policy  # type: ignore[type-var]


def values_in(setting: Any) -> tuple[Any, ...]:
    """Return the values of a setting: one for each group, or the one that all have.

    >>> values_in({"a": 1.0, "*": 0.5}), values_in(2.0)
    ((1.0, 0.5), (2.0,))
    """
    values = tuple(setting.values()) if isinstance(setting, Mapping) else setting
    return values if isinstance(values, tuple) else (values,)


def of_group(numbers: ByGroup, group: Tensor) -> float | Tensor:
    """Return a setting's number for a group, if `in_groups` made it a tuple; else the setting.

    >>> of_group((1.0, 0.5), torch.tensor(1))
    tensor(0.5000, dtype=torch.float64)
    """
    if isinstance(numbers, Mapping):
        raise PolicyError(f"{numbers} has no order of groups; give the policy to a Trainer.")
    if not isinstance(numbers, tuple):
        return numbers
    exact = exact_place(group.device) == group.device
    return torch.tensor(numbers, dtype=torch.float64 if exact else None, device=group.device)[group]
