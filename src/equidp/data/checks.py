"""Checks of a table's columns: names first, then contents, with all problems in one message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath

import numpy as np
import pandas as pd

from equidp._validate import unknown_name
from equidp.data.columns import folded
from equidp.data.plain import in_shell
from equidp.data.weights import check_some_weight, check_weights
from equidp.errors import DataError

LARGEST_NUMBER = 1e18
MOST_CATEGORIES = 1000


def check_names(columns: Iterable[str], wanted: Mapping[str, Sequence[str]]) -> None:
    """Raises unless each name is a column; `wanted` gives the names by the option that they were given under.

    >>> check_names(["age", "sex"], {"drop": ["agee"]})
    Traceback (most recent call last):
    equidp.errors.DataError: unknown column in drop 'agee'. Did you mean 'age'? Known: age, sex.
    """
    columns = list(columns)
    found = [
        str(unknown_name(f"column in {option}", name, columns))
        for option, names in wanted.items()
        for name in names
        if name not in columns
    ]
    known = f" Known: {', '.join(sorted(columns))}."
    if found:
        raise DataError(" ".join(each.removesuffix(known) for each in found) + known)


def refuse(path: str | PathLike[str], problems: Sequence[str]) -> None:
    """Raises where there are problems of a table, all in one message."""
    if len(problems) == 1:
        raise DataError(problems[0])
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise DataError(
            f"{fspath(path)!r} cannot be used as it is, for {len(problems)} reasons:{listed}\n"
            "equidp inspect shows the whole table and writes a recipe for it (--recipe)."
        )


def check_read(table: pd.DataFrame, names: Sequence[str]) -> None:
    """Raises unless the table has each column that a trained model reads."""
    lacking = [name for name in names if name not in table.columns]
    if lacking:
        raise DataError(
            f"the table lacks {', '.join(map(repr, lacking))}; expected the columns that the model was "
            "trained on. Where new rows cannot have one, train anew without it (--drop)."
        )


def feature_problems(table: pd.DataFrame) -> list[str]:
    """Returns a sentence for each column that cannot be an input: infinite or very large numbers, or texts
    that name rows."""
    found = []
    for name in table.columns:
        column = table[name]
        if column.dtype == float:
            infinite = int(np.isinf(column).sum())
            if infinite:
                found.append(
                    f"column {name!r} holds {infinite} infinite values; fix them or drop the column."
                )
            elif (column.abs() > LARGEST_NUMBER).any():
                found.append(
                    f"column {name!r} holds numbers beyond {LARGEST_NUMBER:g}; rescale it or drop it."
                )
        elif column.nunique() > MOST_CATEGORIES:
            left = int(folded(pd.Series(column.dropna().unique(), dtype="string")).nunique())
            fold = (
                f" make {left:,} of them by taking capitals and leading zeros for the same (--fold "
                f"{in_shell(name)});"
            )
            found.append(
                f"column {name!r} has {column.nunique()} distinct texts, more than the {MOST_CATEGORIES} "
                "that make sense as categories. If it names the rows, drop it (--drop); if it holds numbers "
                f"such as 1,234.5, say so (--thousands, --decimal, --numeric). If it holds codes,"
                f"{fold if left < column.nunique() else ''} in the file, shorten them to their first signs, "
                "or keep "
                "the frequent ones and write the others as one."
            )
    return found


def missing_problem(table: pd.DataFrame, otherwise: str) -> list[str]:
    """Returns a sentence where values are missing, or none; `otherwise` says what to do about them."""
    counts, anywhere = {}, np.zeros(len(table), dtype=np.bool_)
    for name in table.columns:
        there = table[name].isna().to_numpy()
        counts[name] = int(there.sum())
        anywhere |= there
    if not anywhere.any():
        return []
    listed = ", ".join(f"{name!r}: {count}" for name, count in counts.items() if count)
    absent = int(anywhere.sum())
    return [f"{absent} of {len(table)} rows have missing values ({listed}). {otherwise}"]


def number_problem(column: pd.Series, groups: Sequence[str], first_text: str) -> list[str]:
    """Returns a sentence where a target holds no numbers to predict, or is a group too, or nothing.

    Args:
        column: the target.
        groups: names of the columns of groups.
        first_text: tells the row of its first text.
    """
    name = column.name
    if name in groups:
        return [f"target {name!r} is a number to predict and a group too; bin it into a column of groups."]
    if column.dtype != float:
        return [
            f"target {name!r} holds texts, {first_text}, and is to be a number; leave out "
            "--target-bounds for classes, or say how numbers are written (--thousands, --decimal, --numeric)."
        ]
    known = column.dropna()
    if (np.isinf(known) | (known.abs() > LARGEST_NUMBER)).any():
        return [f"target {name!r} holds infinite numbers, or beyond {LARGEST_NUMBER:g}; fix those rows."]
    return []


def weight_problem(column: pd.Series, first_text: str) -> list[str]:
    """Returns a sentence where a column of weights holds what is none, or nothing."""
    if column.dtype != float:
        return [f"column {column.name!r} of weights holds texts, {first_text}; expected numbers."]
    try:
        for check in (check_weights, check_some_weight):
            check(column.to_numpy(), f"column {column.name!r}")
    except DataError as error:
        return [str(error)]
    return []


def refuse_missing(table: pd.DataFrame, otherwise: str) -> None:
    """Raises where values are missing; `otherwise` says what to do about them."""
    for problem in missing_problem(table, otherwise):
        raise DataError(problem)
