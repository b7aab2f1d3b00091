"""Exports of a finished run to files that others open without equidp: one line in `FORMATS` a format.

What a format writes is in a file by subject: `weights`, `programs`, `pipeline`, `pages`. Reading of runs is
not here but in `runs.saved`, and sentences of pages are in `report`.
"""

from __future__ import annotations

from pathlib import Path

from equidp.runs.exports.format import ExportedRun, Format
from equidp.runs.exports.pages import write_hf_card, write_privacy_label, write_registry_entry
from equidp.runs.exports.programs import write_onnx, write_torch_export
from equidp.runs.exports.weights import write_safetensors


def write_skops(export: ExportedRun, path: Path) -> None:
    """Write a pipeline by `pipeline`, which loads models of scikit-learn that no other format needs."""
    from equidp.runs.exports import pipeline

    pipeline.write_skops(export, path)


FORMATS: dict[str, Format] = {
    "safetensors": Format("model.safetensors", "the weights", write_safetensors, ("safetensors",)),
    "torch-export": Format("model.pt2", "a graph that torch alone runs", write_torch_export),
    "onnx": Format("model.onnx", "a graph for runtimes of ONNX", write_onnx, ("onnx", "onnxscript")),
    "skops": Format(
        "model.skops",
        "a scikit-learn pipeline from raw columns to predictions, of a linear model on a table",
        write_skops,
        ("skops",),
    ),
    "hf-card": Format("README.md", "a model card for Hugging Face", write_hf_card, ("yaml",)),
    "label": Format("privacy_label.html", "the guarantee on one page", write_privacy_label),
    "registry": Format(
        "registry_entry.yaml",
        "a draft for the registry of differential privacy deployments",
        write_registry_entry,
        ("yaml",),
    ),
}
"""Name of a format -> its file, its contents and what writes it."""
