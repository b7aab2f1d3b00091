"""Docstrings in Markdown's form, with names in single backquotes and tables of bars, for Sphinx."""

from __future__ import annotations

import re
from typing import Any

_NAME = re.compile(r"(?<![`:\w])`([^`]+)`(?!`|_)")
_RULE = re.compile(r"\|[\s:|-]+\|$")


def to_rest(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring, in place, from Markdown's code and tables to reStructuredText's."""
    made: list[str] = []
    table: list[str] = []
    example = False
    for line in [*lines, ""]:
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        if example and not table:
            made.append(line)
            continue
        if table and line.strip() and not table[-1].endswith("|"):  # a row goes on in the next line
            table[-1] += f" {line.strip()}"
            continue
        if line.strip().startswith("|"):
            table.append(line.rstrip())
            continue
        if table:
            made += _table(table)
            table = []
        made.append(_in_line(line))
    lines[:] = made[:-1]


def skip_request_methods(
    app: Any, what: str, name: str, obj: Any, skipped: bool, options: Any
) -> bool | None:
    """Leave out what scikit-learn adds to each estimator: its docstrings refer to its own site."""
    return True if re.fullmatch(r"set_\w+_request", name) else None


def _in_line(line: str) -> str:
    """Return a line with names as reStructuredText has them."""
    line = _NAME.sub(r"``\1``", line)
    parts = re.split(r"(``[^`]*``)", line)
    return "".join(part if part.startswith("``") else re.sub(r"([|*])", r"\\\1", part) for part in parts)


def _table(rows: list[str]) -> list[str]:
    """Return the rows of a Markdown table as the lines of a list-table."""
    indent = " " * (len(rows[0]) - len(rows[0].lstrip()))
    cells = [
        [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]
        for row in rows
        if not _RULE.match(row.strip())
    ]
    width = max(map(len, cells))
    made = ["", f"{indent}.. list-table::", f"{indent}   :header-rows: 1", ""]
    for row in cells:
        for place in range(width):
            cell = _in_line(row[place]) if place < len(row) else ""
            made.append(f"{indent}   {'*' if place == 0 else ' '} - {cell}")
    return [*made, ""]
