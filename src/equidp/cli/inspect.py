"""`equidp inspect`: everything about a table at once, and run.toml for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.markup import escape

from equidp._files import check_outputs, command_line, write_whole
from equidp.cli import options
from equidp.cli.app import command
from equidp.cli.messages import say
from equidp.cli.settings import read_run
from equidp.display import Column, Table
from equidp.errors import SettingError, count_text
from equidp.runs.run_file import RunFile
from equidp.tables.findings import USUAL_ROWS_PER_PERSON
from equidp.tables.inspect import (
    PRIVACY_NOTE,
    ColumnReport,
    TableReport,
    inspect_table,
    recipe_toml,
)
from equidp.tables.parse import RARE_ROWS
from equidp.tables.read import is_parquet

app = command(
    "inspect",
    "equidp inspect patients.csv",
    "equidp inspect patients.csv --target readmitted --group region --out run.toml",
    "equidp compare patients.csv --config run.toml --epsilon 3",
)

_MOST_SIGNALS = 5


@app.default
def inspect_command(
    file: Annotated[Path, Parameter(help="A CSV or Parquet file, or a folder of Parquet files.")],
    /,
    *,
    out: Annotated[
        Path | None,
        Parameter(help="Write the table's part of run.toml to this file.", converter=options.file_name),
    ] = None,
    json_file: options.JsonFile = None,
    config: options.Config = None,
    table: options.TableOptions = options.TableOptions(),
    set_fields: options.Set = (),
) -> None:
    """Show the problems of a table and the lines that solve them, and write run.toml.

    Reads the whole table without privacy, finds separator and charset, and prints no cell of a row.
    """
    check_outputs({"--out": out, "--json": json_file}, file, config)
    if out is not None and out.is_file():
        raise SettingError(f"{str(out)!r} exists, perhaps edited by hand; remove it, or choose another name.")
    given = read_run(config, set_fields, options.given_fields(table))
    people = {"rows_per_person": USUAL_ROWS_PER_PERSON} if given.table.get("person") is not None else {}
    report = inspect_table(file, RunFile(table={**people, **given.table}, column=given.column).recipe)
    if json_file is not None:
        write_whole(json_file, (json.dumps(report.to_plain(), indent=2, ensure_ascii=False) + "\n"))
    if out is not None:
        write_whole(out, recipe_toml(report))
    _print(report, out)
    if out is not None:
        usable = report.recipe.target and report.recipe.group and not report.problems
        say(f"Written: {out}")
        say("Look through it, then:" if usable else "Not enough to train on yet, for the reasons above.")
        if usable:
            say(command_line("equidp", "train", file, "--config", out, "--epsilon", 3, "--out", "run"))


def _print(report: TableReport, out: Path | None) -> None:
    console, recipe = Console(highlight=False), report.recipe
    sep = {"\t": "tab", " ": "space"}.get(recipe.sep, recipe.sep)
    written = "" if is_parquet(report.path) else f" Separator {sep}  Charset {recipe.charset}"
    size = f"{count_text(report.rows, 'row')}, {count_text(len(report.columns), 'column')}."
    console.print(f"{size}{written}", markup=False)
    columns = [Column("column", "name"), Column("holds", "text"), Column("missing"), Column("different")]
    Table(columns, [_row(column, report) for column in report.columns]).print(console, lines=False)
    lines = [line for column in report.columns for line in _finding_lines(column, console.width)]
    if lines:
        console.print("\n[bold]Findings, and the lines of run.toml that settle them[/]")
    for line in lines:
        console.print(f"  {line}", soft_wrap=True)
    console.print()
    for sentence in (*_sentences(report), *_conclusion_lines(report, out)):
        console.print(sentence, markup=False)
    console.print(f"[dim]{escape(PRIVACY_NOTE)}[/]")


def _row(column: ColumnReport, report: TableReport) -> tuple[str, ...]:
    roles = [option for option in ("target", "group") if column.name in report.recipe.columns_of(option)]
    share = f"{100 * column.missing / max(1, report.rows):.1f}%" if column.missing else ""
    return " ".join([column.name, *map("({})".format, roles)]), column.kind, share, f"{column.distinct:,}"


def _finding_lines(column: ColumnReport, width: int) -> list[str]:
    """A line for each finding; if its solution does not fit into the line, it follows below."""
    lines = []
    for says, settles in column.lines():
        plain = f"  {column.name}: {says}  "
        line = f"[bold]{escape(column.name)}[/]: {escape(says)}"
        between = "  " if len(plain) + len(settles) <= width else "\n      "
        lines.append(f"{line}{between}[cyan]{escape(settles)}[/]" if settles else line)
    return lines


def _conclusion_lines(report: TableReport, out: Path | None) -> list[str]:
    """Lines that say if the table can be used with the options above; `out`: path of the recipe."""
    if not (report.recipe.target and report.recipe.group):
        return [
            "Give --target and --group too, to see classes and groups; of a table without groups, the target "
            "for both."
        ]
    if not report.problems:
        lines = f"the lines in {out}" if out else "these lines (--out run.toml)"
        return [f"With {lines}, the table can be used as it is."]
    reasons = count_text(len(report.problems), "reason")
    first = f"With these lines the table cannot be used yet, for {reasons}:"
    return [first, *(f"- {problem}" for problem in report.problems)]


def _sentences(report: TableReport) -> list[str]:
    """Sentences about copies of rows, signals of columns, classes, groups and people."""
    found = [*report.notes]
    if report.signals:
        told = ", ".join(f"{each.column} {each.auc:.3f}" for each in report.signals[:_MOST_SIGNALS])
        found.append(f"What a column tells of {report.recipe.target} alone (AUC): {told}.")
    for column in report.columns:
        for option, kind in (("target", "Classes"), ("group", "Groups")):
            if column.name in report.recipe.columns_of(option):
                shares = [f"{name} {100 * rows / report.rows:.1f}%" for name, rows in column.names]
                if column.missing:
                    shares.append(f"without a value {100 * column.missing / report.rows:.1f}%")
                rare = f", and {column.rare:,} of fewer than {RARE_ROWS} rows" if column.rare else ""
                found.append(f"{kind} by {column.name}: {', '.join(shares) or 'none to name'}{rare}.")
    for column in report.columns:
        if column.name == report.recipe.person:
            found.append(
                f"Epsilon is promised to each of the {column.distinct:,} people of {column.name}, of whose "
                f"rows at most {report.recipe.rows_per_person} are trained on."
            )
    if report.recipe.person is None:
        found.append(
            "Epsilon protects one row. If a person can have several, name the column that identifies people "
            f"(--person COLUMN --rows-per-person {USUAL_ROWS_PER_PERSON})."
        )
    return found
