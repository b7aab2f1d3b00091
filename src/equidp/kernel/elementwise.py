"""Rules of policies on all examples at once, where they are made of elementwise operations alone.

A rule is written for one example. Where it consists of operations that treat each number by itself, such as
division and `clamp`, it gives all examples at once what `torch.vmap` would give each, at a tenth of the cost.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, final

import torch
from torch import Tensor
from torch.nn.functional import one_hot

_OPERATORS = tuple(
    f"__{name}__"
    for name in (
        *("add", "sub", "mul", "truediv", "pow", "radd", "rsub", "rmul", "rtruediv", "rpow"),
        *("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "neg", "abs", "invert"),
    )
)
_FUNCTIONS = (
    *("abs", "clamp", "clamp_max", "clamp_min", "exp", "expm1", "isfinite", "isnan", "log", "log1p"),
    *("logical_and", "logical_not", "logical_or", "maximum", "minimum", "nan_to_num", "reciprocal", "rsqrt"),
    *("sigmoid", "sign", "sqrt", "square", "tanh", "where", "add", "sub", "mul", "div", "pow", "neg"),
    *("lt", "le", "gt", "ge", "eq", "ne"),
)
"""Functions of torch, and methods of tensors, that compute each element of a result from the elements at the
same place."""
_MADE_LIKE = ("full_like", "ones_like", "zeros_like")
_CASTS = ("double", "float", "long")
_METHODS = frozenset((*_FUNCTIONS, *_CASTS))
_ALLOWED: frozenset[Any] = frozenset(
    getattr(owner, name)
    for owner in (torch, Tensor)
    for name in (*_FUNCTIONS, *_MADE_LIKE, *_OPERATORS)
    if hasattr(owner, name)
)


class _NotElementwiseError(Exception):
    """A rule did with its numbers what could mix examples, or depends on how many there are."""


@final
class Column:
    """One number of each example, [batch], which a rule uses as if it were the number of one, [].

    It shows its numbers to nothing, so what follows from one is a column of the same call again, in which
    the number at a place follows from the numbers at that place.

    Args:
        values: [batch].
        call: any object that only columns of the same call of a rule have.
    """

    __slots__ = ("_call", "_values")

    def __init__(self, values: Tensor, call: object) -> None:
        self._values, self._call = values, call

    @property
    def dtype(self) -> torch.dtype:
        """Type of a number."""
        return self._values.dtype

    @property
    def device(self) -> torch.device:
        """Device of the numbers."""
        return self._values.device

    def __bool__(self) -> NoReturn:
        raise _NotElementwiseError

    def __getattr__(self, name: str) -> Callable[..., Column]:
        if name not in _METHODS:
            raise _NotElementwiseError
        return partial(_apply, getattr(Tensor, name), self)

    def to(self, dtype: torch.dtype) -> Column:
        """Return the numbers in another type."""
        if not isinstance(dtype, torch.dtype):
            raise _NotElementwiseError
        return Column(self._values.to(dtype), self._call)

    def unsqueeze(self, dimension: int) -> Rows:
        """Return a row of this number alone for each example."""
        if dimension != 0:
            raise _NotElementwiseError
        return Rows(self._values.unsqueeze(1), self._call)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: tuple[Any, ...] = (), keywords: Any = None
    ) -> Column | Rows:
        if function is Tensor.__getitem__:
            return _read_table(*arguments)
        if function is one_hot:
            return _one_hot(*arguments, **(keywords or {}))
        if function not in _ALLOWED:
            raise _NotElementwiseError
        return _apply(function, *arguments, **(keywords or {}))


@final
class Rows:
    """A row of each example, [batch, cells]: a result of a rule, on which nothing else works."""

    __slots__ = ("_call", "_values")

    def __init__(self, values: Tensor, call: object) -> None:
        self._values, self._call = values, call

    def __bool__(self) -> NoReturn:
        raise _NotElementwiseError


def _apply(function: Callable[..., Tensor], *arguments: Any, **keywords: Any) -> Column:
    """The column that an elementwise function gives of columns, Python numbers and tensors of one number.

    Tensors of other types than the columns' are refused: of two numbers, the wider type decides, and of a
    column and a number the column's.
    """
    columns: list[Column] = []
    numbers: list[Tensor] = []
    for each in (*arguments, *keywords.values()):
        if isinstance(each, Column):
            columns.append(each)
        elif isinstance(each, Tensor):
            numbers.append(each)
    call, shape = columns[0]._call, columns[0]._values.shape
    if (len(columns) > 1 and any(each._call is not call for each in columns)) or "out" in keywords:
        raise _NotElementwiseError
    if numbers and (
        any(each.dim() for each in numbers)
        or len(({each.dtype for each in columns} | {each.dtype for each in numbers}) - {torch.bool}) > 1
    ):
        raise _NotElementwiseError
    result = function(*map(_values_of, arguments), **{name: _values_of(keywords[name]) for name in keywords})
    if not isinstance(result, Tensor) or result.shape != shape:
        raise _NotElementwiseError
    return Column(result, call)


def _values_of(each: Any) -> Any:
    return each._values if isinstance(each, Column) else each


def _read_table(table: Any, places: Any) -> Column:
    """The column of what a table, [cells], holds at the places that a column names."""
    if not (isinstance(table, Tensor) and table.dim() == 1 and isinstance(places, Column)):
        raise _NotElementwiseError
    if places.dtype != torch.int64:
        raise _NotElementwiseError
    return Column(table[places._values], places._call)


def _one_hot(places: Any, num_classes: Any = -1) -> Rows:
    """Rows, [batch, cells], with 1 in the cell that a column names."""
    if not (isinstance(places, Column) and isinstance(num_classes, int) and num_classes > 0):
        raise _NotElementwiseError
    return Rows(one_hot(places._values, num_classes), places._call)


def _define(name: str) -> None:
    function = getattr(Tensor, name)
    setattr(Column, name, lambda self, *others: _apply(function, self, *others))


for _name in _OPERATORS:
    _define(_name)


def apply_elementwise(rule: Callable[..., Any], state: Any, examples: tuple[Tensor, ...]) -> Tensor | None:
    """`rule(state, *example)` of each example, [batch] or [batch, cells], if it is made of elementwise
    operations; None if not.

    Formal guarantee: what is returned for an example follows from the state and the example's own numbers,
    as the rule, which may do anything, gets columns alone, and the functions that take columns are listed.

    | case | result |
    | --- | --- |
    | a Python branch on a value, a number read (`float`, `.item`, `.numpy`), a shape | None |
    | an operation that is not listed, such as a sum, a view or one in place | None |
    | tensors of several numbers beside a column; but a table, [cells], may be read at the places that one
      names | None |
    | a column that was kept from an earlier call | None |
    | a result that is neither a column nor a row of each example, any error | None |
    | `unsqueeze(0)` of a column, `one_hot` with its number of cells | a row of each example, [batch, cells] |

    Args:
        rule: of a policy.
        state: a copy of the policy's, which may be written to.
        examples: numbers of the examples, [batch] each.

    >>> norms = torch.tensor([0.5, 4.0])
    >>> apply_elementwise(lambda state, norm: (1.0 / norm).clamp(max=1.0), (), (norms,))
    tensor([1.0000, 0.2500])
    >>> apply_elementwise(lambda state, norm: norm / norm.sum(), (), (norms,)) is None
    True
    """
    call = object()
    try:
        result = rule(state, *(Column(each, call) for each in examples))
    except Exception:
        return None
    if not isinstance(result, Column | Rows) or result._call is not call:
        return None
    return result._values
