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
    """A line for each finished file of the run, as sha256sum reads it: SHA-256 and name."""
    names = (CONFIG, ENCODER, MODEL, RELEASED, RECORD, PAGE, CARD)
    there = [name for name in names if (place / name).exists()]
    return "".join(f"{hashlib.sha256((place / name).read_bytes()).hexdigest()}  {name}\n" for name in there)


def read_text(place: Path, name: str) -> str:
    """The text of a file that training writes last, or DataError with advice."""
    try:
        return (place / name).read_text()
    except OSError as error:
        raise DataError(
            f"{name} in {os.fspath(place)!r} cannot be read ({error.strerror}); bring it back, or write it "
            f"anew by equidp train --resume {place}"
        ) from error


def check_files(place: Path) -> None:
    """Raises unless the run's files are those that the manifest lists; names those that are not."""
    written = set(read_text(place, MANIFEST).splitlines())
    changed = sorted({line.split("  ", 1)[-1] for line in written ^ set(manifest(place).splitlines())})
    if changed:
        are, them = ("is", "it") if len(changed) == 1 else ("are", "them")
        raise DataError(
            f"{', '.join(changed)} in {os.fspath(place)!r} {are} not as equidp wrote {them} ({MANIFEST} "
            f"lists checksums); bring {them} back."
        )


def read_released(place: Path) -> list[dict[str, Any]]:
    """The individual privacy that the run released; empty if it released none."""
    try:
        released: list[dict[str, Any]] = json.loads((place / RELEASED).read_text())
        return released
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise DataError(
            f"{RELEASED} in {os.fspath(place)!r} is not as equidp wrote it; bring it back."
        ) from error


def read_config(place: Path) -> tuple[TrainConfig, ResolvedPlan, dict[str, Any]]:
    """What a run was asked for, its plan, and the facts that followed."""
    try:
        content = json.loads((place / CONFIG).read_text())
        config, plan = TrainConfig.from_dict(content["config"]), ResolvedPlan.from_dict(content["plan"])
        return config, plan, content["facts"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{os.fspath(place)!r} holds no run that this version of equidp can read "
            f"({type(error).__name__}); expected a folder that equidp train --out made."
        ) from error


def check_same(split: DataSplit, config: TrainConfig, facts: dict[str, Any], place: Path) -> None:
    """Raises DataError unless the split is the one that the run began with."""
    if split.digest() != facts["sensitive_data_sha256"]:
        raise DataError(
            f"{config.data!r} is not the data that {os.fspath(place)!r} began with; bring it back, or train "
            "anew."
        )
