"""Export of a finished run: a new folder with files that others open without equidp."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

from equidp._extras import require_extra
from equidp._files import check_new_folder, new_folder, write_whole
from equidp._validate import unknown_name
from equidp.errors import DataError, SettingError
from equidp.evaluation.predictions import has_diverged
from equidp.runs.exports import FORMATS
from equidp.runs.exports.format import FACTS, ExportedRun, facts_text, modules_of
from equidp.runs.saved import open_run


def export_run(
    run: str | os.PathLike[str],
    to: str | Sequence[str],
    out: str | os.PathLike[str],
    *,
    include_sensitive: bool = False,
) -> ExportedRun:
    """Export a finished run to files that others open without equidp, in a new folder.

    The folder is whole or absent. `model.json` in it has the guarantee, the shape of inputs, the modules of
    the model and, where the export holds it, the encoder of a table's columns. Models take encoded inputs; a
    pipeline for skops takes raw columns. Checkpoints, the ledger, exact values and rows stay in the run.

    Args:
        run: folder of the run, or of its shareable files.
        to: a name from `FORMATS`, or several: safetensors, torch-export, onnx, skops, hf-card,
            label, registry.
        out: folder to make.
        include_sensitive: include the encoder where epsilon does not cover its categories, means and
            deviations of training rows.

    Raises:
        SettingError: an unknown format, a missing package, a folder that exists, or a format that this run
            cannot have.
        ModelError: a model that a format cannot hold.
        DataError: the run is not finished, its files were changed, or its training diverged.
        BudgetError: its ledger was damaged or edited.

    Example:
        >>> import equidp
        >>> from equidp.runs.config import RunData, TrainConfig
        >>> from equidp.runs.begin import begin
        >>> from equidp.runs.prepare import prepare
        >>> from equidp.runs.train import train
        >>> place = getfixture("tmp_path")
        >>> plan = equidp.Plan(batch_size=100, epochs=0.2, noise_multiplier=2.0)
        >>> config = TrainConfig(RunData("digits"), "dpsgd", plan, equidp.Target(accountant="rdp"))
        >>> _ = train(place / "run", prepared=begin(prepare(config), place / "run"))
        >>> export = equidp.export_run(place / "run", "safetensors", place / "export")
        >>> sorted(path.name for path in (place / "export").iterdir())
        ['model.json', 'model.safetensors']
    """
    names = list(dict.fromkeys([to] if isinstance(to, str) else to))
    _check_formats(names)
    check_new_folder(out)
    export = ExportedRun.of(open_run(run), include_sensitive=include_sensitive)
    if has_diverged(export.kept.run.model):
        raise DataError(
            f"the model of {os.fspath(run)!r} has weights that are not numbers: its training diverged. Train "
            "with a smaller learning rate.",
            field="model",
        )
    with new_folder(out) as folder:
        for name in names:
            FORMATS[name].write(export, folder / FORMATS[name].file)
        facts = {**export.facts, "modules": modules_of(export.kept.run.model), "files": _files(names)}
        write_whole(folder / FACTS, facts_text(facts) + "\n")
    return export


def _files(names: Sequence[str]) -> dict[str, str]:
    return {FORMATS[name].file: name for name in names}


def _check_formats(names: Sequence[str]) -> None:
    """Raise a SettingError unless each name is a format whose packages are installed."""
    if not names:
        raise SettingError(f"to=(); expected one or several of {', '.join(FORMATS)}.", field="to")
    for name in names:
        if name not in FORMATS:
            raise unknown_name("format", name, FORMATS)
        with require_extra("export"):
            for package in FORMATS[name].packages:
                import_module(package)
