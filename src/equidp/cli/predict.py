"""`equidp predict`: the classes that a finished run predicts for new rows."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from equidp._files import check_outputs, written_whole
from equidp.cli import options
from equidp.cli.app import command
from equidp.cli.messages import say
from equidp.runs.saved import open_run
from equidp.training.device import chosen_device

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
        Parameter(help="Columns of the table to write next to the predictions, such as an id."),
    ] = (),
    decision: options.DecisionOptions = options.DecisionOptions(),
    lacking: options.Lacking = (),
    sep: options.RowsSep = None,
    charset: options.RowsCharset = None,
    out: Annotated[
        Path | None, Parameter(help="CSV file; default: standard output.", converter=options.file_name)
    ] = None,
    device: options.Device = "cpu",
    trust_code: options.TrustCode = False,
) -> None:
    """Predict the class of each row, with probabilities, in the order of the rows.

    Positive class and threshold come from the run, unless others are given.
    """
    chosen_device(device)  # refuses one that is not here before the folder is read
    check_outputs({"--out": out}, run, table)
    kept, count = open_run(run, trust_code=trust_code), 0
    check_outputs({"--out": out}, kept.config.data.name)
    batches = kept.predictions(
        table, keep=keep, lacking=lacking, **vars(decision), sep=sep, charset=charset, device=device
    )
    with ExitStack() as stack:
        file = None if out is None else stack.enter_context(written_whole(out))
        for rows in batches:
            text = rows.to_csv(index=False, header=not count, float_format="%.6g")
            count += len(rows)
            if file is None:
                sys.stdout.write(text)
            else:
                file.write(text.encode())
    if out is not None:
        say(f"{count:,} predictions: {out}")
