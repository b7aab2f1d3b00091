"""`python -m papers reproduce`: a table or figure of a paper, from data to a page."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from equidp import Column, Table
from equidp.cli import options
from equidp.cli.app import command
from equidp.cli.compare import rows_as_they_finish
from equidp.cli.messages import fail, say, stoppable
from equidp.errors import SettingError
from equidp.extend import check_folder, check_outputs, write_whole
from equidp.training.progress import duration
from papers.reproduction.page import WORDS, based_on, in_words, results_page
from papers.reproduction.reproduce import (
    RESULTS,
    RUNS,
    check_data,
    check_device,
    choose_seeds,
    item_named,
    judged_items,
    reproduce,
)
from papers.reproduction.result import Judged

app = command(
    "reproduce",
    "python -m papers reproduce --list",
    "EQUIDP_DATA=... python -m papers reproduce xu-table-1 --seeds 5",
    "python -m papers reproduce --page papers/results.md --results papers/results",
)


@app.default
def reproduce_command(
    item: Annotated[str | None, Parameter(help="Name of a table or figure, such as xu-table-1.")] = None,
    *,
    list_items: Annotated[
        bool, Parameter(name="--list", help="List tables and figures with their state, seeds and hours.")
    ] = False,
    page: Annotated[
        Path | None,
        Parameter(
            help="Write one page of all results that are there, in Markdown, to this file.",
            converter=options.file_name,
        ),
    ] = None,
    seeds: Annotated[
        int | None, Parameter(help="Number of runs of each kind; default: the item's own.")
    ] = None,
    seeds_of: Annotated[
        str, Parameter(help="Fewer seeds of data that takes long, such as mnist=1.", allow_repeating=False)
    ] = "",
    results: Annotated[
        Path, Parameter(help="Folder of results, a file and a folder for each item.")
    ] = RESULTS,
    directory: Annotated[Path, Parameter(help="Folder where finished runs are kept.")] = RUNS,
    jobs: options.Jobs = None,
    device: options.Device = "cpu",
) -> None:
    """Make a table or figure of the papers again, beside what they print.

    Trains on public data and shows raw figures of it: the results are for research.
    A stopped command goes on from its finished runs.
    """
    if [item is not None, list_items, page is not None].count(True) != 1:
        fail("python -m papers reproduce needs one of: the name of an item, --list, --page FILE.")
    if page is not None:
        check_outputs({"--page": page}, results)
        write_whole(page, results_page(judged_items(results)).encode())
        say(f"Page: {page.resolve()}")
        return
    if item is None:
        _list(judged_items(results))
        return
    found = item_named(item)
    for folder in (results, directory):
        check_folder(folder)
    check_device(found, device)
    check_data(found, 0)
    chosen, fewer = choose_seeds(found, seeds, parse_counts(seeds_of))
    expected = duration(3600 * found.hours(len(chosen), fewer))
    say(
        f"{item}, {len(chosen)} seed{'s' if len(chosen) > 1 else ''}: {expected} on two cores, less what is"
        f" kept in {directory}. It can be stopped, and goes on from its finished runs."
    )
    otherwise = "stopped. Finished runs are kept: the same command goes on from them."
    with stoppable(otherwise), rows_as_they_finish():
        judged = reproduce(
            item,
            seeds=seeds,
            seeds_of=fewer,
            into=results,
            directory=directory,
            jobs=jobs,
            device=device,
        )
    _show(judged)
    say(f"Page: {(results / item / 'index.md').resolve()}")


def _list(items: list[Judged]) -> None:
    rows = []
    for each in items:
        result = each.result
        seeds = str(each.item.seeds)
        if result is not None:
            seeds = result.seeds_counted
        rows.append((each.item.name, each.item.title, WORDS[each.state], seeds, f"{each.item.hours():.2g}"))
    headings = ("item", "what it shows", "state", "seeds", "hours on two cores")
    table = Table([Column(heading, "text") for heading in headings], rows)
    table.print(Console(width=None if sys.stdout.isatty() else 150), lines=False)
    for each in items:
        for reason in each.reasons if each.state == "differs" else ():
            print(f"{each.item.name} differs: {reason}")


def _show(judged: Judged) -> None:
    print(f"{judged.item.name}: {WORDS[judged.state]}.")
    for claim, verdict in judged.claims:
        print(f"- {claim.text}: {in_words(verdict)}{based_on(verdict)}.")
    off = [each for each in judged.differences if each.differs]
    if judged.differences:
        print(f"{len(judged.differences) - len(off)} of {len(judged.differences)} printed figures agree.")


def parse_counts(text: str) -> dict[str, int]:
    """Return the number of each name.

    >>> parse_counts("mnist=1, adult=3")
    {'mnist': 1, 'adult': 3}
    """
    counts: dict[str, int] = {}
    for part in text.split(",") if text else ():
        name, _, count = (each.strip() for each in part.partition("="))
        if not (name and count.isdecimal()) or name in counts:
            raise SettingError(
                f"{part!r} in {text!r}; expected name=number, each name once, such as mnist=1."
            )
        counts[name] = int(count)
    return counts
