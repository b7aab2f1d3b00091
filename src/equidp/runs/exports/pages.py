"""Pages on a model: a card for Hugging Face, an entry for the registry of deployments, a privacy label."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from equidp._files import write_whole
from equidp.report.hugging_face import hugging_face_card
from equidp.report.label import privacy_label
from equidp.report.registry import registry_entry
from equidp.runs import layout
from equidp.runs.exports.format import ExportedRun


def write_hf_card(export: ExportedRun, path: Path) -> None:
    """Write the run's own card with the guarantee as front matter."""
    kept = export.kept
    card = layout.read_text(kept.folder, layout.CARD)
    kinds = {1: "tabular", 3: "image"} if kept.config.data.features is None else {}
    kind = kinds.get(len(kept.facts["input_shape"]))
    task = (
        None if kind is None else f"{kind}-{'classification' if kept.facts['class_names'] else 'regression'}"
    )
    write_whole(path, hugging_face_card(kept.run, card, kept.config.method, task, kept.facts["notes"]))


def write_registry_entry(export: ExportedRun, path: Path) -> None:
    """Write a draft of an entry, dated today.

    Raises:
        SettingError: the run has no guarantee.
    """
    kept = export.kept
    columns = () if kept.encoder is None else tuple(column.name for column in kept.encoder.columns)
    entry = registry_entry(
        kept.run,
        kept.facts["name"],
        target=kept.config.data.recipe.target,
        columns=columns,
        notes=kept.facts["notes"],
        day=datetime.now(UTC).date(),
    )
    write_whole(path, entry)


def write_privacy_label(export: ExportedRun, path: Path) -> None:
    """Write the guarantee on one page, with the checksums of weights and kernel."""
    kept = export.kept
    label = privacy_label(
        kept.run,
        kept.facts["name"],
        method=kept.config.method,
        notes=kept.facts["notes"],
        weights=layout.file_digest(kept.folder / layout.MODEL),
        kernel=kept.facts.get("kernel_sha256"),
    )
    write_whole(path, label.to_html())
