"""`equidp methods`: the methods, and the settings of one of them."""

from __future__ import annotations

import json
from typing import Annotated, Any

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from equidp.cli import options
from equidp.cli.app import command
from equidp.policies.methods import METHODS, method_named
from equidp.policies.setting import settings_of
from equidp.report.console_tables import print_table

app = command(
    "methods",
    "equidp methods",
    "equidp methods dpsgd-f",
    "equidp methods my_module:MyPolicy",
)


@app.default
def methods_command(
    name: Annotated[
        options.MethodName | None, Parameter(help="Method to describe, or my_module:MyPolicy.")
    ] = None,
    /,
    *,
    as_json: Annotated[bool, Parameter(name="--json", help="Print JSON.")] = False,
) -> None:
    """List the methods, or the settings of one of them with defaults and meaning.

    A setting is an option of train, compare and ablate, and a key of their TOML files.
    """
    if name is None:
        content: dict[str, Any] = {each: method.summary for each, method in METHODS.items()}
        table = Table("method", "what it does", box=None)
        for row in content.items():
            table.add_row(*row)
    else:
        method = method_named(name)
        settings = settings_of(method.policy)
        content = {each.name: {"default": each.default, "help": each.help} for each in settings}
        table = Table("setting", "default", "meaning", box=None)
        for each in settings:
            table.add_row(f"--{each.name.replace('_', '-')}", str(each.default), escape(each.help))
    if as_json:
        print(json.dumps(content, indent=2))
        return
    if name is not None:
        print(f"{name}: {method.summary.rstrip('.')}.{'' if content else ' It has no settings.'}")
    if content:
        print_table(table)
