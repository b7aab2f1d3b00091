"""Odd columns of tables, as Parquet and, where they are texts, as CSV; whose results are golden."""

from __future__ import annotations

import datetime
import decimal
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """A column x beside those of `people`.

    Attributes:
        cells: of x; texts, or values that Arrow stores by their type.
        type: of Arrow; None: texts, which both kinds of files hold.
        recipe: what is stated.
    """

    cells: list[Any]
    type: pa.DataType | None = None
    recipe: dict[str, Any] = field(default_factory=dict)


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
GERMAN = [f"{day[8:]}.{day[5:7]}.{day[:4]}" for day in DAYS]
MIXED = [GERMAN[row] if row % 2 else DAYS[row] for row in range(N)]

ODD = {
    # codes of many digits
    "codes of 14 digits are groups": Odd(turns(*LONG), recipe=GROUP),
    "codes of 14 digits are classes": Odd(turns(*LONG[:2]), recipe={"target": "x", "drop": ["ill"]}),
    "codes of 14 digits are categories": Odd(turns(*LONG), recipe={"categorical": ["x"]}),
    "codes of 17 digits are groups": Odd(turns(*LONGER), recipe=GROUP),
    "codes of 17 digits are categories": Odd(turns(*LONGER)),
    "codes of 17 digits are numbers": Odd(turns(*LONGER), recipe={"numeric": ["x"]}),
    "codes of 17 digits in one late row": Odd([*map(str, range(N - 1)), LONGER[0]]),
    "codes by type int64": Odd(turns(*map(int, LONG)), pa.int64(), GROUP),
    "long codes by type int64": Odd(turns(*map(int, LONGER)), pa.int64(), GROUP),
    "long codes by type uint64": Odd(turns(2**64 - 1, 2**64 - 2), pa.uint64(), GROUP),
    "long codes by type decimal": Odd(turns(*map(decimal.Decimal, LONGER)), pa.decimal128(20, 0), GROUP),
    "long codes by type, with missing ones": Odd(
        [*turns(*map(int, LONGER), rows=N - 3), None, None, None],
        pa.int64(),
        {"categorical": ["x"], **CATEGORY},
    ),
    "codes by type int64, stated": Odd(turns(*map(int, LONGER)), pa.int64(), {"categorical": ["x"]}),
    "versions": Odd(turns("1.1", "1.10", "1.2"), recipe=GROUP),
    "versions, stated": Odd(turns("1.1", "1.10", "1.2"), recipe={**GROUP, "categorical": ["x"]}),
    "1 and 1.0": Odd(turns("1", "2", "1.0")),
    "leading zeros": Odd(turns("01", "02", "11")),
    "leading zeros before a point": Odd(turns("01.5", "2", "1.5")),
    "codes such as 3E2": Odd(turns("3E2", "1E5", "2E4", "7")),
    "codes such as +49": Odd(turns("+49", "+33")),
    "codes such as 3E2, stated": Odd(turns("3E2", "300"), recipe={"categorical": ["x"]}),
    "numbers with powers": Odd(turns("1.5e-05", "2.5e-05", "1e+20", "2.5e+17")),
    # dates
    "dates": Odd(DAYS),
    "dates as classes": Odd(turns(*DAYS[:2]), recipe={"target": "x", "drop": ["ill"]}),
    "dates as classes, stated": Odd(
        turns(*DAYS[:2]), recipe={"target": "x", "drop": ["ill"], "categorical": ["x"]}
    ),
    "dates as groups": Odd(turns(*DAYS[:2]), recipe=GROUP),
    "dates as weights": Odd(DAYS, recipe={"weight": "x"}),
    "lists as classes": Odd(turns([1], [2]), pa.list_(pa.int64()), {"target": "x", "drop": ["ill"]}),
    "dates, iso": Odd(DAYS, recipe={"date": ["x"]}),
    "dates in iso order, dayfirst": Odd(DAYS, recipe={"date": {"x": "dayfirst"}}),
    "dates in iso order, monthfirst": Odd(DAYS, recipe={"date": {"x": "monthfirst"}}),
    "dates by type, dayfirst": Odd(
        [datetime.date.fromisoformat(day) for day in DAYS], pa.date32(), {"date": {"x": "dayfirst"}}
    ),
    "dates by type": Odd([datetime.date.fromisoformat(day) for day in DAYS], pa.date64()),
    "times by type": Odd(
        [datetime.datetime.fromisoformat(day) for day in DAYS],
        pa.timestamp("ms", tz="UTC"),
        {"date": {"x": "dayfirst"}},
    ),
    "dates in two orders": Odd(MIXED),
    "dates in two orders, dayfirst": Odd(MIXED, recipe={"date": {"x": "dayfirst"}}),
    "dates in two orders, each stated": Odd(MIXED, recipe={"date": {"x": "%d.%m.%Y|%Y-%m-%d"}}),
    "dates with slashes, year first": Odd(
        [day.replace("-", "/") for day in DAYS], recipe={"date": {"x": "dayfirst"}}
    ),
    "dates of the month first": Odd([f"{day[5:7]}/{day[8:]}/{day[:4]}" for day in DAYS]),
    "dates that a stated order does not have": Odd(
        [*GERMAN[:-1], "12.31.2024"], recipe={"date": {"x": "dayfirst"}, **CATEGORY}
    ),
    "dates of two digits": Odd(
        [f"{day[8:]}.{day[5:7]}.{day[2:4]}" for day in DAYS], recipe={"date": {"x": "dayfirst"}}
    ),
    "dates of two digits, not stated": Odd([f"{day[8:]}.{day[5:7]}.{day[2:4]}" for day in DAYS]),
    "a word where a date is to be": Odd([*DAYS[:-1], "now"], recipe={"date": ["x"], **CATEGORY}),
    "a date for none": Odd(
        ["9999-12-31" if row % 3 == 0 else DAYS[row] for row in range(N)], recipe={"date": ["x"]}
    ),
    "a date for none, german": Odd(
        ["01.01.1900" if row % 3 == 0 else GERMAN[row] for row in range(N)],
        recipe={"date": {"x": "%d.%m.%Y"}},
    ),
    "a date for none, stated": Odd(
        ["01.01.1900" if row % 3 == 0 else GERMAN[row] for row in range(N)],
        recipe={"date": {"x": "%d.%m.%Y"}, "na": {"x": "1900-01-01"}, **CATEGORY},
    ),
    "a date for none by type, stated": Odd(
        [
            datetime.datetime(9999, 12, 31) if row % 3 == 0 else datetime.datetime(2020, 1, 1 + row % 28)
            for row in range(N)
        ],
        pa.timestamp("us"),
        {"date": ["x"], "na": {"x": "9999-12-31"}, **CATEGORY},
    ),
    "durations by type": Odd(
        turns(datetime.timedelta(hours=36), datetime.timedelta(days=1)), pa.duration("ms")
    ),
    "durations by type, stated": Odd(
        turns(datetime.timedelta(hours=36), datetime.timedelta(days=1)),
        pa.duration("ms"),
        {"date": {"x": "duration"}},
    ),
    "durations as texts": Odd(turns("1 days 12:00:00", "1 days")),
    "durations as texts, stated": Odd(turns("1 days 12:00:00", "1 days"), recipe={"date": {"x": "duration"}}),
    "hours by type": Odd(turns(datetime.time(8, 30), datetime.time(9)), pa.time64("us")),
    "months": Odd(turns(*(f"20{year}-{month:02d}" for year in (19, 20) for month in range(1, 6)))),
    # missing values
    "NA beside nothing": Odd(turns("NA", "EU", None), recipe={**GROUP, **CATEGORY}),
    "NA is a group": Odd(turns("NA", "EU", None), recipe={**GROUP, **CATEGORY, "not_na": {"x": "NA"}}),
    "NA beside nothing among texts": Odd(turns("NA", "EU", None, "AS"), recipe=CATEGORY),
    "None and nan as texts": Odd(turns("None", "nan", "a"), recipe=CATEGORY),
    "NA refused": Odd(turns("NA", "EU")),
    "NA among numbers": Odd(turns("NA", "1", "2.5"), recipe=CATEGORY),
    "a text that says missing": Odd(turns("missing", "a", None), recipe=CATEGORY),
    "whole numbers by type with missing ones": Odd(turns(1, None, 3), pa.int64(), CATEGORY),
    "nothing at all by type": Odd([None] * N, pa.null(), CATEGORY),
    # types
    "truths by type": Odd(turns(True, False), pa.bool_(), GROUP),
    "truths with missing ones": Odd(turns(True, False, None), pa.bool_(), CATEGORY),
    "dictionaries of texts": Odd(turns("a", "b"), pa.dictionary(pa.int8(), pa.string()), GROUP),
    "dictionaries of numbers": Odd(turns(7, 30), pa.dictionary(pa.int8(), pa.int64())),
    "decimals": Odd(turns(decimal.Decimal("1.10"), decimal.Decimal("2.25")), pa.decimal128(9, 2)),
    "decimals beside decimal commas": Odd(
        turns(decimal.Decimal("1.10"), decimal.Decimal("2.25")), pa.decimal128(9, 2), {"decimal": {"x": ","}}
    ),
    "floats as groups": Odd(turns(0.1, 20240101000001.0), pa.float64(), GROUP),
    "UUIDs": Odd([uuid.UUID(int=row % 3).bytes for row in range(N)], pa.uuid()),
    "bytes": Odd(turns(b"a", b"b"), pa.binary()),
    "lists": Odd(turns([1], [2]), pa.list_(pa.int64())),
    "views of texts": Odd(
        turns("NA", "a", None), pa.string_view(), {**GROUP, **CATEGORY, "not_na": {"x": "NA"}}
    ),
    "views of bytes": Odd(turns(b"a", b"b"), pa.binary_view()),
    # amounts
    "thirds after a comma": Odd(turns("0,125", "0,250", "12,375")),
    "percent after a comma": Odd(turns("0,125 %", "0,250 %", "12,375 %")),
    "thirds after a point, with points for thousands": Odd(
        turns("0.125", "1.250", "12.375", "8.125"),
        recipe={"numeric": ["x"], "thousands": {"x": "."}, "decimal": {"x": ","}, **CATEGORY},
    ),
    "dollars": Odd([f"${1000 + row:,}.00" for row in range(N)]),
    "dollars, stated": Odd(
        [f"${1000 + row:,}.50" for row in range(N)], recipe={"numeric": ["x"], "thousands": {"x": ","}}
    ),
    "euros, stated": Odd(
        [f"{1 + row}.000,50 €" for row in range(N)],
        recipe={"numeric": ["x"], "thousands": {"x": "."}, "decimal": {"x": ","}},
    ),
    "percent": Odd([f"{row / 8:.3f}%" for row in range(N)]),
    "percent, stated": Odd([f"{row / 8:.3f}%" for row in range(N)], recipe={"numeric": ["x"]}),
    "percent beside shares": Odd(turns("12.5%", "0.5"), recipe={"numeric": ["x"]}),
    "two currencies": Odd(turns("$5", "€7"), recipe={"numeric": ["x"]}),
    "units": Odd([f"{50 + row % 40} kg" for row in range(N)]),
    "units, stated": Odd([f"{50 + row} kg" for row in range(N)], recipe={"numeric": ["x"]}),
    "two units": Odd(turns("70 kg", "70000 g", "71"), recipe={"numeric": ["x"]}),
    "times of day": Odd([f"{row // 60:02d}:{row % 60:02d}" for row in range(N)]),
    "brackets": Odd([f"({row % 40})" if row % 2 else str(row % 40) for row in range(N)]),
    "brackets, stated": Odd(
        [f"({row % 40})" if row % 2 else str(row % 40) for row in range(N)], recipe={"numeric": ["x"]}
    ),
    "minus at the end, stated": Odd(turns("5-", "7.5"), recipe={"numeric": ["x"]}),
    "U+2212": Odd(turns("\u22125", "7")),
    "errors of a spreadsheet": Odd(["#DIV/0!" if row % 9 == 0 else str(row % 60) for row in range(N)]),
    "errors of a spreadsheet, stated": Odd(
        ["#DIV/0!" if row % 9 == 0 else str(row % 60) for row in range(N)],
        recipe={"numeric": ["x"], **CATEGORY},
    ),
    "errors of a spreadsheet, named": Odd(
        ["#DIV/0!" if row % 9 == 0 else str(row % 60) for row in range(N)],
        recipe={"na": {"x": "#DIV/0!"}, **CATEGORY},
    ),
    "values below a limit": Odd([f"<{row}" if row % 4 == 0 else str(row) for row in range(N)]),
    # spellings
    "groups in two spellings": Odd(turns("north", "North", "south"), recipe=GROUP),
    "groups that differ in marks without width": Odd(
        turns("north", "north\u200b", "so\u00aduth", "south"), recipe=GROUP
    ),
    "groups in two spellings, the same": Odd(
        turns("north", "North ", "south"), recipe={**GROUP, "fold": ["x"]}
    ),
    "a person in three spellings": Odd(
        [f"{'pP'[row % 2]}{row // 4:0{2 + row % 4 // 2}d}" for row in range(N)],
        recipe={"person": "x", "rows_per_person": 4},
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
