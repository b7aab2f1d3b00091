"""Guesses about the columns of a table: what looks like a slip or a misuse. Nothing is changed by them.

Each guess looks at one column and returns a sentence, or None.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from equidp.data.columns import as_numbers
from equidp.data.recipe import Recipe

FEW_TEXTS = 0.1
"""Share of a column's values that may be slips among numbers; a column with more holds texts."""
MISSING_CODES = (-99, -999, -9999, 999, 9999, 99999)
"""Numbers that people write for a missing value."""
MISSING_WORDS = frozenset(
    (
        *("-", "--", ".", "..", "unknown", "unk", "unbekannt", "k.a.", "k. a.", "keine angabe", "missing"),
        *("not available", "not applicable", "not known", "none", "nil", "nd", "n.d.", "tbd", "na", "n.a."),
        *("(null)", "(none)", "#ref!", "#value!", "#div/0!", "inconnu", "desconocido", "undefined", "void"),
    )
)
"""Words that, among numbers or dates, stand for a missing value; in small letters."""
MISSING_NUMBERS = (-1, -9, -99, -999, -9999, -99999, 99, 999, 9999, 99999, 999999, 9999999)
"""Numbers that people write for a missing value."""
RARE_CODES = 0.005
"""Share of a column that such codes must exceed: below it, they may be measurements."""
FEW_NUMBERS = 10
"""With so few different numbers or fewer, a code such as 999 is one of them."""
MANY_ROWS = 100
"""From here on, whole numbers rarely differ in all rows by chance."""
MANY_CLASSES = 20
"""A target with more different numbers is taken to measure something."""


def doubts(table: pd.DataFrame, recipe: Recipe) -> list[str]:
    """Returns a sentence for each doubt about a table of `read_table`; rows are counted from 1.

    What the recipe says of a column leaves no doubt about it.

    >>> table = pd.DataFrame({"lab": ["1,5", "2,0"], "sex": ["F", "M"], "ill": ["no", "yes"]})
    >>> doubts(table, Recipe(target="ill", group=("sex",)))
    ["column 'lab' holds numbers with decimal commas, taken as categories; say so (--decimal 'lab=comma')."]
    """
    found = []
    for name in table.columns:
        column = table[name].dropna()
        if name in recipe.categorical or name == recipe.person:
            continue
        if table[name].dtype != float:
            found += [_few_texts(name, column), _marks(name, column)]
        elif name == recipe.target:
            found.append(_many_classes(name, column) if recipe.target_bounds is None else None)
        elif name not in recipe.group:
            found += [_missing_codes(name, column, len(table)), _names_of_rows(name, table[name])]
    return [sentence for sentence in found if sentence]


def _few_texts(name: str, known: pd.Series) -> str | None:
    places, texts = pd.factorize(known)
    lost = pd.to_numeric(pd.Series(texts, dtype=object), errors="coerce").isna().to_numpy()
    rows = np.flatnonzero(lost[places])
    if not len(rows) or len(rows) > FEW_TEXTS * len(known):
        return None
    return (
        f"column {name!r} holds numbers, but {len(rows):,} of its {len(known):,} values are not numbers, "
        f"the first in row {known.index[rows[0]] + 1:,}: all become categories. Let those count as missing "
        f"(--numeric {name!r})."
    )


def _marks(name: str, known: pd.Series) -> str | None:
    known = pd.Series(known.unique(), dtype="string")
    if known.empty or not known.str.contains(",", regex=False).any():
        return None
    for decimal, thousands, says, option in (
        (".", ",", "commas between thousands", "thousands"),
        (",", ".", "decimal commas", "decimal"),
    ):
        if as_numbers(known, decimal, thousands).notna().all():
            return (
                f"column {name!r} holds numbers with {says}, taken as categories; say so (--{option} "
                f"'{name}=comma')."
            )
    return None


def _missing_codes(name: str, known: pd.Series, num_rows: int) -> str | None:
    codes = known[known.isin(MISSING_CODES)]
    if len(codes) <= RARE_CODES * num_rows or known.nunique() <= FEW_NUMBERS:
        return None
    return (
        f"column {name!r} holds {codes.mode()[0]:g} or the like in {len(codes):,} of {num_rows:,} rows; if "
        f"it stands for a missing value, say so (--na '{name}={codes.mode()[0]:g}')."
    )


def _names_of_rows(name: str, column: pd.Series) -> str | None:
    first, whole = column[:MANY_ROWS], len(column) >= MANY_ROWS and (column % 1 == 0).all()
    if not (whole and first.is_unique and column.is_unique):
        return None
    names = f"column {name!r} holds another whole number in each row"
    return f"{names}; if it names the rows, drop it (drop; --drop)."


def _many_classes(name: str, known: pd.Series) -> str | None:
    if known.nunique() <= MANY_CLASSES:
        return None
    return (
        f"target {name!r} holds {known.nunique()} different numbers, each a class of its own; if it measures "
        "something, predict it as a number (--task regression), or bin it into few classes."
    )
