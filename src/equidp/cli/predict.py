"""`equidp predict`: the classes that a finished run predicts for new rows."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter

from equidp._extras import require_extra
from equidp._files import check_outputs, written_whole
from equidp.cli import metrics, options
from equidp.cli.app import command
from equidp.cli.messages import say
from equidp.errors import SettingError
from equidp.evaluation.predictions import Decision, Predictions, predict
from equidp.runs.saved import ROWS, open_run
from equidp.tables.columns import check_names
from equidp.tables.read import check_read_twice, names_of, readable, written_rows
from equidp.tables.recipe import Recipe
from equidp.training.device import chosen_device

with require_extra("tables"):
    import pandas as pd

app = command(
    "predict",
    "equidp predict run new-people.csv --keep id --out predictions.csv",
    "equidp predict run new-people.csv --threshold 0.08 | head",
)


@app.default
def predict_command(
    run: options.RunFolder,
    table: options.Rows = None,
    /,
    *,
    keep: Annotated[
        tuple[str, ...],
        Parameter(help="Columns of the table to write beside the predictions, such as an id."),
    ] = (),
    decision: metrics.DecisionOptions = metrics.DecisionOptions(),
    sep: options.RowsSep = None,
    charset: options.RowsCharset = None,
    out: Annotated[
        Path | None, Parameter(help="CSV file; default: standard output.", converter=options.file_name)
    ] = None,
    device: options.Device = "cpu",
    trust_code: options.TrustCode = False,
) -> None:
    """Predict the class of each row, with probabilities, in the order of the rows.

    Positive class and threshold are those of the run, unless others are given.
    """
    place = chosen_device(device)
    check_outputs({"--out": out}, run, table)
    if keep and table is None:
        raise SettingError(f"--keep {','.join(keep)} names columns of a table; give the table too.")
    if keep and table is not None:
        check_read_twice(table, "--keep reads it again")
    kept = open_run(run, trust_code=trust_code).with_file_format(sep, charset)
    check_outputs({"--out": out}, kept.config.data.name)
    shown = decision.decision(kept.config.decision, kept.class_counts)
    beside: Iterator[pd.DataFrame] = itertools.repeat(pd.DataFrame())
    if keep and table is not None:
        beside = _read_kept_columns(table, kept.config.data.recipe, list(dict.fromkeys(keep)))
    inputs = iter(kept.test().one_tensor.split(ROWS)) if table is None else kept.batches(table)
    model, count = kept.run.model.to(place), 0
    with ExitStack() as stack:
        file = None if out is None else stack.enter_context(written_whole(out))
        for part, further in zip(inputs, beside, strict=False):
            outputs = predict(model, part).double()
            if not torch.isfinite(outputs).all():
                raise SettingError(
                    f"the model of {str(run)!r} gives no finite numbers: its training diverged. Train with a "
                    "smaller learning rate."
                )
            rows = _prediction_rows(outputs, kept.facts["class_names"], shown)
            if clash := [name for name in further if name in rows]:
                raise SettingError(
                    f"--keep {clash[0]}: the predictions have a column of that name; rename the column of "
                    "the table, or leave it out."
                )
            text = pd.concat([further, rows], axis=1).to_csv(index=False, header=not count)
            count += len(rows)
            if file is None:
                sys.stdout.write(text)
            else:
                file.write(text.encode())
    if out is not None:
        say(f"{count:,} predictions: {out}")


def _read_kept_columns(table: Path, recipe: Recipe, keep: list[str]) -> Iterator[pd.DataFrame]:
    """The columns to write beside the predictions, in the same batches."""
    with readable(table):
        check_names(names_of(table, recipe), {"--keep": keep})
    return written_rows(table, recipe, keep, ROWS)


def _prediction_rows(outputs: torch.Tensor, classes: list[str], decision: Decision) -> pd.DataFrame:
    """A prediction for each row of outputs, [n, classes], as texts."""
    nothing = torch.zeros(len(outputs), dtype=torch.int64)  # targets, which no prediction reads
    found = Predictions.of(outputs, nothing, classes, decision)
    texts = [[f"{share:.6g}" for share in row] for row in found.probabilities.tolist()]
    rows = pd.DataFrame(texts, columns=[f"p({name})" for name in classes])
    rows.insert(0, "prediction", [classes[index] for index in found.predicted])
    return rows
