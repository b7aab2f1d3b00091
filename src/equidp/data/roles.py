"""Named sources that let their target and groups be chosen among columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from equidp.data.dataset import DataSource


class Labels(NamedTuple):
    """A column of labels: codes, [n] int64, and the name of each code."""

    codes: Tensor
    names: tuple[str, ...]


@runtime_checkable
class RoleSource(DataSource, Protocol):
    """A source whose examples have several columns that can be the target or the groups."""

    def with_roles(self, target: str | None, group: tuple[str, ...]) -> DataSource:
        """Returns this source with another target, or other groups; None and (): unchanged."""


def crossed_labels(columns: Sequence[Labels]) -> Labels:
    """Returns a label for each combination of the columns' labels, also for combinations without examples.

    >>> import torch
    >>> crossed_labels([Labels(torch.tensor([0, 1]), ("f", "m")), Labels(torch.tensor([1, 1]), ("a", "b"))])
    Labels(codes=tensor([1, 3]), names=('f, a', 'f, b', 'm, a', 'm, b'))
    """
    whole, *others = columns
    for each in others:
        names = tuple(f"{first}, {second}" for first in whole.names for second in each.names)
        whole = Labels(whole.codes * len(each.names) + each.codes, names)
    return whole
