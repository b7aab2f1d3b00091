"""Recipe: format of a file, roles of its columns and meaning of their cells, stated once."""

from __future__ import annotations

import codecs
import dataclasses
import math
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from equidp._files import toml_failure
from equidp._validate import check_number, check_whole, unknown_name
from equidp.errors import DataError, SettingError

ALL_COLUMNS = "*"
"""Stands for all columns where a value is given by column."""
BY_COLUMN = ("na", "not_na", "thousands", "decimal")
"""Options whose values may be given for all columns; there, a column called * is written \\*."""
MARKS = {"comma": ",", "point": ".", "space": " ", "apostrophe": "'"}
"""Words for the marks within numbers."""


def as_key(name: str) -> str:
    """Return a column as options of `BY_COLUMN` name it.

    >>> as_key("*"), as_key("age"), as_name("\\\\*")
    ('\\\\*', 'age', '*')
    """
    return f"\\{name}" if re.fullmatch(r"\\*\*", name) else name


def as_name(key: str) -> str:
    """Return the column that `as_key` wrote."""
    return key[1:] if re.fullmatch(r"\\+\*", key) else key


def in_shell(text: str) -> str:
    """Return a text between single quotes, as a shell takes it.

    >>> print(in_shell("zip"), in_shell("patient's zip"))
    'zip' 'patient'\\''s zip'
    """
    return "'" + text.replace("'", r"'\''") + "'"


def parse_option(option: str, value: Any) -> Any:
    """A field of a recipe from a plain value."""
    if option in ("group", "drop", "categorical", "numeric", "fold"):
        return tuple(_texts(option, value))
    if option == "date":
        plain = not isinstance(value, Mapping)
        return tuple(_by_column(option, dict.fromkeys(_texts(option, value), "iso") if plain else value))
    if option in ("na", "not_na"):
        by_column = value if isinstance(value, Mapping) else {ALL_COLUMNS: value}
        return tuple((name, text) for name, given in by_column.items() for text in _texts(option, given))
    if option in ("thousands", "decimal"):
        pairs = _by_column(option, value if isinstance(value, Mapping) else {ALL_COLUMNS: value})
        return tuple((name, MARKS.get(mark, mark)) for name, mark in pairs)
    if option == "bounds":
        return tuple(_range(name, span) for name, span in _mapping(option, value).items())
    if option in ("test_share", "rows_per_person"):
        return value
    if option == "group_as_input":
        if not isinstance(value, bool):
            raise SettingError(f"{option} = {value!r}; expected true or false.", field=option)
        return value
    if value is None and option in ("target", "weight", "person", "positive"):
        return value
    if not isinstance(value, str):
        raise SettingError(f"{option} = {value!r}; expected a text.", field=option)
    return {"tab": "\t", "\\t": "\t", "space": " "}.get(value, value) if option == "sep" else value


def _texts(option: str, value: Any) -> list[str]:
    values = list(value) if isinstance(value, list | tuple) else [value]
    if option in ("na", "not_na"):  # -999 needs no quotes
        values = [f"{each:.12g}" if type(each) in (int, float) else each for each in values]
    if not all(isinstance(each, str) for each in values):
        raise SettingError(f"{option} = {value!r}; expected texts.", field=option)
    return values


def _mapping(option: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise SettingError(f"{option} = {value!r}; expected a value for each column by name.", field=option)
    return value


def _by_column(option: str, value: Any) -> list[tuple[str, str]]:
    pairs = list(_mapping(option, value).items())
    if not all(isinstance(text, str) for _, text in pairs):
        raise SettingError(f"{option} = {value!r}; expected texts.", field=option)
    return pairs


def _range(name: str, span: Any) -> tuple[str, float, float]:
    try:
        low, high = span
        return name, float(low), float(high)
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"bounds of {name!r} are {span!r}; expected [low, high].", field="bounds"
        ) from error


MISSING_RULES = ("refuse", "category")
TEST_SHARE = 0.2
DATE_FORMATS = ("iso", "dayfirst", "monthfirst", "duration")
"""Formats of dates beside those of strptime, such as %d.%m.%Y."""
_DEFAULT_DECIMAL = "."
_SINGLE = ("target", "weight", "person")
"""Options that name one column."""
_SEVERAL = ("group", "drop", "categorical", "numeric", "date", "fold", "na", "not_na", "thousands", "decimal")
_APART: dict[str, set[str]] = {
    "drop": {"target", "group", "categorical", "numeric", "date", "bounds", "fold"},
    "target": {"drop", "bounds", "date"},
    "group": {"drop", "bounds", "date"},
    "categorical": {"drop", "numeric", "date", "bounds"},
    "numeric": {"drop", "categorical", "date", "fold"},
    "date": {"drop", "target", "group", "categorical", "numeric", "fold"},
    "bounds": {"drop", "target", "group", "categorical", "fold"},
    "fold": {"drop", "numeric", "date", "bounds", "weight"},
    "weight": {"drop", "target", "group", "categorical", "date", "bounds", "person", "fold"},
    "person": {"drop", "target", "group", "categorical", "numeric", "date", "bounds", "weight"},
}
"""Options that exclude each other: a column of the one cannot be a column of the others."""

Pairs = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Recipe:
    """Format of a CSV or Parquet file, role of its columns, and meaning of their cells.

    All of it counts as public: it is stated by you, not read off the data. A trained model keeps its recipe,
    so that new files are read as the first one was.

    Attributes:
        target: column to predict; each of its values is a class.
        group: columns whose combinations of values are the groups; the target may be among them.
        group_as_input: make inputs of the group columns too, so that a model may predict differently by
            group.
        drop: columns to leave out.
        categorical: columns of texts, also where they look like numbers, such as ZIP codes.
        numeric: columns of numbers, also with currencies, percent or brackets around them; any other text in
            them counts as missing. Other columns are numeric where every known value is a number.
        date: (column, format): dates, which become days since 1 January 2000. The format is "iso",
            "dayfirst", "monthfirst" (either reads 2024-01-31 as it is written), "duration" or as in strptime,
            or several with | between them; what is no such date counts as missing.
        fold: columns of texts whose spellings are one where they differ in capitals, spaces, leading zeros or
            ".0" at the end alone, such as the ids of people.
        na: (column, text): what stands for a missing value beside empty cells, "?" and "NA"; "*" for all
            columns, and a column called * is "\\\\*".
        not_na: (column, text): what is a value though it looks missing, such as "NA" for Namibia; "*" for all
            columns.
        thousands, decimal: (column, mark): marks within numbers; "*" for all columns. Default: none, and ".".
        bounds: (column, low, high): public range to clip numbers to and scale to [0, 1].
        weight: column of public numbers >= 0 that multiply the losses of rows in training; not an input.
        person: column that says whose row it is; not an input. All rows of a person are one example, which
            epsilon is promised to, and are either trained or tested on. Needs rows_per_person.
        rows_per_person: the most rows of a person that are trained on, as `equidp.by_person` draws them.
        missing: "refuse" missing values, or make them a "category" (numbers: an indicator) of their own. A
            missing target is always refused.
        test_share: chance of each row to be in the test set, drawn from the seed and the row's content, or of
            each person, drawn from the seed and who it is. Each group has at least one there.
        positive: of two classes, the one that metrics and thresholds are about; None: by its name, or the
            second.
        sep: character between the columns of a CSV file.
        charset: encoding of the characters of a CSV file.

    Raises:
        SettingError: a column with two roles, or a value that cannot be.

    >>> recipe = Recipe(target="ill", group=("sex",), na=(("age", "-999"),))
    >>> Recipe.from_plain(recipe.to_plain()) == recipe
    True
    """

    target: str | None = None
    group: tuple[str, ...] = ()
    group_as_input: bool = False
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    numeric: tuple[str, ...] = ()
    date: Pairs = ()
    fold: tuple[str, ...] = ()
    na: Pairs = ()
    not_na: Pairs = ()
    thousands: Pairs = ()
    decimal: Pairs = ()
    bounds: tuple[tuple[str, float, float], ...] = ()
    weight: str | None = None
    person: str | None = None
    rows_per_person: int | None = None
    missing: str = "refuse"
    test_share: float = TEST_SHARE
    positive: str | None = None
    sep: str = ","
    charset: str = "utf-8"

    def __post_init__(self) -> None:
        for option, value in vars(self).items():  # as TOML and Python write them
            if isinstance(value, Mapping) or (isinstance(value, list | str) and option in _SEVERAL):
                object.__setattr__(self, option, parse_option(option, value))
        if self.missing not in MISSING_RULES:
            raise unknown_name("rule for missing values", self.missing, MISSING_RULES)
        check_number("(0, 1)", test_share=self.test_share)
        self._check_roles()
        self._check_people()
        for name, low, high in self.bounds:
            if not (low < high and math.isfinite(low) and math.isfinite(high)):
                raise SettingError(
                    f"bounds of {name!r} are {low:g} to {high:g}; expected finite numbers, low < high.",
                    field="bounds",
                )
        for name, form in self.date:
            if not all(each in DATE_FORMATS or "%" in each for each in form.split("|")):
                raise SettingError(
                    f"date format {form!r} of {name!r}; expected {', '.join(DATE_FORMATS)} or one such as "
                    "%d.%m.%Y, or several such as %d.%m.%Y|iso.",
                    field="date",
                )
        for option in ("thousands", "decimal"):
            for name, mark in getattr(self, option):
                if mark not in MARKS.values() or (option, mark) == ("decimal", " "):
                    raise SettingError(
                        f"{option} {mark!r} of {name!r}; expected {', '.join(MARKS)}.", field=option
                    )
        for name in (as_name(each) for each, _ in (*self.thousands, *self.decimal)):
            if self.thousands_of(name) == (mark := self.decimal_of(name)):
                raise SettingError(
                    f"thousands and decimal of {name!r} are both {mark!r}; change one.", field="thousands"
                )
        if len(self.sep) != 1 or self.sep in '"\r\n':
            raise SettingError(f"sep {self.sep!r}; expected one character, such as , ; |, tab or space.")
        try:
            codecs.lookup(self.charset)
        except LookupError as error:
            raise SettingError(
                f"charset {self.charset!r} is not known; expected one such as utf-8, latin-1 or cp1252.",
                field="charset",
            ) from error

    def _check_roles(self) -> None:
        for option, others in _APART.items():
            names = self.columns(option)
            for name in names:
                where = [other for other in sorted(others) if name in self.columns(other)]
                if where or names.count(name) > 1:
                    under = f"{option} and {where[0]}" if where else option
                    raise SettingError(f"column {name!r} is named twice: under {under}; name it once.")

    def _check_people(self) -> None:
        if self.rows_per_person is not None:
            check_whole(1, ", the most rows of a person", rows_per_person=self.rows_per_person)
        if self.person is None and self.rows_per_person is not None:
            raise SettingError(
                f"rows_per_person={self.rows_per_person} without a column that says whose rows they are; "
                "name it (person; --person)."
            )
        if self.person is not None and self.rows_per_person is None:
            raise SettingError(
                f"person={self.person!r} without the most rows of a person to train on; give it "
                "(rows_per_person; --rows-per-person 4). It is public: choose it without looking at the "
                "data."
            )

    def columns(self, option: str) -> list[str]:
        """Return the columns that are named under an option, such as "drop" or "bounds"."""
        value = getattr(self, option)
        if option in _SINGLE:
            return [] if value is None else [value]
        names = [_column(each) for each in value]
        if option in BY_COLUMN:
            return [as_name(name) for name in names if name != ALL_COLUMNS]
        return names

    def columns_by_option(self) -> dict[str, list[str]]:
        """Return option -> columns that it names."""
        options = (*_SINGLE, "group", "drop", "categorical", "numeric", "date", "fold")
        by_value = (*BY_COLUMN, "bounds")
        return {option: list(dict.fromkeys(self.columns(option))) for option in (*options, *by_value)}

    def missing_texts(self, column: str) -> list[str]:
        """Return what stands for a missing value in a column, beside what always does."""
        return [text for name, text in self.na if name in (as_key(column), ALL_COLUMNS)]

    def known_texts(self, column: str) -> list[str]:
        """Return what is a value in a column though it looks missing."""
        return [text for name, text in self.not_na if name in (as_key(column), ALL_COLUMNS)]

    def thousands_of(self, column: str) -> str | None:
        """Return the mark between thousands in a column, or None."""
        marks = dict(self.thousands)
        return marks.get(as_key(column), marks.get(ALL_COLUMNS))

    def decimal_of(self, column: str) -> str:
        """Return the decimal mark in a column."""
        marks = dict(self.decimal)
        return marks.get(as_key(column), marks.get(ALL_COLUMNS, _DEFAULT_DECIMAL))

    def with_changes(self, given: Mapping[str, Any]) -> Recipe:
        """Return this recipe with options as `from_plain` takes them, which win where the two differ.

        A list or a value by column is added to; a column that is named again leaves its other roles.

        >>> Recipe(drop=("zip", "id")).with_changes({"categorical": ["zip"]}).drop
        ('id',)
        """
        changes = _fields(given)
        fields: dict[str, Any] = dict(vars(self))
        for option in (each for each in given if each in _APART):
            named = [changes[option]] if option in _SINGLE else [_column(each) for each in changes[option]]
            for other in _APART[option] - set(_SINGLE):
                fields[other] = _without(fields[other], named)
        for option, new in changes.items():
            if isinstance(new, tuple) and option != "group":
                new = (*_without(fields[option], [_column(each) for each in new]), *new)
            fields[option] = new
        return Recipe(**fields)

    def to_plain(self) -> dict[str, Any]:
        """Return what differs from the defaults as texts, lists and dictionaries, as TOML and JSON hold."""
        plain: dict[str, Any] = {}
        for each in dataclasses.fields(self):
            value = getattr(self, each.name)
            if value == each.default:
                continue
            if each.name in ("na", "not_na"):
                value = {name: [text for other, text in value if other == name] for name, _ in value}
            elif each.name == "bounds":
                value = {name: [low, high] for name, low, high in self.bounds}
            elif each.name in ("date", "thousands", "decimal"):
                value = dict(value)
            elif isinstance(value, tuple):
                value = list(value)
            plain[each.name] = value
        return plain

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Recipe:
        """Return a recipe from plain values: lists of names; values by column as dictionaries.

        A text stands for a list of one; "na", "not_na", "thousands" and "decimal" may be given for all
        columns at once.

        Raises:
            SettingError: an unknown option, or a value of another kind.

        >>> Recipe.from_plain({"na": "-999", "decimal": {"lab": "comma"}}).decimal_of("lab")
        ','
        """
        return cls(**_fields(content))

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Recipe:
        """Read a recipe from a TOML file, as `equidp inspect --out` writes it.

        Raises:
            DataError: the file cannot be read, or not as TOML.
            SettingError: it holds something else than a recipe.
        """
        try:
            content = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise DataError(f"recipe {os.fspath(path)!r} {toml_failure(error)}.") from error
        try:
            return cls.from_plain(content)
        except SettingError as error:
            raise SettingError(f"recipe {os.fspath(path)!r}: {error}") from error


def _fields(content: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a recipe from plain values."""
    known = [each.name for each in dataclasses.fields(Recipe)]
    for option in content:
        if option == "encoding":
            raise SettingError(
                f"unknown option in a recipe 'encoding' ({content[option]!r}); write charset for the file's "
                "characters, and give --encoding to a command for the columns.",
                field="encoding",
            )
        if option not in known:
            raise unknown_name("option in a recipe", option, known)
    return {option: parse_option(option, value) for option, value in content.items()}


def _column(each: Any) -> str:
    """The column of a name, or of a value by column."""
    return cast(str, each if isinstance(each, str) else each[0])


def _without(values: Iterable[Any], columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(each for each in values if _column(each) not in columns)
