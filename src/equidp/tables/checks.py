"""Checks of a table's columns: names first, then contents, with all problems in one message."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from os import PathLike, fspath

import numpy as np
import pandas as pd

from equidp._validate import check_some_weight, check_weights, unknown_name
from equidp.errors import DataError
from equidp.tables.cells import fold_spellings
from equidp.tables.interpret import Columns
from equidp.tables.labels import code_values, cross_columns
from equidp.tables.recipe import Recipe, as_key, in_shell

LARGEST_NUMBER = 1e18
MOST_CATEGORIES = 1000
MOST_GROUPS = 100
_MOST_CLASSES = 100


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
    """Raises a DataError with all problems of a table in one message, if there are any."""
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
            left = int(fold_spellings(pd.Series(column.dropna().unique(), dtype="string")).nunique())
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
    """Returns a list with a message if values are missing, else []; `otherwise` is the remedy."""
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
    """Returns a list with a message if a target holds unusable numbers or texts, or is also a group; else [].

    Args:
        column: the target.
        groups: names of the group columns.
        first_text: phrase with the row of its first text.
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
    """Returns a list with a message if a column of weights is invalid, else []."""
    if column.dtype != float:
        return [f"column {column.name!r} of weights holds texts, {first_text}; expected numbers."]
    try:
        for check in (check_weights, check_some_weight):
            check(column.to_numpy(), f"column {column.name!r}")
    except DataError as error:
        return [str(error)]
    return []


def refuse_missing(table: pd.DataFrame, otherwise: str) -> None:
    """Raises a DataError if values are missing; `otherwise` is the remedy."""
    for problem in missing_problem(table, otherwise):
        raise DataError(problem)


def label_columns(recipe: Recipe) -> list[str]:
    """Return the columns that are not inputs: target, groups, weight and person."""
    others = (each for each in (recipe.weight, recipe.person) if each is not None)
    return list(dict.fromkeys([str(recipe.target), *recipe.group, *others]))


def problems_of(read: Columns, recipe: Recipe) -> list[str]:
    """Returns a sentence for each reason why a table cannot be trained on by this recipe."""
    table, labels = read.table, label_columns(recipe)
    problems = [*read.problems, *feature_problems(table.drop(columns=labels, errors="ignore"))]
    if len(table.columns) + len(read.problems) == len(labels):
        problems.append(
            "no column is left as an input; expected at least one beside target, groups and dropped columns."
        )
    for name, *_ in recipe.bounds:
        if name in table and table[name].dtype != float:
            problems.append(
                f"column {name!r} has bounds but holds texts, {read.first_text(name)}; bounds are for "
                "numbers."
            )
    if all(name in table for name in labels):
        problems += _label_problems(read, recipe)
    if recipe.missing == "refuse":
        words = (
            f" Where {word!r} is a value, say so (--not-na {in_shell(f'{as_key(name)}={word}')})."
            for name, found in read.findings.items()
            for word in found.absent
            if word and name in table and table[name].dtype != float
        )
        problems += missing_problem(
            table,
            "Drop those rows or columns, or treat missing as a category of its own (missing='category'; "
            f"--missing category).{next(words, '')}",
        )
    return problems


def _label_problems(read: Columns, recipe: Recipe) -> list[str]:
    """Return problems of the target and the groups; groups are not checked if values are missing."""
    table = read.table
    target, columns = str(recipe.target), ", ".join(recipe.group)
    classes, found = table[target].nunique(), []
    absent = int(table[target].isna().sum())
    if absent:
        found.append(f"target {target!r} is missing in {absent} of {len(table)} rows; remove those rows.")
    if recipe.weight is not None:
        found += weight_problem(table[recipe.weight], read.first_text(recipe.weight))
    if recipe.person is not None and (unknown := int(table[recipe.person].isna().sum())):
        found.append(
            f"person {recipe.person!r} is missing in {unknown} of {len(table)} rows, and epsilon is promised "
            "to people. Fill that in, or remove those rows."
        )
    if recipe.target_bounds is not None:
        found += number_problem(table[target], recipe.group, read.first_text(target))
    elif classes == 1:
        found.append(f"target {target!r} has one class only; expected at least two.")
    elif classes > _MOST_CLASSES:
        found.append(
            f"target {target!r} has {classes} distinct values; expected at most {_MOST_CLASSES} classes. "
            "Predict it as a number (--task regression --target-bounds LOW:HIGH), or bin it into classes."
        )
    elif recipe.positive is not None and recipe.positive not in code_values(table[target].dropna())[1]:
        found.append(f"positive class {recipe.positive!r} is none of the classes of target {target!r}.")
    if recipe.missing == "refuse" and table[list(recipe.group)].isna().any(axis=None):
        return found
    groups, names = cross_columns(table, recipe.group)
    if len(names) > MOST_GROUPS:
        found.append(f"{columns} gives {len(names)} groups; bin or merge values, to at most {MOST_GROUPS}.")
        return found
    if len(names) < 2:
        found.append(f"{columns} gives one group only; expected at least two to compare.")
    if lonely := int((np.bincount(groups) < 2).sum()):
        found.append(
            f"{lonely:,} of the {len(names):,} groups by {columns} {'has' if lonely == 1 else 'have'} "
            "1 example; a group needs one to train and one to test on. Merge them with others."
        )
    return found
