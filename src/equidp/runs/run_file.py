"""RunFile: the one file of options of a run, run.toml, and options by its sections.

[table] and [column.NAME] describe the table, [privacy] the guarantee, [training] the training, and [card] the
statements of the model card. The command line and Python use the same field names.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self, final, get_type_hints

from equidp._files import check_writable
from equidp._plain import check_fields, check_table, read_toml, read_value, types_in
from equidp._validate import unknown_name
from equidp.accounting.risk import RiskTarget
from equidp.errors import DataError, SettingError
from equidp.policies.methods import MethodLike, known_policies, method_named
from equidp.policies.setting import settings_of
from equidp.policies.table import AUTO
from equidp.runs.config import CardTexts, DatasetLedger, RunData
from equidp.runs.decision import DecisionOptions
from equidp.tables.recipe import BESIDE, Column, Recipe, toml_key
from equidp.training.plan import ALTERNATIVES, Plan, check_option_names
from equidp.training.release import RELEASES, release_class

SECTIONS = ("table", "column", "privacy", "training", "card")
LISTED_IN = "equidp train --dry-run"
"""Command that lists all fields."""
_LEDGER = {"ledger": str, "ledger_epsilon": float, "ledger_delta": float}
_OF_PRIVACY = (
    *("epsilon", "risk", "noise_multiplier", "delta", "accountant"),
    *("epsilon_by_group", "protect_by", "rates", "bound_shares"),
)
"""Options of a plan in the section [privacy]."""
_OF_RUN = {"method": str, "model": str, "settings": str, "seed": int, "features": str, "metric": str}
_DECISION = {"threshold": float | str, "base_rate": float}
_EXECUTION = {"engine": str, "checkpoint_seconds": float}


@final
@dataclass(frozen=True)
class RunFile:
    """Options of a run by section and field, as run.toml, the command line or Python give them.

    Attributes:
        table: fields of [table]: those of `Recipe`, data and binning.
        column: fields of [column.NAME] by name, as in `Column`.
        privacy: fields of [privacy].
        training: fields of [training]: method, settings, seed, other options of `Plan`, settings of methods.
        card: fields of [card], as in `CardTexts`.

    >>> run = RunFile.of(given={"columns": {"zip": {"kind": "text"}}, "momentum": 0.9, "epsilon": 3.0})
    >>> run.column, run.training, run.privacy
    ({'zip': {'kind': 'text'}}, {'momentum': 0.9}, {'epsilon': 3.0})
    """

    table: Mapping[str, Any] = field(default_factory=dict)
    column: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    privacy: Mapping[str, Any] = field(default_factory=dict)
    training: Mapping[str, Any] = field(default_factory=dict)
    card: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        config: str | os.PathLike[str] | Recipe | None = None,
        given: Mapping[str, Any] = {},
    ) -> RunFile:
        """Return the options of a file with others over them.

        Args:
            config: run.toml, or a recipe as `equidp.inspect` proposes it. None: none.
            given: options by field, of any section; `columns` has fields of columns by name.

        Raises:
            SettingError: an unknown section or field, or a value of another type.
        """
        if isinstance(config, Recipe):
            plain = config.to_plain()
            base = cls(column=plain.pop("columns", {}), table=plain)
        else:
            base = cls() if config is None else cls.read(config)
        over, sections = cls(), sections_by_field()
        for name, value in given.items():
            if name == "columns":
                for column, of_column in value.items():
                    over = over.with_fields("column", _fields_of(of_column), column)
            else:
                over = over.with_fields(section_of(name, sections), {name: value})
        return base.with_others(over)

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Self:
        """Read run.toml.

        Raises:
            SettingError: it cannot be read, or holds an unknown section or field, or a value of another type.
        """
        content = read_toml(path)
        try:
            return cls.from_plain(content)
        except (SettingError, DataError) as error:
            raise type(error)(f"{os.fspath(path)!r}: {error}", field=error.field) from error

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Self:
        """Return the options of plain values by section, each checked by the type of its field."""
        for section, values in content.items():
            if section not in SECTIONS:
                raise unknown_name("section", section, SECTIONS)
            check_table(values, f"[{section}]")
        method = content.get("training", {}).get("method")
        if isinstance(method, str) and ":" in method:
            method_named(method)
        found: dict[str, Any] = {}
        for section, values in content.items():
            if section == "column":
                found[section] = {name: read_fields(section, each, name) for name, each in values.items()}
            else:
                found[section] = read_fields(section, values)
        return cls(**found)

    def with_fields(self, section: str, values: Mapping[str, Any], column: str = "") -> RunFile:
        """Return these options with further fields of a section; dropped columns are added to."""
        if section == "column":
            of_column = {**self.column.get(column, {}), **values}
            return replace(self, column={**self.column, column: of_column})
        old = getattr(self, section)
        if "drop" in values and "drop" in old:
            values = {**values, "drop": [*_as_list(old["drop"]), *_as_list(values["drop"])]}
        return replace(self, **{section: {**old, **values}})

    def with_others(self, over: RunFile) -> RunFile:
        """Return these options with others over them; an option replaces those that it excludes."""
        found = self
        for name, values in over.column.items():
            found = found.with_fields("column", values, name)
        for section in SECTIONS:
            if section != "column":
                values = getattr(over, section)
                excluded = {each for others in ALTERNATIVES if {*others} & {*values} for each in others}
                kept = {name: each for name, each in getattr(found, section).items() if name not in excluded}
                found = replace(found, **{section: kept}).with_fields(section, values)
        return found

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe of a table. A column that has a role is not dropped."""
        table = {name: value for name, value in self.table.items() if name not in BESIDE}
        drop = list(dict.fromkeys(_as_list(table.pop("drop", ()))))
        recipe = Recipe.from_plain({**table, "columns": self.column})
        return recipe.with_changes({"drop": drop})

    def run_data(self, data: str | os.PathLike[str] | None = None) -> RunData:
        """Return the data of a run; `data` overrides the file.

        Raises:
            SettingError: neither names data.
        """
        name = data or self.table.get("data")
        if not name:
            raise SettingError("nothing to train on: give DATA, or data in [table].", field="data")
        features, seed = self.training.get("features"), self.training.get("seed", 0)
        return RunData.of(name, self.recipe, features, seed, self.table.get("binning"))

    @property
    def options(self) -> dict[str, Any]:
        """Options of the plan, of methods, of execution and of releases, by name, without the method."""
        apart = {*_OF_RUN, *_DECISION, *_LEDGER} - {"model"}
        given = {**self.privacy, **self.training}  # in one order, however they were given
        order = {**fields_of("privacy"), **fields_of("training"), **given}
        options = {name: given[name] for name in order if name in given}
        if isinstance(options.get("risk"), int | float | list | tuple):
            options["risk"] = RiskTarget.of(*_as_list(options["risk"]))
        return {name: value for name, value in options.items() if name not in apart}

    def ledger(self, *read: str | os.PathLike[str] | None) -> DatasetLedger | None:
        """Return the ledger of all runs on the data, or None without one.

        Args:
            read: files that are read. The ledger's must be another one.

        Raises:
            SettingError: a limit without its ledger, or a file that cannot be written.
        """
        path, epsilon, delta = (self.privacy.get(name) for name in _LEDGER)
        if path is not None:
            check_writable(path, *read)
            return DatasetLedger(Path(path).absolute(), epsilon, delta)
        for name in (each for each in _LEDGER if self.privacy.get(each) is not None):
            raise SettingError(f"{name}={self.privacy[name]} of a ledger without its file; give ledger too.")
        return None

    @property
    def decision(self) -> DecisionOptions:
        """Decision between two classes."""
        given = {name: self.training.get(name) for name in _DECISION}
        return DecisionOptions(self.table.get("positive"), **given)

    @property
    def card_texts(self) -> CardTexts:
        """Texts of [card]."""
        return CardTexts(**self.card)


def section_of(name: str, sections: Mapping[str, str] | None = None) -> str:
    """Return the section of a field of a run, except [column.NAME].

    Args:
        name: name of the field.
        sections: by field. None: `sections_by_field` works them out.

    >>> [section_of(name) for name in ("target", "epsilon", "momentum", "title")]
    ['table', 'privacy', 'training', 'card']

    Raises:
        SettingError: no section has such a field.
    """
    known = sections_by_field() if sections is None else sections
    check_option_names([name], known, LISTED_IN)
    return known[name]


def sections_by_field() -> dict[str, str]:
    """Return the section of each field of a run, except the fields of [column.NAME]."""
    return {name: section for section in SECTIONS if section != "column" for name in fields_of(section)}


def load_methods(methods: Iterable[MethodLike]) -> None:
    """Load methods of the user's own, whose settings are fields of [training] from then on."""
    for method in methods:
        if method != AUTO:
            method_named(method)


def fields_of(section: str) -> dict[str, Any]:
    """Return the fields of a section, each with its type."""
    if section == "column":
        return get_type_hints(Column)
    if section == "card":
        kinds = get_type_hints(CardTexts)
        given = (each.name for each in fields(CardTexts) if each.name not in CardTexts.NOT_GIVEN)
        return {name: kinds[name] for name in given}
    if section == "table":
        kinds = get_type_hints(Recipe)
        return {**dict.fromkeys(BESIDE, str), **{name: kinds[name] for name in kinds if name != "columns"}}
    kinds = get_type_hints(Plan)
    of_plan = {each.name: kinds[each.name] for each in Plan.options()} | {"risk": float | list[float]}
    privacy = {name: of_plan.pop(name) for name in _OF_PRIVACY}
    if section == "privacy":
        released = (each for kind in map(release_class, RELEASES) for each in kind.options())
        return {**privacy, **_LEDGER, **{each.name: each.type for each in released}}
    of_methods = {each.name: each.type for kind in known_policies().values() for each in settings_of(kind)}
    return {**of_plan, **of_methods, **_EXECUTION, **_OF_RUN, **_DECISION}


def read_fields(section: str, values: Any, column: str = "") -> dict[str, Any]:
    """Return the values of a section by the types of its fields.

    Raises:
        SettingError: an unknown field, or a value of another type.
    """
    place, kinds = place_of(section, column), fields_of(section)
    check_fields(values, kinds, place)
    return {
        name: _as_number(read_value(name, value, kinds[name], place), kinds[name])
        for name, value in values.items()
    }


def place_of(section: str, column: str = "") -> str:
    """Return a section as run.toml heads it."""
    return f"[column.{toml_key(column)}]" if section == "column" else f"[{section}]"


def _as_number(value: Any, kind: Any) -> Any:
    """Return a whole number as a float if only floats are accepted; other values as they are."""
    kinds = types_in(kind)
    return float(value) if type(value) is int and float in kinds and int not in kinds else value


def _fields_of(column: Column | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(column, Column):
        return {each.name: getattr(column, each.name) for each in fields(column)}
    return column


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]
