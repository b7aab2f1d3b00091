"""A finished run on a table, trained once and copied for each test."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

import equidp
from equidp.data import Recipe
from equidp.evaluation.evaluation import Evaluation
from equidp.runs.begin import begin, prepare
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.train import train
from equidp.training.run import Run

PLAN = equidp.Plan(batch_size=40, epochs=2, noise_multiplier=2.0)
COLUMNS = {"age": {"range": (0.1, 1234567.891)}}


@dataclass(frozen=True)
class Finished:
    """A run's folder, the table beside it, and what training returned."""

    folder: Path
    table: Path
    run: Run
    evaluation: Evaluation

    @property
    def share(self) -> Path:
        return self.folder / "share"

    @property
    def private(self) -> Path:
        return self.folder / "private"


def start(table: Path, folder: Path) -> None:
    """Begin a run on the table; take no step."""
    recipe = Recipe(target="income", group=("sex",), columns=COLUMNS)
    begin(
        prepare(
            TrainConfig(
                RunData(str(table), recipe),
                PLAN.with_changes(method="dpsgd", accountant="rdp"),
            )
        ),
        folder,
    )


@pytest.fixture(scope="session")
def trained(tmp_path_factory) -> Finished:
    place = tmp_path_factory.mktemp("finished")
    table, folder, index = place / "people.csv", place / "run", range(200)
    pd.DataFrame(
        {
            "age": [20 + i % 37 for i in index],
            "job": ["clerk" if i % 3 else "cook" for i in index],
            "sex": ["F" if i % 2 else "M" for i in index],
            "income": ["high" if 20 + i % 37 > 40 else "low" for i in index],
        }
    ).to_csv(table, index=False)
    start(table, folder)
    return Finished(folder, table, *train(folder))


@pytest.fixture
def begun(trained, tmp_path) -> Path:
    """The folder of another run on the same table, that has not taken a step."""
    start(trained.table, tmp_path / "begun")
    return tmp_path / "begun"


@pytest.fixture
def finished(trained, tmp_path) -> Finished:
    folder = shutil.copytree(trained.folder, tmp_path / "run")
    return Finished(folder, trained.table, trained.run, trained.evaluation)
