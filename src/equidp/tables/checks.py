"""Reasons against training on a table as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike, fspath

from equidp._extras import require_extra
from equidp._validate import check_some_weight, check_weights
from equidp.errors import DataError
from equidp.tables.columns import Columns
from equidp.tables.findings import Level, lines
from equidp.tables.labels import code_values, cross_columns
from equidp.tables.recipe import Recipe

with require_extra("tables"):
    import pandas as pd

MOST_GROUPS = 100
_MOST_CLASSES = 100


def refuse(path: str | PathLike[str], problems: Sequence[str]) -> None:
    """Raise a DataError with all problems of a table in one message, if there are any.

    Its field is the field of the only problem, such as a column, or "table".
    """
    if len(problems) == 1:
        raise DataError(problems[0], field=DataError(problems[0]).field or "table")
    if problems:
        listed = "".join(f"\n- {problem}" for problem in problems)
        raise DataError(
            f"{fspath(path)!r} cannot be used as it is, for {len(problems)} reasons:{listed}\nequidp inspect "
            "shows the whole table and writes run.toml for it.",
            field="table",
        )


def missing_problem(table: pd.DataFrame, otherwise: str) -> list[str]:
    """Return a list with a message if values are missing, else []; `otherwise` is the remedy."""
    missing = table.isna()
    counts = missing.sum()
    if not counts.any():
        return []
    listed = ", ".join(f"{name!r}: {count}" for name, count in counts.items() if count)
    return [f"{missing.any(axis=1).sum()} of {len(table)} rows have missing values ({listed}). {otherwise}"]


def refuse_missing(table: pd.DataFrame, otherwise: str) -> None:
    """Raise a DataError if values are missing; `otherwise` is the remedy."""
    for problem in missing_problem(table, otherwise):
        raise DataError(problem, field="table")


def label_columns(recipe: Recipe) -> list[str]:
    """Return the columns with a role: target, groups, weight and person."""
    others = (each for each in (recipe.weight, recipe.person) if each is not None)
    return list(dict.fromkeys([str(recipe.target), *recipe.group, *others]))


def columns_beside_inputs(recipe: Recipe) -> list[str]:
    """Return the columns with a role that are not inputs: all, except groups that are inputs too."""
    inputs = set(recipe.group) - {recipe.target} if recipe.group_as_input else set()
    return [name for name in label_columns(recipe) if name not in inputs]


def problems_of(read: Columns, recipe: Recipe) -> list[str]:
    """Return a sentence for each reason why a table cannot be trained on."""
    table, labels = read.table, label_columns(recipe)
    problems = read.sentences(Level.PROBLEM)
    unusable = sum(each.values is None for each in read.parsed.values())
    if len(table.columns) + unusable == len(columns_beside_inputs(recipe)):
        problems.append(
            "no column is left as an input; expected at least one besides target, groups and dropped columns."
        )
    for name in recipe.ranges:
        if name in table and table[name].dtype != float:
            problems.append(
                f"column {name!r} has a range but holds texts{read.first_text_phrase(name)}; ranges are for "
                "numbers."
            )
    if all(name in table for name in labels):
        problems += _label_problems(read, recipe)
    if recipe.missing == "refuse":
        words = (
            f" Where {word!r} is a value, say so ({lines(name, (('known', word),))})."
            for name, parsed in read.parsed.items()
            for word in parsed.absent
            if any(map(str.isalpha, word)) and name in table and table[name].dtype != float
        )
        problems += missing_problem(
            table[[name for name in table.columns if name != recipe.target]],
            "Drop those rows or columns, or treat missing as a category of its own (missing='category'; "
            f"--missing category).{next(words, '')}",
        )
    return problems


def _label_problems(read: Columns, recipe: Recipe) -> list[str]:
    """Return problems of the target and the groups; groups are not checked if values are missing."""
    table, target, columns = read.table, str(recipe.target), ", ".join(recipe.group)
    classes, problems = table[target].nunique(), []
    if absent := int(table[target].isna().sum()):
        problems.append(f"target {target!r} is missing in {absent} of {len(table)} rows; remove those rows.")
    if recipe.weight is not None:
        problems += _weight_problem(table[recipe.weight], read.first_text_phrase(recipe.weight))
    if recipe.person is not None and (unknown := int(table[recipe.person].isna().sum())):
        problems.append(
            f"person {recipe.person!r} is missing in {unknown} of {len(table)} rows, and epsilon is promised "
            "to people. Fill that in, or remove those rows."
        )
    if classes == 1:
        problems.append(f"target {target!r} has one class only; expected at least two.")
    elif classes > _MOST_CLASSES:
        problems.append(
            f"target {target!r} has {classes} distinct values; expected at most {_MOST_CLASSES} classes. Bin "
            "it into classes, or merge them; if it holds numbers, say how they are written (thousands, "
            "decimal)."
        )
    elif recipe.positive is not None and recipe.positive not in code_values(table[target].dropna())[1]:
        problems.append(f"positive class {recipe.positive!r} is none of the classes of target {target!r}.")
    if recipe.missing == "refuse" and any(table[name].isna().any() for name in recipe.group):
        return problems
    _, names = cross_columns(table, recipe.group)
    if len(names) > MOST_GROUPS:
        problems.append(
            f"{columns} gives {len(names)} groups; expected at most {MOST_GROUPS}. Bin or merge "
            "its values in the file (docs/tables.md, Groups from a column of numbers)."
        )
    elif len(names) < 2:
        problems.append(f"{columns} gives one group only; expected at least two to compare.")
    return problems


def _weight_problem(column: pd.Series, first_text_phrase: str) -> list[str]:
    if column.dtype != float:
        return [f"column {column.name!r} of weights holds texts{first_text_phrase}; expected numbers."]
    try:
        check_weights(column.to_numpy(), f"column {column.name!r}")
        check_some_weight(column.to_numpy(), f"column {column.name!r}")
    except DataError as error:
        return [str(error)]
    return []
