"""Weights as safetensors."""

from __future__ import annotations

from pathlib import Path

from equidp._extras import require_extra
from equidp.runs.exports.format import ExportedRun


def write_safetensors(export: ExportedRun, path: Path) -> None:
    """Write the state of the model with the guarantee as metadata; tensors that share memory once."""
    with require_extra("export"):
        from safetensors.torch import save_model

    save_model(export.kept.run.model, str(path), metadata=export.labels)
