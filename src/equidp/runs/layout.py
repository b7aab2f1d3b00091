"""Names and checksums of a run's files."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from equidp.data.dataset import DataSplit
from equidp.errors import DataError
from equidp.runs.config import TrainConfig
from equidp.training.plan import ResolvedPlan

CONFIG, ENCODER, MODEL, RELEASED = "config.json", "preprocessing.json", "model.pt", "released.json"
CARD, PAGE, RECORD, MANIFEST = "card.md", "card.html", "record.parquet", "files.sha256"


def manifest(place: Path) -> str:
    """A line for each of the run's finished files: its SHA-256 and its name, as the program sha256sum reads
    them."""
    names = (CONFIG, ENCODER, MODEL, RELEASED, RECORD, PAGE, CARD)
    there = [name for name in names if (place / name).exists()]
    return "".join(f"{hashlib.sha256((place / name).read_bytes()).hexdigest()}  {name}\n" for name in there)


def check_files(place: Path) -> None:
    """The manifest, written after the cards, tells of each file as it is."""
    try:
        written = set((place / MANIFEST).read_text().splitlines())
    except OSError as error:
        raise DataError(
            f"{MANIFEST} in {os.fspath(place)!r} cannot be read ({error.strerror}); bring it back, or write "
            f"it anew by equidp train --resume {place}"
        ) from error
    changed = sorted({line.split("  ", 1)[-1] for line in written ^ set(manifest(place).splitlines())})
    if changed:
        raise DataError(
            f"{', '.join(changed)} in {os.fspath(place)!r} {'is' if len(changed) == 1 else 'are'} not as "
            f"equidp wrote {'it' if len(changed) == 1 else 'them'} ({MANIFEST} tells); bring "
            f"{'it' if len(changed) == 1 else 'them'} back."
        )


def read_released(place: Path) -> list[dict[str, Any]]:
    """What the run in `place` released of individual privacy; nothing where it did not."""
    try:
        rows: list[dict[str, Any]] = json.loads((place / RELEASED).read_text())
        return rows
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise DataError(
            f"{RELEASED} in {os.fspath(place)!r} is not as equidp wrote it; bring it back."
        ) from error


def check_same(split: DataSplit, config: TrainConfig, facts: dict[str, Any], place: Path) -> None:
    """Raises unless the split is the one that the run in `place` began with."""
    if split.digest() != facts["sensitive_data_sha256"]:
        raise DataError(
            f"{config.data!r} is not the data that {os.fspath(place)!r} began with; bring it back, or train "
            "anew."
        )


def read_config(place: Path) -> tuple[TrainConfig, ResolvedPlan, dict[str, Any]]:
    """What a run was asked for, its plan, and the facts that followed."""
    try:
        content = json.loads((place / CONFIG).read_text())
        config, plan = TrainConfig.from_dict(content["config"]), ResolvedPlan.from_dict(content["plan"])
        return config, plan, content["facts"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{os.fspath(place)!r} holds no run that this version of equidp can read "
            f"({type(error).__name__}); expected a folder that equidp train --out made."
        ) from error
