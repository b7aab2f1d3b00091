"""A finished run, read from its folder: what predictions and audits need."""

from __future__ import annotations

import filecmp
import itertools
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from equidp._extras import require_extra
from equidp.data.dataset import GroupedDataset, Grouping
from equidp.errors import DataError, DataWarning, SettingError
from equidp.evaluation.evaluation import Evaluation, evaluate
from equidp.evaluation.metrics import Metric, MetricValue, metric_for
from equidp.evaluation.predictions import Decision, Predictions, predict
from equidp.kernel.event import EventCounts
from equidp.policies.table import BASELINE
from equidp.runs.config import TrainConfig
from equidp.runs.decision import DecisionOptions
from equidp.runs.folder import ENCODER, MODEL, RUN, RunFolder, check_sums, not_as_written
from equidp.runs.own_code import check_code
from equidp.runs.verify import Verification, verify
from equidp.tables.columns import check_names, written_rows
from equidp.tables.encode import TableEncoder
from equidp.tables.labels import known_codes
from equidp.tables.new_file import read_new_file
from equidp.tables.read import names_of
from equidp.training.device import chosen_device
from equidp.training.resolved import ResolvedPlan
from equidp.training.run import Run, RunFacts

with require_extra("tables"):
    import pandas as pd
    import safetensors.torch

ROWS = 2**16
"""Rows of a file that are encoded at a time."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, read from its folder.

    Attributes:
        folder: folder of the run.
        config: its configuration.
        facts: facts that followed from configuration and data, as plain values.
        encoder: encoder of the columns of a table or named dataset, or None for data without columns, or if
            the folder does not have it.
        run: trained model and what it cost.
        released: each group's released mean epsilon (group, mean, standard_error), or empty if not released.
        class_counts: training examples of each class, released with noise, or empty if not released.
    """

    folder: Path
    config: TrainConfig
    facts: dict[str, Any]
    encoder: TableEncoder | None
    run: Run
    released: list[dict[str, Any]]
    class_counts: dict[str, float]

    def test(self) -> GroupedDataset:
        """Examples that the run was tested on.

        Raises:
            DataError: the data is missing or changed.
        """
        place = RunFolder(self.folder)
        if not place.has_begun:
            raise DataError(
                f"{place} is a copy of a run's share/, without its data; give a table, or take the run's own "
                "folder.",
                field="data",
            )
        return place.load_same(self.config, self.encoder, self.facts).test

    def reference(self, metric: str | Metric | None = None) -> dict[str, MetricValue]:
        """Return the results of non-private logistic regression and boosted trees on the run's rows and
        inputs, by name. Epsilon does not cover them (`equidp.evaluation.reference`).

        Args:
            metric: None: AUC of two classes, else accuracy.

        Raises:
            DataError: the data is missing or changed.
            SettingError: the run is not of a table, or has no such metric.
        """
        from equidp.evaluation.reference import reference

        split = RunFolder(self.folder).load_same(self.config, self.encoder, self.facts)
        chosen = None if metric is None else metric_for(metric, split.test.class_names)
        return reference(split, chosen, self.config.decision)

    def epsilon(self) -> float:
        """Return epsilon of the whole run, with all that it released, or infinite without privacy."""
        return self.run.epsilon()

    def verify(self) -> Verification:
        """Check that the files of the run agree, and that its epsilon follows from them (`equidp.verify`)."""
        return verify(self.folder)

    def evaluate(
        self,
        file: str | os.PathLike[str] | None = None,
        *,
        baseline: FinishedRun | str | os.PathLike[str] | None = None,
        level: float = 0.95,
        metric: str | Metric | None = None,
        positive: str | None = None,
        threshold: float | str | None = None,
        base_rate: float | None = None,
        lacking: Sequence[str] = (),
        sep: str | None = None,
        charset: str | None = None,
        include_sensitive: bool = False,
        device: str = "cpu",
    ) -> Evaluation:
        """Evaluate the model by group, on the run's test examples or on a file, as `equidp evaluate` does.

        Args:
            file: a CSV or Parquet file with the columns of the run. None: the test examples of the run.
            baseline: run by "sgd" on the same data, or its folder, to show what privacy cost.
            level: level of the intervals.
            metric: metric of costs and gaps. None: the run's metric.
            positive, threshold, base_rate: for two classes, as in `equidp.train`. None: as in the run.
            lacking: columns that may be missing in the file, or have no values or only new values.
            sep, charset: separator and charset of the file. None: as in the run's table.
            include_sensitive: count groups of few people too, in metrics that must not be shared.
            device: device for computing.

        Raises:
            DataError: the file cannot be used, or the data of the run is missing or changed.
            SettingError: an option that cannot be.
        """
        place, other = chosen_device(device), None
        if baseline is not None:
            reference = baseline if isinstance(baseline, FinishedRun) else open_run(baseline)
            self._check_baseline(reference)
            other = reference.run.model.to(place)
        if file is None:
            test = self.test()
        else:
            test = self.with_file_format(sep, charset).read_grouped(Path(file), lacking)
        options = DecisionOptions(positive, threshold, base_rate)
        evaluation = evaluate(
            self.run.model.to(place),
            test,
            level=level,
            baseline=other,
            metric=metric or self.config.metric,
            decision=options.decision(self.config.decision, self.class_counts),
        )
        return evaluation if include_sensitive else evaluation.withholding()

    def predict(self, file: str | os.PathLike[str] | None = None, **options: Any) -> pd.DataFrame:
        """Predict the class of each row, with probabilities, in the order of the rows.

        Args:
            file: a CSV or Parquet file with the columns of the run. None: the test examples of the run.
            options: as in `predictions`.

        Returns:
            Columns that are kept, `prediction`, and `p(CLASS)` of each class; a row for each row of the file.
        """
        return pd.concat([*self.predictions(file, **options)], ignore_index=True)

    def predictions(
        self,
        file: str | os.PathLike[str] | None = None,
        *,
        keep: Sequence[str] = (),
        positive: str | None = None,
        threshold: float | str | None = None,
        base_rate: float | None = None,
        lacking: Sequence[str] = (),
        sep: str | None = None,
        charset: str | None = None,
        device: str = "cpu",
    ) -> Iterator[pd.DataFrame]:
        """Yield what `predict` returns in batches of `ROWS` rows.

        Args:
            file: as in `predict`.
            keep: columns of the file to return with the predictions, such as an id.
            positive, threshold, base_rate: for two classes, as in `equidp.train`. None: as in the run.
            lacking: columns that may be missing in the file, or have no values or only new values.
            sep, charset: separator and charset of the file. None: as in the run's table.
            device: device for computing.

        Raises:
            DataError: the file cannot be used, or the data of the run is missing or changed.
            SettingError: an option that cannot be, or a model whose training diverged.
        """
        place, kept = chosen_device(device), self.with_file_format(sep, charset)
        path, columns = None if file is None else Path(file), list(dict.fromkeys(keep))
        options = DecisionOptions(positive, threshold, base_rate)
        decision = options.decision(self.config.decision, self.class_counts)
        beside: Iterator[pd.DataFrame] = itertools.repeat(pd.DataFrame())
        if columns:
            beside = kept._read_kept_columns(path, columns)
        inputs = iter(self.test().one_tensor.split(ROWS)) if path is None else kept.batches(path, lacking)
        model = self.run.model.to(place)
        for part, further in zip(inputs, beside, strict=False):
            outputs = predict(model, part).double()
            if not torch.isfinite(outputs).all():
                raise SettingError(
                    f"the model of {os.fspath(self.folder)!r} gives no finite numbers: its training "
                    "diverged. Train with a smaller learning rate."
                )
            rows = _prediction_rows(outputs, self.facts["class_names"], decision)
            if clash := [name for name in further if name in rows]:
                raise SettingError(
                    f"keep={clash[0]!r}: the predictions have a column of that name; rename the column of "
                    "the table, or leave it out.",
                    field="keep",
                )
            yield pd.concat([further, rows], axis=1)

    def _read_kept_columns(self, path: Path | None, columns: list[str]) -> Iterator[pd.DataFrame]:
        """Return the columns to return with the predictions, in the same batches."""
        if path is None:
            raise SettingError(f"keep={','.join(columns)} names columns of a table; give the table too.")
        recipe = self.config.data.recipe
        check_names(names_of(path, recipe), {"keep": columns})
        return _in_batches(written_rows(path, recipe, columns))

    def _check_baseline(self, other: FinishedRun) -> None:
        """Raise a SettingError unless the other run is without privacy on the same data."""
        if other.config.plan.method != BASELINE:
            raise SettingError(
                f"{os.fspath(other.folder)!r} was trained by {other.config.plan.method_name}; a baseline is "
                f"a run by {BASELINE}, without privacy."
            )
        if self.config.preprocessing is not None:
            raise SettingError(
                f"{os.fspath(self.folder)!r} was preprocessed privately, so that a run by {BASELINE} reads "
                "other inputs; equidp compare --preprocessing private shows what privacy cost."
            )
        if other.facts["sensitive_data_sha256"] != self.facts["sensitive_data_sha256"]:
            raise SettingError(
                f"{os.fspath(other.folder)!r} was trained on other data, or on another split of it, than "
                f"{os.fspath(self.folder)!r}; train the baseline with the same data and seed."
            )

    def inputs(self, path: Path, lacking: Sequence[str] = ()) -> torch.Tensor:
        """Inputs that the model reads from a file, [n, inputs]. Other columns are left out.

        Args:
            path: path of the file.
            lacking: see `predictions`.

        Raises:
            DataError: the file cannot be used.
            SettingError: the run was not trained on a table.
        """
        return torch.cat([*self.batches(path, lacking)])

    def batches(self, path: Path, lacking: Sequence[str] = ()) -> Iterator[torch.Tensor]:
        """Inputs of a file in batches of `ROWS` rows, after the whole file was checked."""
        encoder = self._table_encoder()
        table = read_new_file(path, self.config.data.recipe, encoder, lacking=lacking)
        return map(encoder.encode, _in_batches(table))

    def _table_encoder(self) -> TableEncoder:
        """Return the encoder of the run's table; raise an error if there is none."""
        is_table = self.config.data.recipe.target is not None
        if self.encoder is None and is_table and not RunFolder(self.folder).has_begun:
            raise DataError(
                f"{ENCODER} is not in {os.fspath(self.folder)!r}, and makes inputs of a table; copy it there "
                "from private/ of the run, if its categories, edges, means and deviations of training rows "
                "may be known: epsilon does not cover them.",
                field=ENCODER,
            )
        if self.encoder is None or not is_table:
            raise SettingError(
                f"{os.fspath(self.folder)!r} was trained on {self.config.data.name}, not on a table; leave "
                "the table out to use its test examples.",
                field="table",
            )
        return self.encoder

    def with_file_format(self, sep: str | None, charset: str | None) -> FinishedRun:
        """Return this run with a separator and charset of files to read. None: as the recipe says."""
        given = {"sep": sep, "charset": charset}
        changes = {name: value for name, value in given.items() if value is not None}
        data = self.config.data
        data = replace(data, recipe=data.recipe.with_changes(changes))
        return replace(self, config=replace(self.config, data=data))

    def read_grouped(self, path: Path, lacking: Sequence[str] = ()) -> GroupedDataset:
        """Read a file with the columns of the run's table, target and groups included.

        It warns about rows that the run was trained on, as long as its data is where it was.

        Args:
            path: path of the file.
            lacking: see `evaluate`.

        Raises:
            DataError: the file cannot be used, or holds classes or groups that the training data lacks.
            SettingError: the run was not trained on a table.
        """
        examples = self._read_examples(path, lacking)
        trained_on = Path(self.config.data.name)
        is_copy = path.is_file() and trained_on.is_file() and filecmp.cmp(path, trained_on, shallow=False)
        if shared := self.facts["num_train"] if is_copy else self._count_trained(examples):
            warnings.warn(
                f"{os.fspath(path)!r} has rows that the run was trained on: {shared:,} of {len(examples):,}. "
                "They tell nothing of new people. Leave it out to test on the rows that were held out.",
                DataWarning,
                stacklevel=2,
            )
        return examples

    def _count_trained(self, examples: GroupedDataset) -> int:
        """Return how many examples are rows that the run was trained on, or 0 if its data is missing."""
        place = RunFolder(self.folder)
        if not place.has_begun:
            return 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # given when the run began
                train = place.load_same(self.config, self.encoder, self.facts).train
        except DataError:
            return 0
        return examples.row_digests.count_shared(train.row_digests)

    def _read_examples(self, path: Path, lacking: Sequence[str]) -> GroupedDataset:
        """Read a file with the columns of the run's table, target and groups included."""
        encoder, recipe, facts = self._table_encoder(), self.config.data.recipe, self.facts
        classes, groups = facts["class_names"], facts["group_names"]
        labels = {each["name"]: each["groups"] for each in facts["groupings"]} | {str(recipe.target): classes}
        table = read_new_file(path, recipe, encoder, labels, lacking)
        return GroupedDataset(
            encoder.encode(table),
            torch.from_numpy(known_codes(table, [str(recipe.target)], classes)),
            torch.from_numpy(known_codes(table, list(recipe.group), groups)),
            tuple(groups),
            tuple(classes),
            people=_people_of_rows(table, recipe.person),
            groupings=tuple(
                Grouping(each["name"], tuple(each["groups"]), tuple(each["places"]))
                for each in facts["groupings"]
            ),
            crossed=recipe.crossed,
        )


def _in_batches(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    for first in range(0, len(table), ROWS):
        yield table.iloc[first : first + ROWS].reset_index(drop=True)


def open_run(folder: str | os.PathLike[str], *, trust_code: bool = False) -> FinishedRun:
    """Read a finished run.

    Args:
        folder: folder of the run, or a copy of its `share/`.
        trust_code: whether to import the method and the model that the folder names by import path. Such code
            can do anything on this machine, so use this only for folders of people whom you trust.

    Raises:
        DataError: there is no run, it is not finished, files were changed or replaced, or it names code that
            is not trusted.
    """
    place = RunFolder(folder)
    config, plan, facts = place.read_settings(trust_code=trust_code)
    place.check_finished()
    check_code(plan, facts, place.path, ("model",))
    encoder = place.read_encoder(config)
    if place.has_begun:
        check_sums(place.private)
    check_sums(place.results, place.resume_command() if place.has_begun else "")
    model = _read_model(place, plan, facts)
    content, *entries = place.read_results()
    if content.get("run") != facts["run"]:
        raise DataError(
            f"{RUN} in {place} is of run {content.get('run')}, and private/ there of run {facts['run']}; "
            "bring back the files that belong together.",
            field="run",
        )
    run = _run_of(model, config, plan, facts, *entries)
    return FinishedRun(place.path, config, facts, encoder, run, place.read_released(), place.read_counts())


def _read_model(place: RunFolder, plan: ResolvedPlan, facts: Mapping[str, Any]) -> nn.Module:
    model: nn.Module = plan.plan.factory(tuple(facts["input_shape"]), len(facts["class_names"]))
    path = place.results / MODEL
    try:
        model.load_state_dict(safetensors.torch.load_file(path))
    except Exception as error:  # of the file, or of weights of another model
        raise not_as_written(path, error) from error
    return model.eval()


def _run_of(
    model: nn.Module,
    config: TrainConfig,
    plan: ResolvedPlan,
    facts: Mapping[str, Any],
    entries: EventCounts,
    not_taken: EventCounts,
) -> Run:
    loss = plan.plan.loss_function or nn.CrossEntropyLoss(reduction="none")
    known = RunFacts(
        num_examples=facts["num_train"],
        rows=config.data.recipe.rows_per_person,
        policy=plan.policy,
        plan=plan,
        class_weighted=plan.plan.class_weight is not None,
        groups=tuple(facts["group_names"]),
    )
    return Run(model, entries, plan.delta, loss, plan.plan.accountant, known, not_taken)


def _prediction_rows(outputs: torch.Tensor, classes: list[str], decision: Decision) -> pd.DataFrame:
    """A prediction for each row of outputs, [n, classes]."""
    nothing = torch.zeros(len(outputs), dtype=torch.int64)  # targets, which no prediction reads
    found = Predictions.of(outputs, nothing, classes, decision)
    rows = pd.DataFrame(found.probabilities, columns=[f"p({name})" for name in classes])
    rows.insert(0, "prediction", [classes[index] for index in found.predicted])
    return rows


def _people_of_rows(table: pd.DataFrame, person: str | None) -> torch.Tensor | None:
    """Person of each row, [n], as numbers. All rows without a value count as one person."""
    if person is None:
        return None
    if person not in table:
        warnings.warn(
            f"the table lacks {person!r}, which says whose rows they are: each of its {len(table):,} rows "
            "counts as a person of its own, so that metrics may be of few people. Add that column before "
            "they are given to others.",
            DataWarning,
            stacklevel=3,
        )
        return None
    return torch.from_numpy(pd.factorize(table[person])[0].astype(np.int64))
