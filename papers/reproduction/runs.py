"""Runs that are no cell of a comparison, kept on disk as they come."""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from equidp.comparison.grid import split_facts
from equidp.data import open_source
from equidp.digest import without_words
from equidp.extend import make_folder, versions, write_whole
from equidp.store import FIGURES
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
    make_folder(request.directory)
    examples = split_facts(open_source(study.data), seed).digest
    settings = {name: value for name, value in asdict(study).items() if name not in ("hours", "label")}
    sources = [without_words(Path(str(module.__file__)).read_text(encoding="utf-8")) for module in code]
    facts = [type(study).__name__, settings, seed, examples, FIGURES, versions(), *sources]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]
    path = request.directory / f"{key}-study.parquet"
    if not path.exists():
        folder = request.directory / f"{key}-study"
        clock = folder / "seconds"
        began = time.process_time() - (float(clock.read_text()) if clock.exists() else 0.0)
        try:
            table = make(seed, folder)
        except BaseException:
            with suppress(OSError):  # no folder was made, or the disk is full, which make says better
                write_whole(clock, str(time.process_time() - began).encode())
            raise
        file = BytesIO()
        table.assign(seconds=time.process_time() - began).to_parquet(file, index=False)
        write_whole(path, file.getvalue())
        shutil.rmtree(folder, ignore_errors=True)
    table = pd.read_parquet(path)
    return table.drop(columns="seconds"), float(table["seconds"].iloc[0])
