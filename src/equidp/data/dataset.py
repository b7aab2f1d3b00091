"""Examples with a target and a group, and the protocol of sources that split them."""

from __future__ import annotations

import hashlib
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from equidp._validate import check_weights
from equidp.data.shared_rows import RowDigests
from equidp.data.targets import with_weights
from equidp.engines.units import by_row
from equidp.errors import DataError, DataWarning
from equidp.kernel.engine import LossFunction
from equidp.kernel.event import PEOPLE, ROWS
from equidp.kernel.inputs import Inputs, moved_to, taken, tensors
from equidp.losses import Loss

ALL = "all"
"""Name of all groups together in tables."""
EVERYONE = "everyone"
"""Name of the one group of rows without groups."""
LABELS = "labels"
"""Name of the targets in a mapping of tensors."""
_PART = 2**22  # numbers that are checked at a time


@final
@dataclass(frozen=True)
class Grouping:
    """Groups by one of the columns that the groups of a dataset combine, or these groups themselves.

    Attributes:
        name: name of the column, or columns. "": not known.
        groups: names of its groups, such as "F" and "M".
        places: for each group of the dataset, the place of the one of these that it is part of, [K].
    """

    name: str
    groups: tuple[str, ...]
    places: tuple[int, ...]

    def codes(self, groups: Tensor) -> Tensor:
        """Return the place of each example's group, [n], from its group in the dataset, [n]."""
        return torch.tensor(self.places, dtype=torch.int64)[groups.cpu()]


@dataclass(frozen=True, eq=False)
class GroupedDataset:
    """Examples in memory.

    An example has one row, or several (`equidp.by_person`). With several, all tensors except groups have a
    second dimension.

    Attributes:
        inputs: [n, ...] or [n, rows, ...], the model's input for each row: floating point (or integer token
            ids), never NaN. One tensor, or several: the model is called as `model(*inputs)` with a tuple, as
            `model(**inputs)` with a mapping.
        targets: [n] or [n, rows], int64 classes in [0, len(class_names)).
        groups: [n], int64 group indices in [0, len(group_names)).
        group_names: one name per group. The number of groups is public. A group may be empty here.
        class_names: one name per class. The number of classes is public.
        source: name of the people behind the examples, such as "adult", the same for every preparation of
            their rows. "": not known.
        weights: public numbers >= 0 that multiply the loss of each row in training, in the targets' shape.
            None: all are 1. An example's loss is the sum over its rows, and a row of weight 0 counts as
            absent. Tests and evaluations ignore weights.
        people: [n], int64: person of each test example, so that cards can hide metrics of few people. None:
            each example is a different person. Training ignores it (`equidp.by_person`).
        row_groups: [n, rows], int64: group of each row of an example. None: the example's group.
        groupings: columns that the groups combine, which evaluations show one by one. (): not known.
        crossed: whether evaluations show the combinations.
        repeats_rows: True if `subset` took an example several times. A Trainer warns about it, because
            epsilon covers each copy by itself.

    Raises:
        DataError: shapes, types or values differ from this description, or names are not distinct.

    >>> inputs, targets, groups = torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 0, 1])
    >>> data = GroupedDataset(inputs, targets, groups, group_names=("a", "b"), class_names=("no", "yes"))
    >>> data.group_sizes().tolist(), len(data.subset(torch.tensor([0, 3])))
    ([3, 1], 2)
    """

    inputs: Inputs = field(repr=False)
    targets: Tensor = field(repr=False)
    groups: Tensor = field(repr=False)
    group_names: tuple[str, ...]
    class_names: tuple[str, ...]
    source: str = ""
    weights: Tensor | None = field(default=None, repr=False)
    people: Tensor | None = field(default=None, repr=False)
    row_groups: Tensor | None = field(default=None, repr=False)
    groupings: tuple[Grouping, ...] = field(default=(), kw_only=True, repr=False)
    crossed: bool = field(default=False, kw_only=True, repr=False)
    repeats_rows: bool = field(default=False, kw_only=True, repr=False)

    def __post_init__(self) -> None:
        n = _number_of_examples(self.inputs)
        self._check_columns(n)
        for name in ("group_names", "class_names"):
            if isinstance(given := getattr(self, name), str):
                raise DataError(f"{name} is the text {given!r}; expected a tuple of names.", field=name)
        if ALL in self.group_names or len(set(self.group_names)) < len(self.group_names):
            raise DataError(
                f"the groups are called {', '.join(map(repr, self.group_names))}; expected names that "
                f"differ, none of them {ALL!r}, which stands for all groups together. Rename it.",
                field="group_names",
            )
        for label, column, names in (
            ("groups", self.groups, self.group_names),
            ("targets", self.targets, self.class_names),
        ):
            if n and (int(column.min()) < 0 or int(column.max()) >= len(names)):
                raise DataError(
                    f"{label} reach from {int(column.min())} to {int(column.max())}, but there are "
                    f"{len(names)} names; number them from 0.",
                    field=label,
                )
        if self.weights is not None:
            check_weights(self.weights.cpu().double().numpy().reshape(-1), "the dataset", "weights")
        for each in tensors(self.inputs):
            if each.is_floating_point() and (bad := _not_finite(each)):
                raise DataError(
                    f"inputs hold NaN or infinite values in {bad} of {n} examples; drop, fill or encode them "
                    "first.",
                    field="inputs",
                )

    def _check_columns(self, n: int) -> None:
        """Raise unless each column is a tensor of the shape and type that go with n inputs."""
        rows = self.targets.shape[1:2] if isinstance(self.targets, Tensor) else ()
        for label, shape, dtype in (
            ("targets", (n, *rows), None),
            ("groups", (n,), torch.int64),
            ("weights", (n, *rows), None),
            ("people", (n,), torch.int64),
            ("row_groups", (n, *rows) if rows else None, torch.int64),
        ):
            column: Any = getattr(self, label)
            if column is None and label not in ("targets", "groups"):
                continue
            given = f"{tuple(column.shape)} {column.dtype}" if isinstance(column, Tensor) else type(column)
            if (
                not isinstance(column, Tensor)
                or column.shape != shape
                or (dtype or column.dtype) != column.dtype
            ):
                raise DataError(
                    f"{label} are {given} for {n} inputs; expected a tensor of shape {shape}"
                    f"{f' and {dtype}' if dtype else ''}.",
                    field=label,
                )
        for each in tensors(self.inputs) if rows else ():
            if each.shape[1:2] != rows or not rows[0]:
                raise DataError(
                    f"targets have {rows[0]} rows an example, and inputs the shape {list(each.shape)}; "
                    "expected [n, rows, ...], with at least one row.",
                    field="targets",
                )

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def one_tensor(self) -> Tensor:
        """The inputs, if they are one tensor.

        Raises:
            DataError: the inputs are several tensors.
        """
        if isinstance(self.inputs, Tensor):
            return self.inputs
        raise DataError(
            f"the inputs are {_inputs_text(self.inputs)}; expected one tensor. Train a model of several "
            "input tensors with equidp.Trainer.",
            field="inputs",
        )

    @property
    def rows(self) -> int | None:
        """Number of rows of each example. None: an example is a row."""
        return int(self.targets.shape[1]) if self.targets.dim() == 2 else None

    @property
    def unit(self) -> str:
        """Unit of privacy in a run on this data: "rows" or "people", depending on what an example is."""
        return ROWS if self.rows is None else PEOPLE

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one row of the inputs, without the batch dimension. Raises a DataError as `one_tensor`."""
        return tuple(self.one_tensor.shape[1 if self.rows is None else 2 :])

    def check_single_rows(self, what: str) -> None:
        """Raise a DataError, beginning with `what`, unless each example is a row."""
        if self.rows is not None:
            raise DataError(
                f"{what} takes single rows, and these examples have {self.rows} each.", field="rows"
            )

    @cached_property
    def row_digests(self) -> RowDigests:
        """Digests of the inputs of all rows, except rows of weight 0, which count as absent."""
        inputs, weights = self.inputs, self.weights
        if self.rows is not None:
            inputs = by_row(inputs)
            weights = None if weights is None else weights.flatten()
        return RowDigests.of(tensors(inputs if weights is None else taken(inputs, weights > 0)))

    def one_row(self) -> tuple[Any, Tensor]:
        """Return inputs [1, ...] and target [1] of one row, for their shapes and types."""
        first = taken((self.inputs, self.targets), slice(1))
        one: tuple[Any, Tensor] = first if self.rows is None else taken(by_row(first), slice(1))
        return one

    @property
    def num_groups(self) -> int:
        return len(self.group_names)

    @property
    def shown_groupings(self) -> tuple[Grouping, ...]:
        """Groupings that an evaluation shows: one per column, or one of the groups as they are.

        If groups of several columns have the same name, the column's name is added, such as "smokes: yes".
        """
        if len(self.groupings) < 2 or self.crossed:
            name = ", ".join(each.name for each in self.groupings)
            return (Grouping(name, self.group_names, tuple(range(self.num_groups))),)
        times = Counter([ALL, *(name for each in self.groupings for name in each.groups)])
        return tuple(
            replace(
                each,
                groups=tuple(f"{each.name}: {name}" if times[name] > 1 else name for name in each.groups),
            )
            for each in self.groupings
        )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def trained_targets(self) -> Tensor:
        """Targets in the form for training: [n], with weights [n, 2], or with several rows [n, rows, 2]."""
        if self.weights is None and self.rows is None:
            return self.targets
        weights = torch.ones_like(self.targets, dtype=torch.float32) if self.weights is None else self.weights
        return with_weights(self.targets, weights)

    def training_loss(self, loss: LossFunction | None = None) -> LossFunction:
        """Return a loss of `trained_targets`: the given loss, or the default one, times each row's weight.

        The default is cross-entropy.
        """
        loss = loss or nn.CrossEntropyLoss(reduction="none")
        if self.rows is not None:
            return Loss.of(loss).by_example(self.targets.dtype)
        return loss if self.weights is None else Loss.of(loss).with_row_weights(self.targets.dtype)

    def group_sizes(self) -> Tensor:
        """Return the number of examples of each group, [K]."""
        return torch.bincount(self.groups, minlength=self.num_groups)

    def in_largest_groups(self, sizes: Sequence[float]) -> GroupedDataset:
        """Return the data with each example in the group of its rows that has the largest of `sizes`.

        Among equal sizes, the first such row decides. Examples with rows of one group stay as they are.

        Args:
            sizes: one number per group, [K].

        >>> inputs, targets = torch.zeros(2, 2, 3), torch.tensor([[0, 1], [1, 0]])
        >>> groups, rows = torch.tensor([0, 1]), torch.tensor([[0, 1], [1, 1]])
        >>> data = GroupedDataset(inputs, targets, groups, ("a", "b"), ("no", "yes"), row_groups=rows)
        >>> data.in_largest_groups([1.0, 2.0]).groups
        tensor([1, 1])
        """
        if self.row_groups is None:
            return self
        of_rows = torch.tensor(sizes, dtype=torch.float64, device=self.row_groups.device)[self.row_groups]
        first = of_rows.argmax(dim=1, keepdim=True)
        return replace(self, groups=self.row_groups.gather(1, first).squeeze(1).to(self.groups.device))

    def subset(self, indices: Tensor | Sequence[int] | slice) -> GroupedDataset:
        """Return the examples at `indices`, in that order.

        Args:
            indices: [m], int64 (negative ones count from the end), or a mask, [n], or a slice.

        Raises:
            DataError: the indices have another form, or there are no such examples.

        >>> codes = torch.tensor([0, 1, 0])
        >>> data = GroupedDataset(torch.eye(3), codes, codes, ("a", "b"), ("n", "y"))
        >>> data.subset([-1, 1]).targets
        tensor([0, 1])
        """
        places = _find_places(indices, len(self))
        repeats = self.repeats_rows or len(places.unique()) < len(places)
        return replace(self, **taken(self._columns(), places), repeats_rows=repeats)

    def to(self, device: torch.device | str) -> GroupedDataset:
        """Return a copy on `device`, or this dataset if it is already there."""
        there = all(each.device == torch.device(device) for each in tensors(self._columns()))
        return self if there else replace(self, **moved_to(self._columns(), device))

    def _columns(self) -> dict[str, Any]:
        names = ("inputs", "targets", "groups", "weights", "people", "row_groups")
        return {name: each for name in names if (each := getattr(self, name)) is not None}


def _find_places(indices: Any, count: int) -> Tensor:
    """Return the places of examples at indices, [m], from 0 to count - 1; see `GroupedDataset.subset`."""
    try:
        chosen = indices if isinstance(indices, slice) else torch.as_tensor(indices)
        if isinstance(chosen, Tensor) and (chosen.dim() != 1 or chosen.dtype == torch.uint8):
            raise TypeError(f"{list(chosen.shape)} {chosen.dtype}")
        if isinstance(chosen, Tensor) and not len(chosen):
            chosen = chosen.long()
        return torch.arange(count)[chosen]
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise DataError(
            f"indices cannot be taken ({error}); expected int64, [m], from {-count} to {count - 1}, a mask, "
            f"[{count}], or a slice.",
            field="indices",
        ) from None


@final
@dataclass(frozen=True, eq=False)
class NamedTensors(Dataset[Any]):
    """Rows in memory without groups: a mapping of tensors, whose labels are the targets.

    Attributes:
        inputs: name -> tensor [n, ...]. The model gets them by name.
        labels: [n, ...].
    """

    inputs: Mapping[str, Tensor]
    labels: Tensor

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> NamedTensors:
        """Read a mapping of tensors with labels.

        Raises:
            DataError: there are no labels, there are only labels, or the number of rows differs from theirs.

        >>> NamedTensors.of({"x": torch.eye(2), "labels": torch.arange(2)})[1]
        ({'x': tensor([0., 1.])}, tensor(1))
        """
        inputs = {name: each for name, each in data.items() if name != LABELS}
        whole = all(isinstance(each, Tensor) and each.dim() for each in data.values())
        if LABELS not in data or not inputs or not whole or len({len(each) for each in data.values()}) > 1:
            given = {name: list(getattr(each, "shape", ())) for name, each in data.items()}
            raise DataError(
                f"data is a mapping of {given}; expected tensors [n, ...] by name, targets as {LABELS!r}.",
                field="data",
            )
        return cls(inputs, data[LABELS])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, place: int) -> tuple[dict[str, Tensor], Tensor]:
        return {name: each[place] for name, each in self.inputs.items()}, self.labels[place]


def as_one_group(data: Any, class_names: Sequence[str] = ()) -> Any:
    """Return rows without groups, a mapping with labels or a TensorDataset of two tensors, as a
    `GroupedDataset` of one group; anything else as it is.

    Args:
        class_names: class names of the model. Empty: the classes are numbered.

    >>> rows = torch.utils.data.TensorDataset(torch.eye(2), torch.arange(2))
    >>> as_one_group(rows).group_names
    ('everyone',)
    """
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        inputs: Inputs = data.tensors[0]
        targets = data.tensors[1]
    elif isinstance(data, Mapping):
        rows = NamedTensors.of(data)
        inputs, targets = dict(rows.inputs), rows.labels
    else:
        return data
    names = tuple(class_names) or tuple(str(each) for each in range(int(targets.max()) + 1))
    return GroupedDataset(inputs, targets, torch.zeros(len(targets)).long(), (EVERYONE,), names)


@dataclass(frozen=True)
class DataSplit:
    """A training and a test set that share group and class names.

    Attributes:
        notes: sentences for the report on data preparation, above all on what epsilon does not cover.

    Raises:
        DataError: names differ, or training has only one class.

    >>> targets, groups = torch.arange(4) % 2, torch.zeros(4).long()
    >>> data = GroupedDataset(torch.randn(4, 3), targets, groups, ("a",), class_names=("no", "yes"))
    >>> split = DataSplit(data.subset(torch.tensor([0, 1])), data.subset(torch.tensor([2, 3])))
    >>> split.digest() == split.digest()
    True
    """

    train: GroupedDataset
    test: GroupedDataset
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.train.group_names != self.test.group_names:
            raise DataError(
                f"training groups {self.train.group_names} and test groups {self.test.group_names} differ; "
                "give both sets the same group_names.",
                field="group_names",
            )
        self.test.check_single_rows("a test")
        if len(torch.unique(self.train.targets)) < 2:
            raise DataError(
                "the training set holds one class only; a classifier needs at least two.", field="targets"
            )
        test = self.test.row_digests
        if shared := test.count_shared(self.train.row_digests):
            warnings.warn(
                f"{shared:,} of {len(test):,} test rows are training rows too: metrics of them show what the "
                "model remembers, not what it predicts for others. Hold out rows that are not trained on.",
                DataWarning,
                stacklevel=3,
            )

    def digest(self) -> str:
        """Return a checksum of all examples of both parts and of their order."""
        digest = hashlib.sha256()
        for part in (self.train, self.test):
            for tensor in tensors(part._columns()):
                digest.update(tensor.cpu().contiguous().numpy().reshape(-1).data)
        return digest.hexdigest()


def _not_finite(values: Tensor) -> int:
    """Number of examples with a value that is NaN or infinite; counted in parts, to bound memory."""
    rows = max(1, _PART // max(1, values[:1].numel()))
    parts = (part.reshape(len(part), -1) for part in values.split(rows)) if len(values) else ()
    return sum(int((~torch.isfinite(part)).any(-1).sum()) for part in parts)


def _number_of_examples(inputs: Inputs) -> int:
    """Number of examples in the inputs; rejects tensors of different lengths."""
    every = tensors(inputs)
    if not every or not all(isinstance(each, Tensor) and each.dim() for each in every):
        raise DataError(
            f"inputs are {_inputs_text(inputs)}; expected a tensor [n, ...], or a tuple or mapping of such.",
            field="inputs",
        )
    sizes = {len(each) for each in every}
    if len(sizes) > 1:
        raise DataError(
            f"inputs are {_inputs_text(inputs)}; expected the same first dimension, the number of examples, "
            "in all. What is the same for all examples belongs in the model.",
            field="inputs",
        )
    return sizes.pop()


def _inputs_text(inputs: object) -> str:
    """Forms, names and shapes of the inputs, in words."""
    if isinstance(inputs, Mapping):
        return f"a mapping of {', '.join(f'{name}: {_inputs_text(each)}' for name, each in inputs.items())}"
    if isinstance(inputs, tuple):
        return f"a tuple of {', '.join(map(_inputs_text, inputs))}"
    return str(list(inputs.shape)) if isinstance(inputs, Tensor) else type(inputs).__name__


@runtime_checkable
class DataSource(Protocol):
    """A small, hashable and picklable source of splits. Each seed always gives the same split.

    >>> from equidp.data import open_source
    >>> isinstance(open_source("digits"), DataSource)
    True
    """

    def __hash__(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def highlighted_groups(self) -> tuple[str, str] | None:
        """The pair of groups that the literature compares on this data, if any."""

    def split(self, seed: int) -> DataSplit: ...


class Labels(NamedTuple):
    """A column of labels: codes, [n] int64, and the name of each code."""

    codes: Tensor
    names: tuple[str, ...]


@runtime_checkable
class RoleSource(DataSource, Protocol):
    """A source whose examples have several columns that can be the target or the groups."""

    def with_roles(self, target: str | None, group: tuple[str, ...]) -> DataSource:
        """Return this source with another target, or other groups; None and (): unchanged."""


def crossed_labels(columns: Sequence[Labels]) -> Labels:
    """Return a label for each combination of the columns' labels, also for combinations without examples.

    >>> import torch
    >>> crossed_labels([Labels(torch.tensor([0, 1]), ("f", "m")), Labels(torch.tensor([1, 1]), ("a", "b"))])
    Labels(codes=tensor([1, 3]), names=('f, a', 'f, b', 'm, a', 'm, b'))
    """
    whole, *others = columns
    for each in others:
        names = tuple(f"{first}, {second}" for first in whole.names for second in each.names)
        whole = Labels(whole.codes * len(each.names) + each.codes, names)
    return whole
