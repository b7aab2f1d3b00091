"""A finished run, read from its folder: what predictions and audits need."""

from __future__ import annotations

import filecmp
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from equidp._extras import require_extra
from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError, DataWarning, SettingError
from equidp.evaluation.effects import Effect, column_effects
from equidp.kernel.epsilon import Entries
from equidp.ledger.format import read_ledger
from equidp.runs import layout
from equidp.runs.config import TrainConfig
from equidp.tables.checks import (
    LABEL_REMEDY,
    MISSING_NUMBERS,
    check_read,
    check_spelling,
    refuse,
)
from equidp.tables.columns import Columns, Table, blocks, read_table
from equidp.tables.encode import NumericColumn, TableEncoder
from equidp.tables.labels import known_codes
from equidp.tables.read import content_digest, names_of
from equidp.training.plan import ResolvedPlan
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
        folder: of the run.
        config: its configuration.
        facts: that followed from configuration and data, as plain values.
        encoder: of the columns of a table or of a named dataset; None for data without columns, or where the
            folder does not hold it.
        run: the trained model and what it cost.
        released: each group's released mean epsilon (group, mean, standard_error); empty if not released.
        class_counts: training examples of each class, released with noise; empty if not released.
    """

    folder: Path
    config: TrainConfig
    facts: dict[str, Any]
    encoder: TableEncoder | None
    run: Run
    released: list[dict[str, Any]]
    class_counts: dict[str, float]

    def effects(self) -> tuple[Effect, ...]:
        """Effect of each column of a table that was cut into intervals; empty unless the model is additive.

        Edges and texts that are not `Effect.public` come from training rows, which epsilon does not cover.
        """
        if self.encoder is None:
            return ()
        classes = self.facts["class_names"]
        return column_effects(self.encoder, self.run.model, len(classes), self.config.decision.index(classes))

    def test(self) -> GroupedDataset:
        """Examples that the run was tested on.

        Raises:
            DataError: the data is missing or changed.
        """
        if layout.is_given(self.folder):
            raise DataError(
                f"{os.fspath(self.folder)!r} holds the shareable files of a run, without its data; "
                "give a table, or take the run's own folder.",
                field="data",
            )
        return layout.load_same(self.config, self.encoder, self.facts, self.folder).test

    def inputs(self, path: Path) -> torch.Tensor:
        """Inputs that the model reads from a file, [n, inputs]; other columns are left out.

        Raises:
            DataError: the file cannot be used.
            SettingError: the run was not trained on a table.
        """
        return torch.cat([*self.batches(path)])

    def batches(self, path: Path) -> Iterator[torch.Tensor]:
        """Inputs of a file in batches of `ROWS` rows, after the whole file was checked."""
        table = self._read(path).table
        self._check(table)
        assert self.encoder is not None
        return map(self.encoder.encode, blocks(table, ROWS))

    def _read(self, path: Path, *further: str) -> Columns:
        if (
            self.encoder is None
            and layout.is_given(self.folder)
            and self.config.data.recipe.target is not None
        ):
            raise DataError(
                f"{layout.ENCODER} is not in {os.fspath(self.folder)!r}, and makes inputs of a table; bring "
                "it from the folder of the run. Its categories, edges, means and deviations follow from "
                "training rows, unless the run has private preprocessing.",
                field=layout.ENCODER,
            )
        if self.encoder is None or self.config.data.recipe.target is None:
            raise SettingError(
                f"{os.fspath(self.folder)!r} was trained on {self.config.data.name}, not on a table; leave "
                "the table out to use its test examples.",
                field="table",
            )
        columns, recipe = self.encoder.columns, self.config.data.recipe
        was_numeric = {each.name: isinstance(each, NumericColumn) for each in columns}
        was_numeric |= {name: name not in self.encoder.textual for name in further}
        names = list(dict.fromkeys([*(each.name for each in columns), *further]))
        read = read_table(path, recipe, only=names, fewest=1, was_numeric=was_numeric)
        if Path(path).exists() and any(name not in read.table for name in names):
            check_spelling(names_of(Path(path), recipe), names)
        refuse(path, read.problems)
        for note in read.notes:
            warnings.warn(note, DataWarning, stacklevel=3)
        for each in columns:
            if (
                isinstance(each, NumericColumn)
                and each.name in read.table
                and read.table[each.name].dtype != float
            ):
                raise DataError(
                    f"column {each.name!r} holds texts{read.first_text_phrase(each.name)}, where the "
                    "training data had numbers; write them with the marks of the training data, and leave "
                    "cells without a number empty."
                )
        return self._add_missing_columns(read)

    def _add_missing_columns(self, read: Columns) -> Columns:
        """Add columns that the table lacks as missing values, if the model has an input for missing ones."""
        assert self.encoder is not None
        lacking = [
            each for each in self.encoder.columns if each.name not in read.table and each.marks_missing
        ]
        if not lacking:
            return read
        listed = ", ".join(repr(each.name) for each in lacking)
        warnings.warn(
            f"the table lacks {listed}: in every row the model takes that for a missing value, which it has "
            "a mark for.",
            DataWarning,
            stacklevel=4,
        )
        further = {
            each.name: pd.Series(
                np.nan if isinstance(each, NumericColumn) else None,
                index=range(len(read.table)),
                dtype=float if isinstance(each, NumericColumn) else object,
            )
            for each in lacking
        }
        return replace(read, table=read.table.assign(**further))

    def with_file_format(self, sep: str | None, charset: str | None) -> FinishedRun:
        """Return this run with a separator and charset of files to read; None: as the recipe says."""
        given = {"sep": sep, "charset": charset}
        changes = {name: value for name, value in given.items() if value is not None}
        data = self.config.data
        data = replace(data, recipe=data.recipe.with_changes(changes))
        return replace(self, config=replace(self.config, data=data))

    def _check(self, table: Table | pd.DataFrame) -> None:
        """Raise on values that cannot be encoded; warn of values that the training data did not have."""
        assert self.encoder is not None
        self.encoder.check(table)
        unseen = self.encoder.unseen(table)
        codes = {
            column.name: count
            for column in self.encoder.columns
            if isinstance(column, NumericColumn) and (count := _count_codes(table[column.name], column))
        }
        if codes:
            listed = ", ".join(f"{name!r}: {count:,}" for name, count in codes.items())
            warnings.warn(
                f"of {len(table):,} rows, some hold a number such as -999, far from the training data "
                f"({listed}); if it stands for a missing value, leave those cells empty, or train with --na.",
                DataWarning,
                stacklevel=3,
            )
        if unseen:
            listed = ", ".join(f"{name!r}: {count:,}" for name, count in unseen.items())
            warnings.warn(
                f"of {len(table):,} rows, some have values {_unseen_clause(self.encoder)} ({listed}); the "
                "model takes no notice of those values.",
                DataWarning,
                stacklevel=3,
            )

    def read_grouped(self, path: Path) -> GroupedDataset:
        """Read a file with the columns of the run's table, target and groups included.

        Warns of rows that the run was trained on, as long as its data is where it was.

        Raises:
            DataError: the file cannot be used, or holds classes or groups that the training data lacks.
            SettingError: the run was not trained on a table.
        """
        found = self._read_examples(path)
        if _same_content(path, Path(self.config.data.name)):
            which = "is the file that the run was trained on, or a copy: most of its rows"
        elif shared := self._count_trained(found):
            which = f"has rows that the run was trained on: {shared:,} of {len(found):,}"
        else:
            return found
        warnings.warn(
            f"{os.fspath(path)!r} {which} are training examples, and tell nothing of new people. Leave it "
            "out to test on the rows that were held out.",
            DataWarning,
            stacklevel=2,
        )
        return found

    def _count_trained(self, examples: GroupedDataset) -> int:
        """Return how many examples are rows that the run was trained on; 0 where its data is not there."""
        if layout.is_given(self.folder):
            return 0
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DataWarning)  # given when the run began
                train = layout.load_same(self.config, self.encoder, self.facts, self.folder).train
        except DataError:
            return 0
        return examples.row_digests.count_shared(train.row_digests)

    def _read_examples(self, path: Path) -> GroupedDataset:
        """Read a file with the columns of the run's table, target and groups included."""
        config, classes, groups = self.config, self.facts["class_names"], self.facts["group_names"]
        columns, person = (
            [str(config.data.recipe.target), *config.data.recipe.group],
            config.data.recipe.person,
        )
        read = self._read(path, *columns, *([] if person is None else [person]))
        table = read.table
        check_read(table, columns, LABEL_REMEDY)
        people = _people_of_rows(table, person)
        targets = torch.from_numpy(known_codes(table, columns[:1], classes))
        self._check(table)
        found = targets, torch.from_numpy(known_codes(table, columns[1:], groups))
        names = tuple(groups), tuple(classes)
        assert self.encoder is not None
        inputs = self.encoder.encode(table)
        return GroupedDataset(inputs, *found, *names, people=people)


def open_run(folder: str | os.PathLike[str], *, trust_code: bool = False) -> FinishedRun:
    """Read a finished run.

    Args:
        folder: of the run, or a copy of its shareable files.
        trust_code: import the method and the model that the folder names by import path. Such code can do
            anything on this machine, so give it for folders of people whom you trust alone.

    Raises:
        DataError: there is no run, it is not finished, files were changed or replaced, or it names code that
            is not trusted.
        BudgetError: its ledger was damaged or edited.
    """
    place = Path(folder)
    config, plan, facts = layout.read_config(place, trust_code=trust_code)
    if not (place / layout.MODEL).exists():
        layout.refuse_unfinished(place)
    layout.check_code(plan, facts, place, ("model",))
    encoder = layout.read_encoder(place, config)
    model = _read_model(place, config, plan, facts)
    if layout.is_given(place):
        entries = layout.read_given_entries(place)
        _check_card(place)
        layout.check_given(place)
    else:
        ledger = read_ledger(place / layout.LEDGER)
        entries = ledger.entries
        _check_card(place, ledger.checks[-1])
        layout.check_files(place, config)
    run = _run_of(model, config, plan, facts, entries)
    return FinishedRun(
        place, config, facts, encoder, run, layout.read_released(place), layout.read_counts(place)
    )


def _read_model(place: Path, config: TrainConfig, plan: ResolvedPlan, facts: Mapping[str, Any]) -> nn.Module:
    model = plan.plan.factory(tuple(facts["input_shape"]), len(facts["class_names"]))
    try:
        model.load_state_dict(safetensors.torch.load_file(place / layout.MODEL))
    except Exception as error:  # of the file, or of weights of another model
        raise DataError(
            f"{layout.MODEL} in {os.fspath(place)!r} is not as equidp wrote it ({type(error).__name__}); "
            "bring it back.",
            field=layout.MODEL,
        ) from error
    return model.eval()


def _run_of(
    model: nn.Module, config: TrainConfig, plan: ResolvedPlan, facts: Mapping[str, Any], entries: Entries
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
    return Run(model, entries, plan.delta, loss, config.target.accountant, known)


def _check_card(place: Path, check: str = "") -> None:
    """Raise unless the card, written last, names the file of the weights and the ledger's last checksum."""
    card = layout.read_text(place, layout.CARD)
    for what, digest in ((layout.MODEL, layout.file_digest(place / layout.MODEL)), ("the ledger", check)):
        if digest not in card:
            raise DataError(
                f"{what} in {os.fspath(place)!r} is not the one that {layout.CARD} there names: one of them "
                "was replaced. Bring back all of the run's files as equidp wrote them.",
                field=what,
            )


def _people_of_rows(table: Table | pd.DataFrame, person: str | None) -> torch.Tensor | None:
    """Person of each row, [n], as numbers; all rows without a value count as one person."""
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


def _unseen_clause(encoder: TableEncoder) -> str:
    """Part of a sentence: why values have no input."""
    if encoder.private:
        return "that the training data did not, or too few rows of it for private preprocessing to keep"
    return "that the training data did not"


def _same_content(path: Path, other: Path) -> bool:
    """Return True if two files, or two folders of files, have the same content."""
    if path.is_file() and other.is_file():
        return filecmp.cmp(path, other, shallow=False)
    return path.is_dir() and other.is_dir() and content_digest(path) == content_digest(other)


def _count_codes(column: pd.Series, known: NumericColumn) -> int:
    """Number of cells with a usual code for a missing value, such as -999, far from the training data."""
    return int((known.far(column) & column.isin(MISSING_NUMBERS)).sum())
