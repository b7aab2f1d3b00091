"""`equidp methods`: the methods, and the settings of one of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from equidp.cli.app import command
from equidp.cli.noise import MethodName
from equidp.display import Column, Table
from equidp.policies.methods import method_named
from equidp.policies.setting import MethodSetting, settings_of
from equidp.policies.table import METHODS

app = command(
    "methods",
    "equidp methods",
    "equidp methods dpsgd-f",
    "equidp methods my_module:MyPolicy",
)


@app.default
def methods_command(
    name: Annotated[MethodName | None, Parameter(help="Method to describe, or my_module:MyPolicy.")] = None,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> None:
    """List the methods, or the settings of one of them with defaults and meaning.

    Set one in train and compare by --set training.NAME=VALUE, or under [training] in run.toml.
    """
    if name is None:
        content: dict[str, Any] = {each: method.summary for each, method in METHODS.items()}
        table = Table([Column("method", "name"), Column("what it does", "text")], list(content.items()))
    else:
        method = method_named(name)
        settings = settings_of(method.policy)
        content = {each.name: {"default": each.default, "help": each.help} for each in settings}
        table = settings_table(settings)
    if as_json:
        print(json.dumps(content, indent=2))
        return
    if name is not None:
        print(f"{name}: {method.summary.rstrip('.')}.{'' if content else ' It has no settings.'}")
    if content:
        table.print(lines=False)


def settings_table(settings: Sequence[MethodSetting]) -> Table:
    """Return the settings of a method, with defaults and meaning."""
    columns = [Column("setting", "name"), Column("default", "text"), Column("meaning", "text")]
    rows = [(each.name, str(each.default), each.help) for each in settings]
    return Table(columns, rows)
