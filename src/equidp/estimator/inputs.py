"""Inputs of a fit: rows, their groups and their weights."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from equidp._extras import require_extra
from equidp._validate import check_weights
from equidp.data.people import PeoplesRows, person_codes
from equidp.errors import DataError, DataWarning, SettingError
from equidp.policies.methods import method_named
from equidp.tables.checks import MOST_GROUPS
from equidp.tables.labels import cross_columns

with require_extra("tables"):
    import pandas as pd


def float_rows(rows: npt.NDArray[Any]) -> Tensor:
    """Return rows as float32; raise a DataError if a number is out of its range."""
    with np.errstate(over="ignore"):
        converted = rows.astype(np.float32)
    if not np.isfinite(converted).all():
        raise DataError("X holds numbers that float32 cannot; scale them first.", field="X")
    return torch.from_numpy(converted)


def check_numbers(rows: Any) -> None:
    """Raise if columns of rows are dates or durations, which an array would turn into numbers.

    Raises:
        DataError: names the first of them.
    """
    types = dict(rows.dtypes) if isinstance(rows, pd.DataFrame) else {"X": getattr(rows, "dtype", None)}
    for name, each in types.items():
        if each is not None and getattr(each, "kind", "") in ("m", "M"):
            raise DataError(
                f"column {name!r} of X holds {'dates' if each.kind == 'M' else 'durations'} ({each}); "
                "expected numbers of similar scale, such as years since a public date.",
                field="X",
            )


def check_known(y: npt.NDArray[Any]) -> None:
    """Raise if a target of y, [n], is missing, such as None or pandas.NA."""
    if (missing := pd.isna(y)).any():
        raise DataError(
            f"y has {int(missing.sum()):,} of {len(y):,} targets that are missing, the first in row "
            f"{int(missing.argmax()) + 1:,}; leave these rows out.",
            field="y",
        )


def _check_rows(name: str, shape: Any, n: int) -> None:
    """Raise unless there is one value for each row of X."""
    if tuple(shape) != (n,):
        raise DataError(
            f"{name} has shape {tuple(shape)}, and X has {n} rows; expected ({n},).",
            field=name,
        )


def groups_of(sensitive_features: Any, n: int) -> tuple[Tensor, tuple[str, ...]]:
    """Return the group of each example, [n], and the groups' names.

    Raises:
        DataError: another number of rows, or too many groups.
    """
    if sensitive_features is None:
        return torch.zeros(n, dtype=torch.int64), ("everyone",)
    try:
        table = pd.DataFrame(sensitive_features).reset_index(drop=True)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"sensitive_features is a {type(sensitive_features).__name__} that is no table; expected each "
            "row's group: [n], or [n, columns].",
            field="sensitive_features",
        ) from error
    _check_rows("sensitive_features", (len(table),), n)
    table.columns = [str(name) for name in table.columns]
    texts = table.apply(lambda column: column.map(str, na_action="ignore").astype(object))
    codes, names = cross_columns(texts.where(table.notna(), None), list(table.columns))
    if len(names) > MOST_GROUPS:
        raise DataError(
            f"sensitive_features gives {len(names)} groups; bin or merge values, to at most {MOST_GROUPS}.",
            field="sensitive_features",
        )
    return torch.from_numpy(codes), names


def weights_of_rows(sample_weight: Any, classes: Tensor) -> Tensor | None:
    """Return the public weight of each row, [n], or None if none was given, or all are 1.

    Raises:
        DataError: another number of weights, one that is not a number from 0 on, or all above 0 of one class.
    """
    if sample_weight is None:
        return None
    try:
        weights = np.asarray(sample_weight, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(
            "sample_weight has values that are not numbers; expected one for each row.", field="sample_weight"
        ) from error
    weights = weights if weights.ndim else np.full(len(classes), weights)
    _check_rows("sample_weight", weights.shape, len(classes))
    check_weights(weights, "sample_weight", "sample_weight")
    if len(classes[torch.from_numpy(weights > 0)].unique()) < 2:
        raise DataError(
            "sample_weight leaves fewer than two classes with weights above zero; a classifier needs two.",
            field="sample_weight",
        )
    return None if (weights == 1).all() else torch.from_numpy(weights.astype(np.float32))


def people_of(people: Any, most_rows: int | None, n: int) -> PeoplesRows | None:
    """Return the rows of each person, or None if each row is an example. Warns about rows that are left out.

    Raises:
        SettingError: people without a number of rows for each, or the other way round.
        DataError: another number of people than rows, or as `person_codes`.
    """
    if (people is None) != (most_rows is None):
        raise SettingError(
            f"rows_per_person={most_rows} {'without' if people is None else 'with'} people; give both: "
            "rows_per_person=4 when the estimator is made, and fit(X, y, people=...)."
        )
    if people is None or most_rows is None:
        return None
    people = person_codes(people)
    _check_rows("people", people.shape, n)
    chosen = PeoplesRows.choose_rows(people, most_rows, seed=0)
    if message := chosen.left_out_message():
        warnings.warn(message, DataWarning, stacklevel=4)
    return chosen


def check_groups(method: str, sensitive_features: Any) -> None:
    """Raise a SettingError for a method that treats groups differently if there are no groups."""
    if sensitive_features is None and method_named(method).policy.needs_groups:
        raise SettingError(
            f"method={method!r} tells groups apart and there are none: pass each example's group, "
            "fit(X, y, sensitive_features=...), or choose a method without groups, such as 'dpsgd' or "
            "'global-adapt'."
        )


def check_order(**given: Any) -> None:
    """Reject pandas objects that name the same rows in different orders: rows go together by position."""
    labels = {
        name: values.index for name, values in given.items() if isinstance(values, pd.DataFrame | pd.Series)
    }
    for (first, ours), (name, theirs) in itertools.combinations(labels.items(), 2):
        same = len(ours) == len(theirs) and ours.is_unique and theirs.is_unique and theirs.isin(ours).all()
        if same and not ours.equals(theirs):
            raise DataError(
                f"{name} names the same rows as {first} in another order, and rows belong together by "
                f"position. If the names are correct, pass {name}.loc[{first}.index]; if the positions are, "
                f"{name}.to_numpy().",
                field=name,
            )
