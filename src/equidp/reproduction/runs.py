"""Runs that are no cell of a comparison, kept on disk as they come."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas as pd

from equidp._files import write_whole
from equidp._provenance import versions
from equidp.comparison.code_digest import package_digest, without_words
from equidp.comparison.grid import split_facts
from equidp.comparison.kept import check_folder
from equidp.data import open_source
from equidp.reproduction.item import Asked


def kept(
    study: Any,
    seed: int,
    asked: Asked,
    make: Callable[[int], pd.DataFrame],
    code: tuple[ModuleType, ...] = (),
) -> tuple[pd.DataFrame, float]:
    """A run's table and the seconds that it took: from disk, if data, settings and code are the same.

    Args:
        study: a frozen dataclass that says all that the run depends on, but its data and seed.
        seed: of the run.
        asked: says where runs are kept.
        make: trains it.
        code: modules beyond equidp's figures that it follows from.
    """
    check_folder(asked.directory)
    examples = split_facts(open_source(study.data), seed).digest
    settings = {name: value for name, value in asdict(study).items() if name not in ("hours", "label")}
    sources = [without_words(Path(str(module.__file__)).read_text(encoding="utf-8")) for module in code]
    facts = [type(study).__name__, settings, seed, examples, package_digest(), versions(), *sources]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode()).hexdigest()[:24]
    path = asked.directory / f"{key}-study.parquet"
    if not path.exists():
        began = time.perf_counter()
        table = make(seed)
        file = BytesIO()
        table.assign(seconds=time.perf_counter() - began).to_parquet(file, index=False)
        write_whole(path, file.getvalue())
    table = pd.read_parquet(path)
    return table.drop(columns="seconds"), float(table["seconds"].iloc[0])
