"""reproduce(): an item from data to a page."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import final

import pandas as pd

from equidp import DataError, SettingError
from equidp.comparison.cells import Progress, split_facts
from equidp.data import open_source
from equidp.extend import check_number, unknown_name, write_whole
from equidp.report.plots.style import Layout, drawn_as, saved
from equidp.store import Store
from equidp.training.plan import checked_seeds
from papers.reproduction import beyond, esipova, xu, yu
from papers.reproduction.compared import Compared
from papers.reproduction.item import COLUMNS, Item, Request
from papers.reproduction.page import page
from papers.reproduction.result import Judged, Result


def _place(item: Item) -> tuple[str, int, str]:
    kind, _, number = item.name.removeprefix(f"{item.paper.key}-").partition("-")
    digits = "".join(letter for letter in number if letter.isdigit())
    return kind if digits else "", int(digits or 0), number


ITEMS: dict[str, Item] = {
    item.name: item
    for of_paper in (
        xu.ITEMS,
        xu.READING_ITEMS,
        esipova.ITEMS,
        yu.ITEMS,
        beyond.ITEMS,
    )
    for item in sorted(of_paper, key=_place)
}
"""Name -> item, by paper: figures before tables."""

RESULTS = Path("equidp-results")
RUNS = Path("equidp-runs")
_WIDE = Layout(7.0, 8)


def reproduce(
    name: str,
    *,
    seeds: int | None = None,
    seeds_of: Mapping[str, int] | None = None,
    quick: bool = False,
    into: str | os.PathLike[str] = RESULTS,
    directory: str | os.PathLike[str] = RUNS,
    jobs: int | None = None,
    device: str = "cpu",
    hours: float = math.inf,
    on_progress: Progress | None = None,
) -> Judged:
    """Make a table or figure of a paper again: a page with what is measured beside what is printed.

    Writes NAME.json with means over seeds, and in the folder NAME a page, the plots as PDF and SVG and all
    figures by seed as Parquet. The short form is called NAME-quick.

    Args:
        name: of an item, from `python -m papers reproduce --list`.
        seeds: how many (0, 1, ...); None: as many as the item's full form has, or one if quick.
        seeds_of: how many of some of its data, where those are slow: fewer than of the others.
        quick: the short form: minutes, which says nothing about the paper.
        into: folder of results.
        directory: finished runs are kept here, and taken from here if data, settings and code are the same.
        jobs: processes; None: one per core.
        device: where to train, as `compare` takes it; items of other studies take the CPU alone.
        hours: no further run begins after so many; what was made by then is the result.
        on_progress: called with (seconds of work done, seconds in all), by the studies' hours.

    Raises:
        SettingError: an unknown name, too many seeds of some data, a device that is not there or that the
            item does not train on, or a folder that cannot be written; before anything is trained.
        DataError: data that is not there; before anything is trained.
    """
    item = item_named(name)
    chosen, fewer = choose_seeds(item, seeds, seeds_of, quick=quick)
    check_device(item, device)
    check_data(item, chosen[0])
    into, stem = Path(into), file_stem(name, quick=quick)
    folder = into / stem
    for place in (folder, Path(directory)):
        Store(place).check()
    request = Request(tuple(chosen), Path(directory), jobs, device=device)
    check_number("(0, inf]", hours=hours)
    studies = [study.shorten() for study in item.studies] if quick else item.studies
    parts = [
        (study, seed)
        for study in sorted(studies, key=lambda study: study.hours)
        for seed in request.seeds[: fewer.get(study.data)]
    ]
    made: list[tuple[pd.DataFrame, float]] = []
    ends = time.monotonic() + 3600 * hours
    overall = _Overall(on_progress, sum(study.hours for study, _ in parts))
    for study, seed in parts:
        if not made or time.monotonic() < ends:
            with overall.part(study.hours) as report:
                made.append(study.rows(replace(request, seeds=(seed,), on_progress=report)))
    rows = pd.concat([part for part, _ in made], ignore_index=True)[COLUMNS]
    seconds = sum(seconds for _, seconds in made)
    result = Result.of(item, rows, request.seeds, seconds, quick=quick, seeds_of=fewer, device=device)
    judged = Judged(item, result)
    _write(judged, rows, folder)
    result.save(into / f"{stem}.json")
    return judged


@final
class _Overall:
    """Progress of all parts as one, weighted by their hours; parts that report nothing are no work."""

    def __init__(self, tell: Progress | None, hours: float) -> None:
        self._tell, self._done, self._all = tell, 0.0, hours

    @contextmanager
    def part(self, hours: float) -> Iterator[Progress]:
        trained = False

        def report(done: int, total: int) -> None:
            nonlocal trained
            trained = True
            if self._tell is not None:
                now = self._done + hours * done / total
                self._tell(round(3600 * now), round(3600 * self._all))

        yield report
        if trained:
            self._done += hours
        else:
            self._all -= hours


def file_stem(name: str, *, quick: bool) -> str:
    """Name of the files of an item's results."""
    return f"{name}-quick" if quick else name


def item_named(name: str) -> Item:
    """Return the item of this name.

    Raises:
        SettingError: there is none; names the nearest.
    """
    if name not in ITEMS:
        raise unknown_name("item", name, ITEMS)
    return ITEMS[name]


def choose_seeds(
    item: Item, seeds: int | None, seeds_of: Mapping[str, int] | None, *, quick: bool
) -> tuple[list[int], dict[str, int]]:
    """Seeds that `reproduce` takes with these arguments, and the number of seeds of some data.

    Raises:
        SettingError: data that the item has not, or a number that is not from 1 to that of the others.
    """
    own_seeds = 1 if quick else item.seeds
    chosen, fewer = checked_seeds(own_seeds if seeds is None else seeds), dict(seeds_of or {})
    for name, count in fewer.items():
        if name not in item.sources():
            raise unknown_name("seeds_of", name, item.sources())
        if not 1 <= count <= len(chosen):
            raise SettingError(f"seeds_of={name}={count}; expected 1 to {len(chosen)}, the number of seeds.")
    return chosen, fewer


def check_device(item: Item, device: str) -> None:
    """Raise SettingError for a device other than the CPU, if a study of the item trains on the CPU alone."""
    if device != "cpu" and not all(isinstance(study, Compared) for study in item.studies):
        raise SettingError(
            f"device {device!r}: {item.name} has studies that train on the CPU alone; expected cpu.",
            field="device",
        )


def check_data(item: Item, seed: int) -> None:
    """Read the data of an item, before anything is trained.

    Raises:
        DataError: some of it is not there.
    """
    for source in item.sources():
        try:
            split_facts(open_source(source), seed)
        except DataError as error:
            raise DataError(f"{item.name} trains on {source!r}: {error}") from error


def judged_items(into: str | os.PathLike[str], *, quick: bool = False) -> list[Judged]:
    """Every item with its stored result, in the papers' order.

    Raises:
        DataError: a stored result is damaged, or of an item that there is not.
    """
    found = []
    for item in ITEMS.values():
        full, short = (Path(into) / f"{file_stem(item.name, quick=each)}.json" for each in (False, True))
        path = full if full.exists() or not quick else short
        found.append(Judged(item, Result.load(path) if path.exists() else None))
    return found


def _write(judged: Judged, rows: pd.DataFrame, folder: Path) -> None:
    assert judged.result is not None
    file = BytesIO()
    rows.to_parquet(file, index=False)
    write_whole(folder / "figures.parquet", file.getvalue())
    for number, plot in enumerate(judged.item.plots, start=1):
        figure = drawn_as(_WIDE, partial(plot.draw, judged.result.found.table))
        if figure is not None:
            for kind in ("pdf", "svg"):
                write_whole(folder / f"plot-{number}.{kind}", saved(figure, kind))
    write_whole(folder / "index.html", page(judged).encode())
