"""Columns of a new file as a run reads them: those that it lacks, has without a value, or spells otherwise.

One rule holds for inputs, target and groups: what the model would take for missing or unknown in every row is
refused, unless the caller says that it is meant.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from equidp._extras import require_extra
from equidp._validate import unknown_name
from equidp.errors import DataError

with require_extra("tables"):
    import pandas as pd

FEWEST_ROWS = 20
"""With fewer rows, a column may be empty or unknown in all of them by chance."""
INPUT_REMEDY = (
    "the columns that the model was trained on. Where new rows cannot have one, train again without it "
    "(--drop)"
)
LABEL_REMEDY = (
    "target and groups, to measure the model by. For predictions alone, equidp predict needs neither"
)
_LIKE = 0.5
_NUMBER = r"([+-]?(?:0|[1-9]\d*))(\.\d*)?"

Bools = npt.NDArray[np.bool_]


def check_lacking(
    present: Sequence[str],
    wanted: Sequence[str],
    lacking: Sequence[str] = (),
    *,
    can_lack: Collection[str] = (),
    unused: Sequence[str] = (),
    remedy: str,
) -> None:
    """Raise a DataError unless a file has each column that is read of it, but for those it is to lack.

    Args:
        present: columns of the file.
        wanted: columns that are read.
        lacking: those that the caller says are missing.
        can_lack: those that the model has a mark for missing values of.
        unused: columns of the file that the run does not know.
        remedy: ends the message for a column that the file cannot lack.

    >>> check_lacking(["age", "Job title"], ["age", "job"], unused=["Job title"], remedy="it")
    Traceback (most recent call last):
    equidp.errors.DataError: the table lacks 'job'. Its column 'Job title' is not used: if it is the same, ...
    """
    for name in lacking:
        if name not in wanted:
            raise unknown_name("column in lacking", name, wanted)
    gone = [name for name in wanted if name not in present and not (name in lacking and name in can_lack)]
    if not gone:
        return
    like = {name: other for name in gone if (other := closest_column(name, unused)) is not None}
    sentences = [f"the table lacks {', '.join(map(repr, gone))}."]
    sentences += [
        f"Its column {other!r} is not used: if it is the same, rename it to {name!r}."
        for name, other in like.items()
    ]
    may = [name for name in gone if name in can_lack]
    if may:
        sentences.append(f"Where that is meant, say so ({_flags(may)}).")
    if len(may) < len(gone):
        sentences.append(f"Expected {remedy}.")
    raise DataError(" ".join(sentences), field=", ".join(gone))


def _flags(names: Iterable[str]) -> str:
    return " ".join(f"--lacking {_in_shell(name)}" for name in names)


def _in_shell(text: str) -> str:
    """A text between single quotes, as a shell takes it."""
    return "'" + text.replace("'", r"'\''") + "'"


def closest_column(name: str, others: Sequence[str]) -> str | None:
    """Return the name among others that is most like a name; None where none is like it."""

    def likeness(other: str) -> float:
        ours, theirs = (" ".join(re.split(r"\W+|_", each.casefold())).strip() for each in (name, other))
        within = min(ours, theirs, key=len)
        if within and re.search(rf"\b{re.escape(within)}\b", max(ours, theirs, key=len)):
            return 1.0
        return difflib.SequenceMatcher(None, ours, theirs).ratio()

    best = max(others, key=likeness, default=None)
    return best if best is not None and likeness(best) >= _LIKE else None


def check_told(name: str, known: Bools, missing: Bools, lacking: Sequence[str], numeric: bool) -> None:
    """Raise a DataError if a column tells a model nothing in a file of `FEWEST_ROWS` rows or more.

    Args:
        name: of the column.
        known: cells whose value the model knows, [n].
        missing: cells without a value, [n].
        lacking: columns that may tell nothing.
        numeric: True for a column of numbers.
    """
    if len(known) < FEWEST_ROWS or name in lacking:
        return
    meant = f"if that is meant, say so ({_flags([name])})."
    if missing.all():
        raise DataError(
            f"column {name!r} has no value in any of {len(known):,} rows; {meant} Else fill it in.",
            field=name,
        )
    values = int((~missing).sum())
    if values >= FEWEST_ROWS and not known.any():
        what = "the training data had none of them"
        if numeric:
            what = "all lie far from those of the training data, as in another unit"
        raise DataError(
            f"column {name!r} has {values:,} values, and {what}. Write them as in the training data; {meant}",
            field=name,
        )


def is_one_of(known: Sequence[str], texts: pd.Series) -> Bools:
    """Return whether each text is one of those known, [n]."""
    found: Bools = texts.isin(known).to_numpy()
    return found


def respell_numbers(column: pd.Series, knows: Callable[[pd.Series], Bools]) -> pd.Series:
    """Return a column of texts with numbers spelled as in training, where one spelling alone is known.

    So 1.0 is read as 1: programs write whole numbers so where a cell of the column is missing.

    Args:
        column: texts.
        knows: texts -> whether the training data had each.

    >>> respell_numbers(pd.Series(["1.0", "2", "x"]), lambda texts: texts.isin(["1", "2"])).tolist()
    ['1', '2', 'x']
    """
    column = column.astype("category")
    texts = [str(text) for text in column.cat.categories]
    unknown = [
        text for text, known in zip(texts, knows(pd.Series(texts, dtype=object)), strict=True) if not known
    ]
    changed = {}
    for text in unknown:
        spellings = [*dict.fromkeys(_other_spellings(text))]
        found = [
            each
            for each, known in zip(spellings, knows(pd.Series(spellings, dtype=object)), strict=True)
            if known
        ]
        if len(found) == 1:
            changed[text] = found[0]
    if not changed:
        return column
    return (
        column.astype(object).map(lambda text: changed.get(text, text), na_action="ignore").astype("category")
    )


def _other_spellings(text: str) -> Iterator[str]:
    """Yield other ways to write a number: without zeros at its end, and a whole number with .0."""
    if match := re.fullmatch(_NUMBER, text):
        whole, rest = match[1], (match[2] or "").rstrip("0").rstrip(".")
        yield whole + rest
        if not rest:
            yield f"{whole}.0"
