"""`equidp export`: a finished run as files that others open without equidp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equidp.cli import options
from equidp.cli.app import command
from equidp.report.guarantee import guarantee_sentences
from equidp.runs import layout
from equidp.runs.exports import FORMATS
from equidp.runs.exports.export import export_run
from equidp.runs.exports.format import FACTS, ExportedRun

app = command(
    "export",
    "equidp export run --to safetensors,hf-card --out shared",
    "equidp export run --to skops --include-sensitive --out inside",
)

_FORMATS_HELP = "Formats, with commas. " + "; ".join(
    f"{name}: {each.contents}" for name, each in FORMATS.items()
)


@app.default
def export_command(
    run: options.RunFolder,
    /,
    *,
    to: Annotated[tuple[str, ...], Parameter(help=f"{_FORMATS_HELP}.")],
    out: Annotated[Path, Parameter(help="Folder to make; it may not be there yet.")] = Path("export"),
    include_sensitive: Annotated[
        bool,
        Parameter(
            help="Include what encodes a row (categories, edges of intervals, means and deviations of "
            "training rows) also where epsilon does not cover it; share it only if it may be public."
        ),
    ] = False,
) -> None:
    """Write a trained model to files that others open without equidp, in a new folder.

    Rows, exact values, the ledger and checkpoints stay in the run.
    """
    export = export_run(run, to, out, include_sensitive=include_sensitive)
    print(f"{out}: {', '.join([*(FORMATS[name].file for name in dict.fromkeys(to)), FACTS])}")
    for sentence in [guarantee_sentences(export.kept.run)[0], *_encoder_sentences(export)]:
        print(sentence)


def _encoder_sentences(export: ExportedRun) -> list[str]:
    """Sentences on a table's encoder: left out, or included although epsilon does not cover it."""
    notes = () if export.kept.encoder is None else export.kept.encoder.notes()
    if export.lacks_encoder:
        return [
            "Models take encoded inputs. What encodes a row was left out, since epsilon does not cover it: "
            f"{layout.ENCODER} of the run has it, and --include-sensitive includes it.",
            *notes,
        ]
    return ["Sensitive, not for release unless these may be public:", *notes] if export.is_sensitive else []
