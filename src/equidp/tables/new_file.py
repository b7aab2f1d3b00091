"""A new file as a trained run reads it.

One rule applies to inputs, target and groups. A column that the model would read as missing or unknown in
every row is rejected, unless the caller says that this is intended.
"""

from __future__ import annotations

import difflib
import re
import shlex
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from equidp._extras import require_extra
from equidp._validate import unknown_name
from equidp.errors import DataError, DataWarning
from equidp.tables.checks import refuse, refuse_missing
from equidp.tables.columns import Columns, read_table
from equidp.tables.encode import TableEncoder
from equidp.tables.findings import Level
from equidp.tables.parse import LARGEST_NUMBER, MISSING_NUMBERS
from equidp.tables.read import names_of
from equidp.tables.recipe import Recipe

with require_extra("tables"):
    import pandas as pd

FEWEST_ROWS = 20
"""With fewer rows, a column may be empty or unknown in all of them by chance."""
_INPUT_REMEDY = (
    "the columns that the model was trained on. Where new rows cannot have one, train again without it "
    "(--drop)"
)
_LABEL_REMEDY = "target and groups, to evaluate the model. If you only need predictions, use equidp predict"
_LIKE = 0.5
_NUMBER = r"([+-]?(?:0|[1-9]\d*))(\.\d*)?"


def read_new_file(
    path: Path,
    recipe: Recipe,
    encoder: TableEncoder,
    labels: Mapping[str, Sequence[str]] = {},
    lacking: Sequence[str] = (),
) -> pd.DataFrame:
    """Return the columns of a new file that a model reads, in the form of training.

    Numbers in texts are spelled as in training, and columns that may be lacking are missing in each row.
    Warns of doubts about columns, and of values that the training data did not have.

    Args:
        path: path of the file.
        recipe: recipe of the run.
        encoder: encoder of the run.
        labels: column of target or groups -> its values in training. {}: the file is only for prediction.
        lacking: columns that may be missing in the file, or have no values or only new values.

    Raises:
        DataError: the file cannot be used, or a column is unexpectedly missing or uninformative.
    """
    inputs = {column.name: column for column in encoder.columns}
    further = [*labels, *([recipe.person] if labels and recipe.person else [])]
    was_numeric = {name: column.numeric for name, column in inputs.items()}
    was_numeric |= {name: name not in encoder.textual for name in further}
    names = list(dict.fromkeys([*inputs, *further]))
    read = read_table(path, recipe, only=names, fewest=1, was_numeric=was_numeric)
    refuse(path, read.sentences(Level.PROBLEM))
    if lacking or not set(names) <= set(read.table):
        _check_lacking(names_of(path, recipe), names, recipe, encoder, lacking)
    table = read.table
    for name, values in labels.items():
        if name in table and table[name].dtype != float:
            table[name] = respell_numbers(table[name], values)
    _complete_inputs(read, encoder)
    for note in (*read.notes, *read.sentences(Level.DOUBT)):
        warnings.warn(note, DataWarning, stacklevel=4)
    if encoder.missing == "refuse":
        refuse_missing(
            table[list(inputs)],
            "The model was trained on rows without any: fill them in, or leave those rows out.",
        )
    _check_values(table, encoder, lacking)
    return table


def _check_lacking(
    present: Sequence[str],
    names: Sequence[str],
    recipe: Recipe,
    encoder: TableEncoder,
    lacking: Sequence[str],
) -> None:
    """Raise unless a file has each column that is read, except columns that may be missing."""
    for name in lacking:
        if name not in names:
            raise unknown_name("column in lacking", name, names)
    can_lack = {column.name for column in encoder.columns if column.marks_missing}
    gone = [name for name in names if name not in present and not (name in lacking and name in can_lack)]
    known = {recipe.target, *recipe.group, recipe.person, recipe.weight, *recipe.drop, *names}
    unused = [name for name in present if name not in known]
    like = {name: other for name in gone if (other := _closest_column(name, unused)) is not None}
    if recipe.person in gone and recipe.person not in like:
        gone.remove(recipe.person)  # each row is then another person's, with a warning
    if not gone:
        return
    sentences = [f"the table lacks {', '.join(map(repr, gone))}."]
    sentences += [
        f"Its column {other!r} is not used: if it is the same, rename it to {name!r}."
        for name, other in like.items()
    ]
    may = [name for name in gone if name in can_lack]
    if may:
        sentences.append(f"Where that is meant, say so ({_flags(may)}).")
    if len(may) < len(gone):
        labels = {recipe.target, *recipe.group} - {column.name for column in encoder.columns}
        sentences.append(f"Expected {_LABEL_REMEDY if labels.intersection(gone) else _INPUT_REMEDY}.")
    raise DataError(" ".join(sentences), field=", ".join(gone))


def _flags(names: Iterable[str]) -> str:
    return " ".join(f"--lacking {shlex.quote(name)}" for name in names)


def _closest_column(name: str, others: Sequence[str]) -> str | None:
    """Return the name among others that is most like a name, or None if none is like it."""

    def likeness(other: str) -> float:
        ours, theirs = (" ".join(re.split(r"\W+|_", each.casefold())).strip() for each in (name, other))
        within = min(ours, theirs, key=len)
        if within and re.search(rf"\b{re.escape(within)}\b", max(ours, theirs, key=len)):
            return 1.0
        return difflib.SequenceMatcher(None, ours, theirs).ratio()

    best = max(others, key=likeness, default=None)
    return best if best is not None and likeness(best) >= _LIKE else None


def _complete_inputs(read: Columns, encoder: TableEncoder) -> None:
    """Add columns that the table lacks, without a value, and spell numbers in texts as in training."""
    table = read.table
    for column in encoder.columns:
        name = column.name
        if name not in table:
            missing = np.full(len(table), np.nan)
            table[name] = missing if column.numeric else pd.Series(missing, dtype=object)
        elif column.numeric and table[name].dtype != float:
            raise DataError(
                f"column {name!r} holds text{read.first_text_phrase(name)}, but the training data had "
                "numbers; write numbers as in the training data, and leave cells without one empty."
            )
        elif column.numeric and (beyond := int((table[name].abs() > LARGEST_NUMBER).sum())):
            raise DataError(
                f"column {name!r} holds numbers beyond {LARGEST_NUMBER:g} in {beyond:,} of {len(table):,} "
                "rows; fix them, or leave those cells empty."
            )
        elif not column.numeric:
            texts = pd.Series(list(table[name].cat.categories), dtype=object)
            spellings = pd.Series(
                [*texts, *(each for text in texts for each in _spellings(text))], dtype=object
            )
            table[name] = respell_numbers(table[name], set(spellings[column.knows(spellings)]))


def _check_values(table: pd.DataFrame, encoder: TableEncoder, lacking: Sequence[str]) -> None:
    """Raise if a column tells the model nothing; warn about values that the training data did not have."""
    codes: dict[str, int] = {}
    unseen: dict[str, int] = {}
    for column in encoder.columns:
        name, cells = column.name, table[column.name]
        missing, known = cells.isna().to_numpy(), column.knows(cells)
        odd = ~known & cells.isin(MISSING_NUMBERS).to_numpy() if column.numeric else ~known
        if odd.any():
            (codes if column.numeric else unseen)[name] = int(odd.sum())
        if len(cells) < FEWEST_ROWS or name in lacking or (column.held_nothing and missing.all()):
            continue
        meant = f"if that is meant, say so ({_flags([name])})."
        if missing.all():
            raise DataError(
                f"column {name!r} has no value in any of {len(cells):,} rows; {meant} Else fill it in.",
                field=name,
            )
        values = int((~missing).sum())
        if values >= FEWEST_ROWS and not (known & ~missing).any():
            what = "the training data had none of them"
            if column.numeric:
                what = "all are far from the values in the training data, as if in another unit"
            raise DataError(
                f"column {name!r} has {values:,} values, and {what}. Write them as in the training data; "
                f"{meant}",
                field=name,
            )
    private = ", or too few rows of it for private preprocessing to keep" if encoder.private else ""
    for counts, sentence in (
        (
            codes,
            "some hold a number such as -999, far from the training data ({}); if it stands for a missing "
            "value, leave those cells empty, or train with it as missing.",
        ),
        (
            unseen,
            f"some have values that the training data did not{private} ({{}}); the model takes no notice of "
            "those values.",
        ),
    ):
        if counts:
            listed = ", ".join(f"{name!r}: {count:,}" for name, count in counts.items())
            warnings.warn(f"of {len(table):,} rows, {sentence.format(listed)}", DataWarning, stacklevel=5)


def respell_numbers(column: pd.Series, known: Iterable[str]) -> pd.Series:
    """Return a column of texts with numbers spelled as in training, if only one spelling is known.

    So 1.0 is read as 1: programs write whole numbers like this if a cell of the column is missing.

    >>> respell_numbers(pd.Series(["1.0", "2", "x"]), ["1", "2"]).tolist()
    ['1', '2', 'x']
    """
    column, known = column.astype("category"), set(known)
    changed = {}
    for text in map(str, column.cat.categories):
        spellings = [each for each in _spellings(text) if each in known]
        if text not in known and len(spellings) == 1:
            changed[text] = spellings[0]
    if not changed:
        return column
    return (
        column.astype(object).map(lambda text: changed.get(text, text), na_action="ignore").astype("category")
    )


def _spellings(text: str) -> list[str]:
    """Return other ways to write a number: without zeros at its end, and a whole number with .0."""
    match = re.fullmatch(_NUMBER, text)
    if match is None:
        return []
    whole, rest = match[1], (match[2] or "").rstrip("0").rstrip(".")
    return [whole + rest] if rest else [whole, f"{whole}.0"]
