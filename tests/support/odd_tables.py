"""Odd columns of tables, as Parquet and, where they are texts, as CSV; shared by tests and golden results."""

from __future__ import annotations

import datetime
import decimal
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

N = 120


def people(rows: int = N) -> dict[str, list[Any]]:
    return {
        "age": [20.5 + row % 37 for row in range(rows)],
        "job": [("cook", "clerk", "nurse")[row // 2 % 3] for row in range(rows)],
        "sex": ["FM"[row // 4 % 2] for row in range(rows)],
        "ill": ["yes" if row % 7 < 3 else "no" for row in range(rows)],
    }


def turns(*values, rows: int = N) -> list[Any]:
    return [values[row % len(values)] for row in range(rows)]


@dataclass(frozen=True)
class Odd:
    """A column x beside those of `people`, and what is right.

    Attributes:
        cells: of x; texts, or values that Arrow stores by their type.
        type: of Arrow; None: texts, which both kinds of files hold.
        recipe: what is stated.
        says: what one warning holds, each of them; and no other warning is given.
        refused: what the error holds.
        names: of the groups or classes, where x is one.
        inputs: that x becomes.
        numbers: that x holds in its first rows, in file units.
    """

    cells: list[Any]
    type: pa.DataType | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    names: tuple[str, ...] | None = None
    inputs: int | None = None
    numbers: tuple[float, ...] | None = None


def stated(neutral: dict[str, Any]) -> dict[str, Any]:
    """Fields of a recipe for what an `Odd` states of columns by meaning."""
    plain = {name: value for name, value in neutral.items() if name not in _OF_COLUMN}
    columns: dict[str, dict[str, Any]] = {}
    for meaning, field_of in _OF_COLUMN.items():
        value = neutral.get(meaning, {})
        by_name = value if isinstance(value, dict) else dict.fromkeys(value, _IMPLIED.get(meaning))
        for name, each in by_name.items():
            columns.setdefault(name, {})[field_of] = each
    return {**plain, "columns": columns} if columns else plain


_OF_COLUMN = {
    "categorical": "kind",
    "numeric": "kind",
    "date": "format",
    "fold": "fold",
    "na": "missing",
    "not_na": "known",
    "decimal": "decimal",
    "thousands": "thousands",
    "bounds": "range",
}
_IMPLIED = {"categorical": "text", "numeric": "number", "date": "iso", "fold": True}

GROUP = {"group": ["x"]}
CATEGORY = {"missing": "category"}
LONG = ("20240101000001", "20240101000002", "30240101000001")
LONGER = ("12345678901234567", "12345678901234568", "22345678901234567")
DAYS = [f"2024-{1 + row % 12:02d}-{1 + row % 28:02d}" for row in range(N)]
SINCE = [float((pd.Timestamp(day) - pd.Timestamp("2000-01-01")).days) for day in DAYS]
GERMAN = [f"{day[8:]}.{day[5:7]}.{day[:4]}" for day in DAYS]
MIXED = [GERMAN[row] if row % 2 else DAYS[row] for row in range(N)]

ODD = {
    # codes of many digits
    "codes of 14 digits are groups": Odd(turns(*LONG), recipe=GROUP, names=LONG),
    "codes of 14 digits are classes": Odd(
        turns(*LONG[:2]), recipe={"target": "x", "drop": ["ill"]}, names=LONG[:2]
    ),
    "codes of 14 digits are categories": Odd(turns(*LONG), recipe={"categorical": ["x"]}, inputs=3),
    "codes of 17 digits are groups": Odd(
        turns(*LONGER),
        recipe=GROUP,
        says=("'x' holds whole numbers of more than 15 digits", 'kind = "text"'),
        names=LONGER,
    ),
    "codes of 17 digits are categories": Odd(
        turns(*LONGER),
        says=("'x' holds whole numbers of more than 15 digits in 120 rows", 'kind = "number"'),
        inputs=3,
    ),
    "codes of 17 digits are numbers": Odd(turns(*LONGER), recipe={"numeric": ["x"]}, inputs=1),
    "codes of 17 digits in one late row": Odd(
        [*map(str, range(N - 1)), LONGER[0]], says=("in 1 row, the first in row 120",)
    ),
    "codes by type int64": Odd(turns(*map(int, LONG)), pa.int64(), GROUP, names=LONG),
    "long codes by type int64": Odd(
        turns(*map(int, LONGER)),
        pa.int64(),
        GROUP,
        ("'x' holds whole numbers of more than 15 digits",),
        names=LONGER,
    ),
    "long codes by type uint64": Odd(
        turns(2**64 - 1, 2**64 - 2),
        pa.uint64(),
        GROUP,
        ("more than 15 digits",),
        names=("18446744073709551614", "18446744073709551615"),
    ),
    "long codes by type decimal": Odd(
        turns(*map(decimal.Decimal, LONGER)),
        pa.decimal128(20, 0),
        GROUP,
        ("more than 15 digits",),
        names=LONGER,
    ),
    "long codes by type, with missing ones": Odd(
        [*turns(*map(int, LONGER), rows=N - 3), None, None, None],
        pa.int64(),
        {"categorical": ["x"], **CATEGORY},
        inputs=4,
    ),
    "codes by type int64, stated": Odd(
        turns(*map(int, LONGER)), pa.int64(), {"categorical": ["x"]}, inputs=3
    ),
    "versions": Odd(
        turns("1.1", "1.10", "1.2"),
        recipe=GROUP,
        says=("'x' writes one number in several ways", 'kind = "text"'),
        names=("1.1", "1.2"),
    ),
    "versions, stated": Odd(
        turns("1.1", "1.10", "1.2"), recipe={**GROUP, "categorical": ["x"]}, names=("1.1", "1.10", "1.2")
    ),
    "1 and 1.0": Odd(
        turns("1", "2", "1.0"),
        says=("in 40 rows, the first in row 3", '[column.x] kind = "text"'),
        numbers=(1, 2, 1),
        inputs=1,
    ),
    "leading zeros": Odd(
        turns("01", "02", "11"), says=("leading zeros", 'kind = "text"'), numbers=(1, 2, 11)
    ),
    "leading zeros before a point": Odd(
        turns("01.5", "2", "1.5"), says=("leading zeros",), numbers=(1.5, 2, 1.5)
    ),
    "codes such as 3E2": Odd(
        turns("3E2", "1E5", "2E4", "7"),
        says=("'x' holds numbers written as 3E2", "90 rows", 'kind = "text"'),
        inputs=1,
    ),
    "codes such as +49": Odd(turns("+49", "+33"), says=("written as 3E2 or +49", 'kind = "text"'), inputs=1),
    "codes such as 3E2, stated": Odd(turns("3E2", "300"), recipe={"categorical": ["x"]}, inputs=2),
    "numbers with powers": Odd(turns("1.5e-05", "2.5e-05", "1e+20", "2.5e+17"), refused=("beyond 1e+18",)),
    # dates
    "dates": Odd(DAYS, refused=("'x' holds dates", '([column.x] kind = "date")', 'kind = "text"')),
    "dates as classes": Odd(
        turns(*DAYS[:2]),
        recipe={"target": "x", "drop": ["ill"]},
        refused=("'x' holds dates", 'kind = "text"'),
    ),
    "dates as classes, stated": Odd(
        turns(*DAYS[:2]),
        recipe={"target": "x", "drop": ["ill"], "categorical": ["x"]},
        names=tuple(sorted(DAYS[:2])),
    ),
    "dates as groups": Odd(turns(*DAYS[:2]), recipe=GROUP, refused=("'x' holds dates", 'kind = "text"')),
    "dates as weights": Odd(DAYS, recipe={"weight": "x"}, refused=("'x' holds dates", "name another")),
    "lists as classes": Odd(
        turns([1], [2]),
        pa.list_(pa.int64()),
        {"target": "x", "drop": ["ill"]},
        refused=("'x' holds values of type list",),
    ),
    "dates, iso": Odd(DAYS, recipe={"date": ["x"]}, numbers=tuple(SINCE), inputs=1),
    "dates in iso order, dayfirst": Odd(
        DAYS, recipe={"date": {"x": "dayfirst"}}, numbers=tuple(SINCE), inputs=1
    ),
    "dates in iso order, monthfirst": Odd(
        DAYS, recipe={"date": {"x": "monthfirst"}}, numbers=tuple(SINCE), inputs=1
    ),
    "dates by type, dayfirst": Odd(
        [datetime.date.fromisoformat(day) for day in DAYS],
        pa.date32(),
        {"date": {"x": "dayfirst"}},
        numbers=tuple(SINCE),
    ),
    "dates by type": Odd(
        [datetime.date.fromisoformat(day) for day in DAYS], pa.date64(), refused=("'x' holds dates",)
    ),
    "times by type": Odd(
        [datetime.datetime.fromisoformat(day) for day in DAYS],
        pa.timestamp("ms", tz="UTC"),
        {"date": {"x": "dayfirst"}},
        numbers=tuple(SINCE),
    ),
    "dates in two orders": Odd(MIXED, refused=("'x' holds dates", '([column.x] format = "iso|%d.%m.%Y")')),
    "dates in two orders, dayfirst": Odd(MIXED, recipe={"date": {"x": "dayfirst"}}, numbers=tuple(SINCE)),
    "dates in two orders, each stated": Odd(
        MIXED, recipe={"date": {"x": "%d.%m.%Y|%Y-%m-%d"}}, numbers=tuple(SINCE), inputs=1
    ),
    "dates with slashes, year first": Odd(
        [day.replace("-", "/") for day in DAYS], recipe={"date": {"x": "dayfirst"}}, numbers=tuple(SINCE)
    ),
    "dates of the month first": Odd(
        [f"{day[5:7]}/{day[8:]}/{day[:4]}" for day in DAYS], refused=('([column.x] format = "%m/%d/%Y")',)
    ),
    "dates that a stated order does not have": Odd(
        [*GERMAN[:-1], "12.31.2024"],
        recipe={"date": {"x": "dayfirst"}, **CATEGORY},
        says=("'x' is to hold dates (dayfirst), but 1 of its 120 values are not and count as missing",),
        inputs=2,
    ),
    "dates of two digits": Odd(
        [f"{day[8:]}.{day[5:7]}.{day[2:4]}" for day in DAYS],
        recipe={"date": {"x": "dayfirst"}},
        numbers=tuple(SINCE),
    ),
    "dates of two digits, not stated": Odd(
        [f"{day[8:]}.{day[5:7]}.{day[2:4]}" for day in DAYS],
        says=("'x' holds dates, taken as", '[column.x] format = "%d.%m.%y"'),
    ),
    "a word where a date is to be": Odd(
        [*DAYS[:-1], "now"],
        recipe={"date": ["x"], **CATEGORY},
        says=("1 of its 120 values are not and count as missing, the first in row 120",),
        inputs=2,
    ),
    "a date for none": Odd(
        ["9999-12-31" if row % 3 == 0 else DAYS[row] for row in range(N)],
        recipe={"date": ["x"]},
        says=("'x' holds the date 9999-12-31 in 40 of 120 rows", '[column.x] missing = ["9999-12-31"]'),
        inputs=1,
    ),
    "a date for none, german": Odd(
        ["01.01.1900" if row % 3 == 0 else GERMAN[row] for row in range(N)],
        recipe={"date": {"x": "%d.%m.%Y"}},
        says=("'x' holds the date 1900-01-01 in 40 of 120 rows", '[column.x] missing = ["1900-01-01"]'),
    ),
    "a date for none, stated": Odd(
        ["01.01.1900" if row % 3 == 0 else GERMAN[row] for row in range(N)],
        recipe={"date": {"x": "%d.%m.%Y"}, "na": {"x": "1900-01-01"}, **CATEGORY},
        inputs=2,
    ),
    "a date for none by type, stated": Odd(
        [
            datetime.datetime(9999, 12, 31) if row % 3 == 0 else datetime.datetime(2020, 1, 1 + row % 28)
            for row in range(N)
        ],
        pa.timestamp("us"),
        {"date": ["x"], "na": {"x": "9999-12-31"}, **CATEGORY},
        inputs=2,
    ),
    "durations by type": Odd(
        turns(datetime.timedelta(hours=36), datetime.timedelta(days=1)),
        pa.duration("ms"),
        refused=("holds durations", '[column.x] format = "duration"'),
    ),
    "durations by type, stated": Odd(
        turns(datetime.timedelta(hours=36), datetime.timedelta(days=1)),
        pa.duration("ms"),
        {"date": {"x": "duration"}},
        numbers=(1.5, 1.0),
    ),
    "durations as texts": Odd(
        turns("1 days 12:00:00", "1 days"), refused=("holds durations", '[column.x] format = "duration"')
    ),
    "durations as texts, stated": Odd(
        turns("1 days 12:00:00", "1 days"), recipe={"date": {"x": "duration"}}, numbers=(1.5, 1.0)
    ),
    "hours by type": Odd(turns(datetime.time(8, 30), datetime.time(9)), pa.time64("us"), inputs=2),
    "months": Odd(turns(*(f"20{year}-{month:02d}" for year in (19, 20) for month in range(1, 6))), inputs=10),
    # missing values
    "NA beside nothing": Odd(
        turns("NA", "EU", None),
        recipe={**GROUP, **CATEGORY},
        says=("'x' holds 'NA' in 40 rows", '[column.x] known = ["NA"]'),
        names=("EU", "missing"),
    ),
    "NA is a group": Odd(
        turns("NA", "EU", None),
        recipe={**GROUP, **CATEGORY, "not_na": {"x": "NA"}},
        names=("EU", "NA", "missing"),
    ),
    "NA beside nothing among texts": Odd(
        turns("NA", "EU", None, "AS"),
        recipe=CATEGORY,
        says=("'x' holds 'NA' in 30 rows", "beside 30 rows"),
        inputs=3,
    ),
    "None and nan as texts": Odd(
        turns("None", "nan", "a"), recipe=CATEGORY, says=("'None' in 40 rows and 'nan' in 40 rows",), inputs=2
    ),
    "NA refused": Odd(
        turns("NA", "EU"), refused=("60 of 120 rows have missing values", '[column.x] known = ["NA"]')
    ),
    "NA among numbers": Odd(turns("NA", "1", "2.5"), recipe=CATEGORY, inputs=2),
    "a text that says missing": Odd(
        turns("missing", "a", None),
        recipe=CATEGORY,
        says=("the text 'missing' in 40 rows", '[column.x] missing = ["missing"]'),
        inputs=2,
    ),
    "whole numbers by type with missing ones": Odd(
        turns(1, None, 3), pa.int64(), CATEGORY, inputs=2, numbers=(1, np.nan, 3)
    ),
    "nothing at all by type": Odd([None] * N, pa.null(), CATEGORY, inputs=2),
    # types
    "truths by type": Odd(turns(True, False), pa.bool_(), GROUP, names=("False", "True")),
    "truths with missing ones": Odd(turns(True, False, None), pa.bool_(), CATEGORY, inputs=3),
    "dictionaries of texts": Odd(
        turns("a", "b"), pa.dictionary(pa.int8(), pa.string()), GROUP, names=("a", "b")
    ),
    "dictionaries of numbers": Odd(
        turns(7, 30), pa.dictionary(pa.int8(), pa.int64()), inputs=1, numbers=(7, 30)
    ),
    "decimals": Odd(
        turns(decimal.Decimal("1.10"), decimal.Decimal("2.25")), pa.decimal128(9, 2), numbers=(1.1, 2.25)
    ),
    "decimals beside decimal commas": Odd(
        turns(decimal.Decimal("1.10"), decimal.Decimal("2.25")),
        pa.decimal128(9, 2),
        {"decimal": {"x": ","}},
        numbers=(1.1, 2.25),
    ),
    "floats as groups": Odd(
        turns(0.1, 20240101000001.0), pa.float64(), GROUP, names=("0.1", "20240101000001")
    ),
    "UUIDs": Odd([uuid.UUID(int=row % 3).bytes for row in range(N)], pa.uuid(), inputs=3),
    "bytes": Odd(turns(b"a", b"b"), pa.binary(), refused=("'x' holds values of type bytes",)),
    "lists": Odd(turns([1], [2]), pa.list_(pa.int64()), refused=("'x' holds values of type list",)),
    "views of texts": Odd(
        turns("NA", "a", None),
        pa.string_view(),
        {**GROUP, **CATEGORY, "not_na": {"x": "NA"}},
        names=("NA", "a", "missing"),
    ),
    "views of bytes": Odd(turns(b"a", b"b"), pa.binary_view(), refused=("'x' holds values of type bytes",)),
    # amounts
    "thirds after a comma": Odd(
        turns("0,125", "0,250", "12,375"),
        says=("numbers with decimal commas", '[column.x] decimal = ","'),
        inputs=3,
    ),
    "percent after a comma": Odd(
        turns("0,125 %", "0,250 %", "12,375 %"), says=('[column.x] kind = "number", decimal = ","',), inputs=3
    ),
    "thirds after a point, with points for thousands": Odd(
        turns("0.125", "1.250", "12.375", "8.125"),
        recipe={"numeric": ["x"], "thousands": {"x": "."}, "decimal": {"x": ","}, **CATEGORY},
        says=("30 of its 120 values are not and count as missing, the first in row 1",),
        numbers=(np.nan, 1250, 12375),
    ),
    "dollars": Odd(
        [f"${1000 + row:,}.00" for row in range(N)],
        says=(
            "'x' holds numbers with marks",
            "120 of its 120",
            '[column.x] kind = "number", thousands = ","',
        ),
    ),
    "dollars, stated": Odd(
        [f"${1000 + row:,}.50" for row in range(N)],
        recipe={"numeric": ["x"], "thousands": {"x": ","}},
        numbers=(1000.5, 1001.5),
        inputs=1,
    ),
    "euros, stated": Odd(
        [f"{1 + row}.000,50 €" for row in range(N)],
        recipe={"numeric": ["x"], "thousands": {"x": "."}, "decimal": {"x": ","}},
        numbers=(1000.5, 2000.5),
    ),
    "percent": Odd(
        [f"{row / 8:.3f}%" for row in range(N)],
        says=("'x' holds numbers with marks", '[column.x] kind = "number"'),
    ),
    "percent, stated": Odd(
        [f"{row / 8:.3f}%" for row in range(N)], recipe={"numeric": ["x"]}, numbers=(0, 0.125)
    ),
    "percent beside shares": Odd(
        turns("12.5%", "0.5"),
        recipe={"numeric": ["x"]},
        says=("'x' holds numbers with several marks", "% in 60 rows", "none in 60 rows"),
        numbers=(12.5, 0.5),
    ),
    "two currencies": Odd(
        turns("$5", "€7"),
        recipe={"numeric": ["x"]},
        says=("several marks", "$ in 60 rows", "€ in 60 rows"),
        numbers=(5, 7),
    ),
    "units": Odd(
        [f"{50 + row % 40} kg" for row in range(N)],
        says=("'x' holds numbers with marks", '[column.x] kind = "number"'),
    ),
    "units, stated": Odd(
        [f"{50 + row} kg" for row in range(N)], recipe={"numeric": ["x"]}, numbers=(50, 51), inputs=1
    ),
    "two units": Odd(
        turns("70 kg", "70000 g", "71"),
        recipe={"numeric": ["x"]},
        says=("several marks", "kg in 40 rows", "g in 40 rows", "none in 40 rows"),
        numbers=(70, 70000, 71),
    ),
    "times of day": Odd(
        [f"{row // 60:02d}:{row % 60:02d}" for row in range(N)],
        says=("'x' holds times of day", '[column.x] format = "%H:%M"'),
    ),
    "brackets": Odd(
        [f"({row % 40})" if row % 2 else str(row % 40) for row in range(N)],
        says=("'x' holds numbers with marks", '[column.x] kind = "number"'),
    ),
    "brackets, stated": Odd(
        [f"({row % 40})" if row % 2 else str(row % 40) for row in range(N)],
        recipe={"numeric": ["x"]},
        numbers=(0, -1, 2, -3),
    ),
    "minus at the end, stated": Odd(turns("5-", "7.5"), recipe={"numeric": ["x"]}, numbers=(-5, 7.5)),
    "U+2212": Odd(turns("\u22125", "7"), numbers=(-5, 7), inputs=1),
    "errors of a spreadsheet": Odd(
        ["#DIV/0!" if row % 9 == 0 else str(row % 60) for row in range(N)],
        says=("'x' holds '#DIV/0!' in 14 rows, among numbers", '[column.x] missing = ["#DIV/0!"]'),
    ),
    "errors of a spreadsheet, stated": Odd(
        ["#DIV/0!" if row % 9 == 0 else str(row % 60) for row in range(N)],
        recipe={"numeric": ["x"], **CATEGORY},
        says=("14 of its 120 values are not and count as missing, the first in row 1",),
        inputs=2,
    ),
    "errors of a spreadsheet, named": Odd(
        ["#DIV/0!" if row % 9 == 0 else str(row % 60) for row in range(N)],
        recipe={"na": {"x": "#DIV/0!"}, **CATEGORY},
        inputs=2,
    ),
    "values below a limit": Odd(
        [f"<{row}" if row % 4 == 0 else str(row) for row in range(N)],
        says=("'x' holds numbers, but 30 of its 120 values are not", '[column.x] kind = "number"'),
    ),
    # spellings
    "groups in two spellings": Odd(
        turns("north", "North", "south"),
        recipe=GROUP,
        says=("'x' has 3 different values", "or 2 if capitals", "[column.x] fold = true"),
        names=("North", "north", "south"),
    ),
    "groups that differ in marks without width": Odd(
        turns("north", "north\u200b", "so\u00aduth", "south"),
        recipe=GROUP,
        says=("or 2 if capitals", "[column.x] fold = true"),
    ),
    "groups in two spellings, the same": Odd(
        turns("north", "North ", "south"), recipe={**GROUP, "fold": ["x"]}, names=("north", "south")
    ),
    "a person in three spellings": Odd(
        [f"{'pP'[row % 2]}{row // 4:0{2 + row % 4 // 2}d}" for row in range(N)],
        recipe={"person": "x", "rows_per_person": 4},
        says=("person 'x' has 120 different values", "or 30 if capitals", "[column.x] fold = true"),
    ),
    "a person in three spellings, the same": Odd(
        [f"{'pP'[row % 2]}{row // 4:0{2 + row % 4 // 2}d}" for row in range(N)],
        recipe={"person": "x", "rows_per_person": 4, "fold": ["x"]},
    ),
    "persons of 17 digits": Odd(
        [str(12345678901234567 + row // 3) for row in range(N)], recipe={"person": "x", "rows_per_person": 3}
    ),
    "persons of 17 digits by type": Odd(
        [12345678901234567 + row // 3 for row in range(N)], pa.int64(), {"person": "x", "rows_per_person": 3}
    ),
}


def save(odd: Odd, path: Path) -> Path:
    table = people()
    if path.suffix == ".csv":
        pd.DataFrame({**table, "x": ["" if cell is None else cell for cell in odd.cells]}).to_csv(
            path, index=False
        )
    else:
        cells = pa.array(odd.cells, pa.string() if odd.type is None else odd.type)
        pq.write_table(pa.table({**table, "x": cells}), path)
    return path
