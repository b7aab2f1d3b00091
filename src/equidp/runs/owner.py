"""Notes only for the owner of a run's data, in `private/owner.txt`: epsilon does not cover them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from equidp._files import write_whole
from equidp.data.dataset import ALL, GroupedDataset
from equidp.errors import DataWarning
from equidp.evaluation.evaluation import Evaluation
from equidp.evaluation.leaks import RARELY_TRUE, find_carriers
from equidp.evaluation.metrics import METRICS, metric_named
from equidp.report.evaluation import values_of
from equidp.report.owner import leak_sentence, reference_sentence
from equidp.runs.folder import RunFolder
from equidp.tables.encode import TableEncoder
from equidp.training.run import Run

if TYPE_CHECKING:
    from equidp.runs.saved import FinishedRun

OWNER = "owner.txt"


def note_for_owner(place: RunFolder, sentence: str) -> None:
    """Add a sentence to `private/owner.txt`, unless it holds it."""
    path = place.private / OWNER
    lines = path.read_text().splitlines() if path.exists() else []
    write_whole(path, "\n".join([*lines, *([] if sentence in lines else [sentence]), ""]))


def reference_text(run: FinishedRun, found: Evaluation) -> str:
    """Compare a run with non-private models on its rows; return the result and keep it as a note.

    Args:
        run: run of a table, in its own folder.
        found: its evaluation on its test examples, without examples of few people.
    """
    name = run.config.metric or ("auc" if found.positive else "accuracy")
    metric = metric_named(name)
    own = values_of(found, metric)[ALL].value
    sentence = reference_sentence(run.reference(name), metric, own)
    note_for_owner(RunFolder(run.folder), sentence)
    return sentence


def warn_of_leak(
    place: RunFolder, run: Run, found: Evaluation, test: GroupedDataset, encoder: TableEncoder | None
) -> None:
    """Warn, and note, if a model of a table ranks suspiciously well; name the columns that cause it."""
    if encoder is None or found.values.empty:
        return
    overall = values_of(found, METRICS["auc"]).get(ALL)
    if overall is None or not overall.value > RARELY_TRUE:
        return
    sentence = leak_sentence(overall.value, find_carriers(run.model, encoder, test))
    note_for_owner(place, sentence)
    warnings.warn(sentence, DataWarning, stacklevel=4)  # of who calls equidp.train
