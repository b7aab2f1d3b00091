"""Runs that are no cell of a comparison, kept on disk as they come."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from equidp.comparison.cells import split_facts
from equidp.data import open_source
from equidp.digest import without_words
from equidp.extend import versions, write_whole
from equidp.store import FIGURES, Store, key_of
from papers.reproduction.item import Request


def load_or_make(
    study: Any,
    seed: int,
    request: Request,
    make: Callable[[int, Path], pd.DataFrame],
    code: tuple[ModuleType, ...] = (),
) -> tuple[pd.DataFrame, float]:
    """A run's table and its seconds of processor time: from disk, if data, settings and code are the same.

    Args:
        study: a frozen dataclass that says all that the run depends on, but its data and seed.
        seed: of the run.
        request: says where runs are kept.
        make: trains it, given the seed and the path of a folder, where it may keep what it goes on from after
            a stop. The folder is deleted when the run is complete.
        code: modules beyond equidp's figures that it follows from.
    """
    store = Store(request.directory)
    store.check()
    examples = split_facts(open_source(study.data), seed).digest
    settings = {name: value for name, value in asdict(study).items() if name not in ("hours", "label")}
    sources = [without_words(Path(str(module.__file__)).read_text(encoding="utf-8")) for module in code]
    plain = json.loads(json.dumps(settings, default=str))
    key = key_of(type(study).__name__, plain, seed, examples, FIGURES, versions(), sources)
    entry = store.get(key)
    if entry is None:
        folder = request.directory / f"{key}-study"
        clock = folder / "seconds"
        began = time.process_time() - (float(clock.read_text()) if clock.exists() else 0.0)
        try:
            table = make(seed, folder)
        except BaseException:
            with suppress(OSError):  # no folder was made, or the disk is full, which make says better
                write_whole(clock, str(time.process_time() - began).encode())
            raise
        what = f"{type(study).__name__}, {study.data}, seed {seed}"
        entry = store.put(key, {"rows": table}, {"seconds": time.process_time() - began}, what=what)
        shutil.rmtree(folder, ignore_errors=True)
    return entry.table("rows"), float(entry.facts["seconds"])
