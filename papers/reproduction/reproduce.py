"""reproduce(): an item from data to figures beside those that are printed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from io import BytesIO
from pathlib import Path

import pandas as pd

from equidp import DataError, SettingError
from equidp.comparison.cells import split_facts
from equidp.data import open_source
from equidp.extend import unknown_name, write_whole
from equidp.report.plots.style import Layout, drawn_as, saved
from equidp.store import Store
from equidp.training.plan import checked_seeds
from papers.reproduction import beyond, esipova, xu, yu
from papers.reproduction.compared import Compared
from papers.reproduction.item import COLUMNS, Item, Request
from papers.reproduction.page import section
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
    into: str | os.PathLike[str] = RESULTS,
    directory: str | os.PathLike[str] = RUNS,
    jobs: int | None = None,
    device: str = "cpu",
) -> Judged:
    """Make a table or figure of a paper again, beside what is printed.

    Writes NAME.json with means over seeds, and in the folder NAME its section of the page of results, the
    plots as PDF and SVG and all figures by seed as Parquet.

    Args:
        name: of an item, from `python -m papers reproduce --list`.
        seeds: how many (0, 1, ...); None: as many as the item has.
        seeds_of: how many of some of its data, where those are slow: fewer than of the others.
        into: folder of results.
        directory: finished runs are kept here, and taken from here if data, settings and code are the same.
        jobs: processes; None: one per core.
        device: where to train, as `compare` takes it; items of other studies take the CPU alone.

    Raises:
        SettingError: an unknown name, too many seeds of some data, a device that is not there or that the
            item does not train on, or a folder that cannot be written; before anything is trained.
        DataError: data that is not there; before anything is trained.
    """
    item = item_named(name)
    chosen, fewer = choose_seeds(item, seeds, seeds_of)
    check_device(item, device)
    check_data(item, chosen[0])
    into = Path(into)
    for place in (into / name, Path(directory)):
        Store(place).check()
    request = Request(tuple(chosen), Path(directory), jobs, device)
    made = [
        study.rows(replace(request, seeds=(seed,)))
        for study in sorted(item.studies, key=lambda study: study.hours)
        for seed in chosen[: fewer.get(study.data)]
    ]
    rows = pd.concat([part for part, _ in made], ignore_index=True)[COLUMNS]
    seconds = sum(seconds for _, seconds in made)
    result = Result.of(item, rows, request.seeds, seconds, seeds_of=fewer, device=device)
    judged = Judged(item, result)
    _write(judged, rows, into / name)
    result.save(into / f"{name}.json")
    return judged


def item_named(name: str) -> Item:
    """Return the item of this name.

    Raises:
        SettingError: there is none; names the nearest.
    """
    if name not in ITEMS:
        raise unknown_name("item", name, ITEMS)
    return ITEMS[name]


def choose_seeds(
    item: Item, seeds: int | None, seeds_of: Mapping[str, int] | None
) -> tuple[list[int], dict[str, int]]:
    """Seeds that `reproduce` takes with these arguments, and the number of seeds of some data.

    Raises:
        SettingError: data that the item has not, or a number that is not from 1 to that of the others.
    """
    chosen, fewer = checked_seeds(item.seeds if seeds is None else seeds), dict(seeds_of or {})
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


def judged_items(into: str | os.PathLike[str]) -> list[Judged]:
    """Every item with its stored result, in the papers' order.

    Raises:
        DataError: a stored result is damaged, or of an item that there is not.
    """
    paths = [Path(into) / f"{name}.json" for name in ITEMS]
    results = [Result.load(path) if path.exists() else None for path in paths]
    return [Judged(item, result) for item, result in zip(ITEMS.values(), results, strict=True)]


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
    write_whole(folder / "index.md", (section(judged) + "\n").encode())
