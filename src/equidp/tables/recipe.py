"""Recipe: format of a file, roles of its columns and meaning of their cells, stated once, by column."""

from __future__ import annotations

import codecs
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import tomlkit

from equidp._plain import check_fields, read_part, read_toml, without_defaults
from equidp._validate import check_number, check_whole, unknown_name
from equidp.errors import SettingError

MISSING_RULES = ("refuse", "category")
TEST_SHARE = 0.2
DATE_FORMATS = ("iso", "dayfirst", "monthfirst", "duration")
"""Date formats in addition to strptime's, such as %d.%m.%Y."""
DECIMAL_MARKS, THOUSANDS_MARKS = (".", ","), (",", ".", " ", "'")
NUMBER, TEXT, DATE = "number", "text", "date"
KINDS = (NUMBER, TEXT, DATE)
_DEFAULT_DECIMAL = "."


@dataclass(frozen=True)
class Column:
    """Meaning of a column's cells: a section [column.NAME] of run.toml.

    Attributes:
        kind: "number", also with currencies, percent or brackets around it; any other text counts as missing.
            "text", also if it looks like numbers, such as ZIP codes. "date", which becomes days since 1
            January 2000. None: numbers if every known value is one, else texts.
        format: format of dates: "iso" (default), "dayfirst", "monthfirst" (both read 2024-01-31 as year,
            month, day), "duration" or as in strptime, or several separated by |. A text that is no such date
            counts as missing. It implies kind = "date".
        decimal, thousands: marks within numbers. None: the marks of the recipe.
        missing: texts that stand for a missing value, in addition to empty cells, "?" and "NA".
        known: texts that are values though they look missing, such as "NA" for Namibia.
        range: (low, high), public, to clip numbers to and scale to [0, 1].
        fold: whether spellings are the same if they differ only in capitals, spaces, leading zeros or ".0" at
            the end, for example in ids of people.

    >>> Column(format="dayfirst").kind
    'date'
    """

    kind: Literal["number", "text", "date"] | None = None
    format: str | None = None
    decimal: str | None = None
    thousands: str | None = None
    missing: tuple[str, ...] = ()
    known: tuple[str, ...] = ()
    range: tuple[float, float] | None = None
    fold: bool = False

    def __post_init__(self) -> None:
        if self.format is not None and self.kind is None:
            object.__setattr__(self, "kind", DATE)
        if self.kind == DATE and self.format is None:
            object.__setattr__(self, "format", "iso")
        if self.kind not in (None, *KINDS):
            raise unknown_name("kind", self.kind, KINDS)
        _check_marks(self.decimal, self.thousands)
        for name, value, kinds in (
            ("format", self.format, (DATE,)),
            ("range", self.range, (None, NUMBER, DATE)),
            ("fold", self.fold or None, (TEXT,) if self.range else (None, TEXT)),
        ):
            if value is not None and self.kind not in kinds:
                what = "a range" if name == "fold" and self.range else f"kind = {self.kind!r}"
                raise SettingError(f"{name} does not go with {what}; leave one out.", field=name)
        forms = [] if self.format is None else self.format.split("|")
        if not all(each in DATE_FORMATS or "%" in each for each in forms):
            raise SettingError(
                f"format = {self.format!r}; expected {', '.join(DATE_FORMATS)} or one such as %d.%m.%Y, or "
                "several such as %d.%m.%Y|iso.",
                field="format",
            )
        if self.range is not None:
            low, high = self.range
            object.__setattr__(self, "range", (float(low), float(high)))
            if not (low < high and math.isfinite(low) and math.isfinite(high)):
                raise SettingError(
                    f"range = [{low:g}, {high:g}]; expected finite numbers, low < high.", field="range"
                )

    def to_plain(self) -> dict[str, Any]:
        """Return what differs from the defaults, as in TOML. A format implies dates."""
        implied = {"iso": "format", None: ""}.get(self.format, "kind")
        return {name: value for name, value in _plain(self).items() if name != implied}


@dataclass(frozen=True)
class Recipe:
    """Format of a CSV or Parquet file, role of its columns, and meaning of their cells.

    All of it counts as public: you state it, and it is not computed from the data. A trained model keeps its
    recipe, so that new files are read as the first one was. Fields are the fields of [table] in run.toml.

    Attributes:
        target: column to predict. Each of its values is a class.
        group: columns whose combinations of values are the groups. The target may be among them.
        crossed: whether to show combinations of several group columns. False: one column at a time.
        group_as_input: make inputs of the group columns too, so that a model may predict differently by
            group.
        person: column that says whose row it is; not an input. All rows of a person are one example, which
            epsilon is promised to, and are either trained or tested on. Needs rows_per_person.
        rows_per_person: the most rows of a person that are trained on, as `equidp.by_person` draws them.
        weight: column of public numbers >= 0 that multiply the losses of rows in training, about 1 at most,
            as clipping hides more; not an input.
        drop: columns to leave out.
        missing: "refuse" missing values, or make them their own "category" (numbers: an indicator). A missing
            target is always rejected.
        test_share: probability that a row is in the test set, drawn from the seed and the row's content; or
            that a person is, drawn from the seed and the person's id. Each group has at least one there.
        positive: positive one of two classes, for metrics and thresholds. None: by its name, or the second.
        sep: character between the columns of a CSV file.
        charset: encoding of the characters of a CSV file.
        na: texts that stand for a missing value in all columns, in addition to empty cells, "?" and "NA".
        decimal, thousands: marks within the numbers of all columns. Default: ".", and none.
        columns: name -> `Column`, or a mapping of its fields.

    Raises:
        SettingError: a column with two roles, or a value that cannot be.

    >>> recipe = Recipe(target="ill", group="sex", columns={"age": {"missing": ["-999"]}})
    >>> recipe.columns["age"].missing, Recipe.from_plain(recipe.to_plain()) == recipe
    (('-999',), True)
    """

    target: str | None = None
    group: tuple[str, ...] = ()
    crossed: bool = False
    group_as_input: bool = False
    person: str | None = None
    rows_per_person: int | None = None
    weight: str | None = None
    drop: tuple[str, ...] = ()
    missing: Literal["refuse", "category"] = "refuse"
    test_share: float = TEST_SHARE
    positive: str | None = None
    sep: str = ","
    charset: str = "utf-8"
    na: tuple[str, ...] = ()
    decimal: str = _DEFAULT_DECIMAL
    thousands: str | None = None
    columns: Mapping[str, Column] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        for name in ("group", "drop", "na"):  # as Python writes them
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else tuple(value))
        if not isinstance(self.columns, Mapping):
            raise SettingError(f"columns = {self.columns!r}; expected fields by column.", field="columns")
        columns = {
            name: each if isinstance(each, Column) else read_part(Column, each, f"[column.{toml_key(name)}]")
            for name, each in self.columns.items()
        }
        columns = {name: each for name, each in columns.items() if each != Column()}
        object.__setattr__(self, "columns", columns)
        if self.missing not in MISSING_RULES:
            raise unknown_name("rule for missing values", self.missing, MISSING_RULES)
        check_number("(0, 1)", test_share=self.test_share)
        _check_marks(self.decimal, self.thousands)
        if len(self.sep) != 1 or self.sep in '"\r\n':
            raise SettingError(
                f"sep = {self.sep!r}; expected one character, such as , ; | or \\t.", field="sep"
            )
        try:
            codecs.lookup(self.charset)
        except LookupError as error:
            raise SettingError(
                f"charset = {self.charset!r} is not known; expected one such as utf-8, latin-1 or cp1252.",
                field="charset",
            ) from error
        self._check_roles()
        if self.rows_per_person is not None:
            check_whole(1, ", the most rows of a person", rows_per_person=self.rows_per_person)
        if (self.person is None) != (self.rows_per_person is None):
            raise SettingError(
                f"rows_per_person={self.rows_per_person} with person={self.person!r}; give both: the column "
                "that says whose rows they are, and the most rows of a person to train on (--person id "
                "--rows-per-person 4). It is public: choose it without looking at the data."
            )
        for name, column in columns.items():
            _check_marks(self.decimal_of(name), self.thousands_of(name))
            for role in self.roles_of(name):
                unfit = {"kind": column.kind in _NOT_FOR[role], "range": column.range is not None}
                unfit["fold"] = column.fold and role == "weight"
                for field_name in (each for each, wrong in unfit.items() if wrong):
                    raise SettingError(
                        f"[column.{toml_key(name)}] {field_name} does not go with a {role}; leave it out.",
                        field=field_name,
                    )

    def _check_roles(self) -> None:
        """Reject a column with two roles. The target may be a group."""
        role_of: dict[str, str] = {}
        for role in (*_ROLES, "drop"):
            named = self.columns_of(role)
            for name in named:
                other = role_of.setdefault(name, role)
                if named.count(name) > 1 or (other, role) not in ((role, role), ("target", "group")):
                    under = role if other == role else f"{other} and {role}"
                    raise SettingError(f"column {name!r} is named twice: under {under}; name it once.")

    def column(self, name: str) -> Column:
        """Return what is stated about a column."""
        return self.columns.get(name, _UNSAID)

    def columns_of(self, role: str) -> list[str]:
        """Return the columns with a role: "target", "group", "person", "weight" or "drop"."""
        value = getattr(self, role)
        return [] if value is None else [value] if isinstance(value, str) else list(value)

    def roles_of(self, name: str) -> frozenset[str]:
        """Return the roles of a column among "target", "group", "person" and "weight"."""
        return frozenset(role for role in _ROLES if name in self.columns_of(role))

    @property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Public ranges by column."""
        return {name: each.range for name, each in self.columns.items() if each.range is not None}

    def named_columns(self) -> dict[str, list[str]]:
        """Return the columns that are named, by field or section."""
        by_role = {role: self.columns_of(role) for role in (*_ROLES, "drop")}
        return {**by_role, "columns": list(self.columns)}

    def missing_texts(self, name: str) -> list[str]:
        """Return what stands for a missing value in a column, in addition to what always does."""
        return [*self.na, *self.column(name).missing]

    def known_texts(self, name: str) -> list[str]:
        """Return texts that are values in a column although they look missing."""
        return list(self.column(name).known)

    def thousands_of(self, name: str) -> str | None:
        """Return the mark between thousands in a column, or None."""
        return self.column(name).thousands or self.thousands

    def decimal_of(self, name: str) -> str:
        """Return the decimal mark in a column."""
        return self.column(name).decimal or self.decimal

    def with_changes(self, given: Mapping[str, Any]) -> Recipe:
        """Return this recipe with plain fields over its own.

        `drop` is extended, and the given fields of `columns` are replaced. A dropped column that gets a role
        is no longer dropped.

        >>> Recipe(drop=("zip", "id")).with_changes({"target": "id"}).drop
        ('zip',)
        """
        plain = {**self.to_plain(), **given}
        if "columns" in given:
            columns = {name: each.to_plain() for name, each in self.columns.items()}
            for name, fields_of in given["columns"].items():
                own = fields_of.to_plain() if isinstance(fields_of, Column) else fields_of
                columns[name] = _changed_column(columns.get(name, {}), own)
            plain["columns"] = columns
        changed = replace(Recipe.from_plain({**plain, "drop": ()}), drop=())
        drop = [*self.drop, *Recipe.from_plain({"drop": given.get("drop", ())}).drop]
        kept = [name for name in drop if name in given.get("drop", ()) or not changed.roles_of(name)]
        return replace(changed, drop=tuple(dict.fromkeys(kept)))

    def to_plain(self) -> dict[str, Any]:
        """Return what differs from the defaults as texts, lists and dictionaries, as TOML and JSON hold."""
        plain = _plain(self)
        if self.columns:
            plain["columns"] = {name: each.to_plain() for name, each in self.columns.items()}
        return plain

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Recipe:
        """Return a recipe from plain values; a text means a list of one.

        Raises:
            SettingError: an unknown field, or a value of another type.

        >>> Recipe.from_plain({"na": -999, "columns": {"lab": {"decimal": ","}}}).decimal_of("lab")
        ','
        """
        table = {name: value for name, value in content.items() if name != "columns"}
        check_fields(table, {each.name for each in fields(cls)} - {"columns"}, "[table]")
        return replace(read_part(cls, table, "[table]"), columns=content.get("columns", {}))

    @classmethod
    def of(cls, recipe: Recipe | str | os.PathLike[str] | None, options: Mapping[str, Any]) -> Recipe:
        """Return a recipe, or the recipe of a file run.toml, with options that override it."""
        given = recipe if recipe is None or isinstance(recipe, Recipe) else cls.read(recipe)
        return (given or cls()).with_changes(options)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Recipe:
        """Read [table] and [column.NAME] of a file run.toml, as `equidp inspect --out` writes it.

        Raises:
            SettingError: the file cannot be read, or holds something else than a recipe.
        """
        content = read_toml(path)
        table = {name: value for name, value in content.get("table", {}).items() if name not in BESIDE}
        return cls.from_plain({**table, "columns": content.get("column", {})})


BESIDE = ("data", "binning")
"""Fields of [table] in run.toml that are no part of a recipe."""
_NOT_FOR = {"target": (DATE,), "group": (DATE,), "person": (NUMBER, DATE), "weight": (TEXT, DATE)}
"""Role -> kinds that a column with it cannot be."""
_ROLES = tuple(_NOT_FOR)


def toml_key(name: str) -> str:
    """Return the name of a column as TOML has it.

    >>> print(toml_key("zip"), toml_key("Hb, g/dL"))
    zip "Hb, g/dL"
    """
    return tomlkit.key(name).as_string()


def toml_value(value: Any) -> str:
    """Return a plain value as TOML."""
    written: str = tomlkit.item(value).as_string()
    return written


def _plain(part: Column | Recipe) -> dict[str, Any]:
    plain = without_defaults(part)
    return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}


def _changed_column(column: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of a column, overridden by others; a new kind drops fields of another kind only."""
    if "kind" in given or "format" in given:
        ended = {"kind", "format", "range" if given.get("kind", DATE) == TEXT else "fold"}
        column = {name: value for name, value in column.items() if name not in ended}
    return {**column, **given}


def _check_marks(decimal: str | None, thousands: str | None) -> None:
    for name, mark, known in (("decimal", decimal, DECIMAL_MARKS), ("thousands", thousands, THOUSANDS_MARKS)):
        if mark is not None and mark not in known:
            listed = " ".join(map(toml_value, known))
            raise SettingError(f"{name} = {mark!r}; expected one of {listed}.", field=name)
    if decimal is not None and decimal == thousands:
        raise SettingError(f"thousands and decimal are both {decimal!r}; change one.", field="thousands")


_UNSAID = Column()
