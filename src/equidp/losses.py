"""Per-example losses as one value: a base loss, weights of classes and of rows, and the unit of privacy.

A weight is a public factor of one row's loss, so it scales that row's gradient and no other's. An example of
several rows (the records of a person, or views of an image) has the sum of their losses, and so one gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from types import MappingProxyType
from typing import Any, final

import torch
from torch import Tensor

from equidp.kernel.engine import LossFunction


def output_tensors(outputs: Any) -> list[Tensor]:
    """Return all tensors of a model's outputs, in their order, without other values.

    >>> len(output_tensors({"classes": torch.zeros(2, 3), "boxes": (torch.zeros(2, 4), None)}))
    2
    """
    if isinstance(outputs, Tensor):
        return [outputs]
    if isinstance(outputs, Mapping):
        parts: Any = outputs.values()
    elif is_dataclass(outputs) and not isinstance(outputs, type):
        parts = (getattr(outputs, each.name) for each in fields(outputs))
    else:
        parts = outputs if isinstance(outputs, tuple | list) else ()
    return [each for part in parts for each in output_tensors(part)]


def as_plain(outputs: Any) -> Any:
    """Return one tensor as it is, and several of any form as a tuple for torch.func."""
    return outputs if isinstance(outputs, Tensor) else tuple(output_tensors(outputs))


def map_outputs(function: Callable[[Tensor], Any], outputs: Any) -> Any:
    """Return outputs in the same form, with each tensor replaced by the function's result.

    Args:
        outputs: a tensor; or a mapping, tuple, list or dataclass of such, also of `transformers`. What is
            anything else, such as None, stays.
    """
    if isinstance(outputs, Tensor):
        return function(outputs)
    if is_dataclass(outputs) and not isinstance(outputs, type):
        parts = {each.name: getattr(outputs, each.name) for each in fields(outputs) if each.init}
        return replace(outputs, **{name: map_outputs(function, each) for name, each in parts.items()})
    if isinstance(outputs, Mapping):
        return {name: map_outputs(function, each) for name, each in outputs.items()}
    if isinstance(outputs, tuple | list):
        mapped = [map_outputs(function, each) for each in outputs]
        named: Any = type(outputs)
        return named(*mapped) if hasattr(named, "_fields") else named(mapped)
    return outputs


@final
@dataclass(frozen=True, eq=False)
class Loss:
    """A loss of examples, [batch], from outputs and targets.

    Targets of single rows are [batch], or [batch, 2] with weights; of several rows, [batch, rows, 2]. Targets
    without weights, for example in a test set, count once.

    Attributes:
        base: (outputs, targets [batch]) -> losses [batch].
        class_weights: factor of each class, [classes]. None: all count alike.
        row_weights: whether targets carry their own weights (`equidp.data.targets.with_weights`).
        several_rows: whether an example has several rows, whose targets carry weights.
        dtype: type of the targets that `base` reads, if targets carry weights.

    Example:
        >>> from equidp.losses import Loss
        >>> cross_entropy = torch.nn.CrossEntropyLoss(reduction="none")
        >>> by_class = Loss(cross_entropy, class_weights=torch.tensor([1.0, 8.0]))
        >>> by_class(torch.zeros(2, 2), torch.tensor([0, 1]))
        tensor([0.6931, 5.5452])
        >>> targets = torch.tensor([[0.0, 1.0], [1.0, 0.5]])
        >>> Loss(cross_entropy, row_weights=True)(torch.zeros(2, 2), targets)
        tensor([0.6931, 0.3466])
        >>> people = Loss(cross_entropy).by_example()
        >>> people(torch.zeros(1, 3, 2), torch.tensor([[[0, 1.0], [1, 1.0], [1, 0.0]]]))
        tensor([1.3863])
    """

    base: LossFunction
    class_weights: Tensor | None = None
    row_weights: bool = False
    several_rows: bool = False
    dtype: torch.dtype = torch.int64

    @classmethod
    def of(cls, loss: LossFunction) -> Loss:
        """Return the value of any per-example loss; a `Loss` as it is."""
        return loss if isinstance(loss, Loss) else cls(loss)

    def with_class_weights(self, weights: Tensor) -> Loss:
        """Return the loss with a factor for each class, [classes]."""
        return replace(self, class_weights=weights)

    def with_row_weights(self, dtype: torch.dtype = torch.int64) -> Loss:
        """Return the loss of targets that carry their own weights; `dtype` is the type without weights."""
        return self if self.row_weights else replace(self, row_weights=True, dtype=dtype)

    def by_example(self, dtype: torch.dtype = torch.int64) -> Loss:
        """Return the loss of examples of several rows: the sum of their rows' weighted losses."""
        return replace(self.with_row_weights(dtype), several_rows=True)

    def by_row(self) -> Loss:
        """Return the loss of single rows."""
        return replace(self, several_rows=False)

    def targets(self, pairs: Any) -> Any:
        """Return targets of rows without their weights, [batch]."""
        return pairs[:, 0].to(self.dtype) if self.row_weights and pairs.dim() > 1 else pairs

    def weights(self, pairs: Tensor) -> Tensor:
        """Return the weight of each row by its class and its own, of classes [..., 2] or [batch] alike."""
        classes = (pairs if pairs.dim() == 1 else pairs[..., 0]).long()
        weights = pairs[..., 1] if pairs.dim() > 1 else torch.ones_like(classes)
        if self.class_weights is None:
            return weights
        return weights * self.class_weights.to(pairs.device)[classes]

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """Return losses, [batch]."""
        if self.several_rows and targets.dim() > 2:
            rows = self._rows(map_outputs(lambda each: each.flatten(0, 1), outputs), targets.flatten(0, 1))
            return rows.view(targets.shape[:2]).sum(dim=1)
        return self._rows(outputs, targets)

    def _rows(self, outputs: Any, pairs: Any) -> Tensor:
        targets = self.targets(pairs)
        losses = self.base(outputs, targets)
        if self.class_weights is not None:
            losses = losses * self.class_weights.to(targets.device)[targets]
        return losses * pairs[:, 1] if self.row_weights and pairs.dim() > 1 else losses


def own_output(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return minus the output of each example's own class, [batch]: its gradient is that output's.

    >>> own_output(torch.tensor([[1.0, 2.0]]), torch.tensor([1]))
    tensor([-2.])
    """
    return -outputs.gather(1, targets.unsqueeze(1)).squeeze(1)


LOSSES: Mapping[str, LossFunction] = MappingProxyType({"equidp.losses:own_output": own_output})
"""Name of a loss in plans and files of runs -> loss. One of the user's is a function."""
