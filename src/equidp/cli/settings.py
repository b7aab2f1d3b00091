"""Options of a run by section and field: from --set and --config, and all others."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, Literal, get_origin

from equidp._plain import Texts, types_in
from equidp._validate import unknown_name
from equidp.errors import SettingError
from equidp.runs.run_file import (
    SECTIONS,
    RunFile,
    fields_of,
    load_methods,
    read_fields,
    section_of,
    sections_by_field,
)


def read_run(
    config: str | os.PathLike[str] | None,
    sets: Iterable[str],
    given: Mapping[str, Any],
    methods: Iterable[str] = (),
) -> RunFile:
    """Return the options of a run; options of the command line override options of a file.

    Args:
        config: value of --config, run.toml. None: none.
        sets: values of --set, each section.field=value.
        given: other options by field.
        methods: methods whose settings may be given, also user-defined ones.

    Raises:
        SettingError: an unknown section or field, or a value of another type.
    """
    load_methods(methods)
    base = RunFile.of(config)  # its method may be one of the user's own, with settings that --set gives
    over, sections = RunFile(), sections_by_field()
    for text in sets:
        over = over.with_fields(*parse_set(text))
    for name, value in given.items():
        over = over.with_fields(sections[name], {name: value})
    return base.with_others(over)


_OF_COLUMN = re.compile(r"\s*column\s*\.\s*(?P<column>.+?)\s*\.\s*(?P<field>\w+)\s*=(?P<value>.*)", re.DOTALL)
_OF_SECTION = re.compile(r"\s*(?P<section>\w+)\s*\.\s*(?P<field>[\w-]+)\s*=(?P<value>.*)", re.DOTALL)


def parse_set(text: str) -> tuple[str, dict[str, Any], str]:
    """Return section, value by field, and column of a text section.field=value.

    The value is TOML if it is valid TOML, and else a text. A column's name is written as it is, or in quotes.

    Raises:
        SettingError: an unknown section or field, or a value of another type.

    >>> parse_set("training.momentum=0.9"), parse_set("column.Hb, g/dL.range=[0, 20]")
    (('training', {'momentum': 0.9}, ''), ('column', {'range': (0, 20)}, 'Hb, g/dL'))
    """
    found = _OF_COLUMN.fullmatch(text) or _OF_SECTION.fullmatch(text)
    if found is None:
        name = text.partition("=")[0].strip()
        with suppress(SettingError):
            name = f"{section_of(name)}.{name}"
        example = f"{name}=..." if "." in name else "training.momentum=0.9"
        raise SettingError(f"--set {text!r}; expected section.field=value, such as {example}.", field="--set")
    parts = found.groupdict()
    section, name = parts.get("section") or "column", parts["field"].replace("-", "_")
    if section not in SECTIONS:
        raise unknown_name("section", section, SECTIONS)
    column, kind = _unquoted(parts.get("column") or ""), fields_of(section).get(name, str)
    return section, read_fields(section, {name: _value_of(parts["value"], kind)}, column), column


def _value_of(text: str, kind: Any) -> Any:
    """Return a value as TOML if it is valid TOML; 007 and 1e3 stay texts if no number is accepted."""
    text = text.strip()
    value: Any = text
    with suppress(tomllib.TOMLDecodeError):
        value = tomllib.loads(f"value = {text}")["value"]
    kinds = {*types_in(kind)}
    takes_text = {str, Texts} & kinds or any(get_origin(each) is Literal for each in kinds)
    typed = {bool, int, float} & kinds or isinstance(value, str | list | dict)
    return text if takes_text and not typed else value


def _unquoted(name: str) -> str:
    with suppress(tomllib.TOMLDecodeError):
        if name[:1] in ("'", '"'):
            (name,) = tomllib.loads(f"{name} = 1")
    return name
