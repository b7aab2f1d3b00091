"""`equidp train --person`: from a table with several rows of a person to a card that speaks of people."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from equidp.data import Recipe, open_source, table as table_module
from equidp.data.table import with_private_noise
from equidp.errors import DataError
from equidp.runs.saved import open_run
from support.errors import raises_field

RECIPE = Recipe(target="ill", group=("sex",), person="id", rows_per_person=3)
FAST = ("--noise-multiplier", "2", "--epochs", "2", "--batch-size", "16", "--set", "privacy.accountant=rdp")


def table(people: int = 120) -> pd.DataFrame:
    """One to six rows of a person, in no order; ids are numbers and texts, and look messy."""
    draw = np.random.default_rng(4)
    rows = [
        {"id": f"00{who} x" if who % 2 else who, "sex": "FM"[who % 2], "age": 20 + who % 50}
        for who in range(people)
        for _ in range(int(draw.integers(1, 7)))
    ]
    made = pd.DataFrame(rows).sample(frac=1, random_state=1).reset_index(drop=True)
    made["lab"] = draw.normal(size=len(made))
    made["ill"] = np.where(made["lab"] > 0, "yes", "no")
    return made


@pytest.fixture
def run_command(command, tmp_path):
    """Run the command in this process: its exit code, standard output and standard error."""

    def run(*arguments):
        return Done(*command(*map(str, arguments), cwd=tmp_path))

    return run


class Done(NamedTuple):
    exit_code: int
    out: str
    err: str


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "people.csv"
    table().to_csv(path, index=False)
    return path


@pytest.mark.soak
@pytest.mark.filterwarnings("default::equidp.errors.DataWarning")
def test_a_run_from_table_to_card_is_about_people(run_command, file, tmp_path):
    options = ("--target", "ill", "--group", "sex", "--person", "id", "--rows-per-person", "3")
    done = run_command("train", file, *options, *FAST, "--out", tmp_path / "run")
    assert done.exit_code == 0, done.err
    assert "sensitive, not for release:" in done.err
    assert "for each person in the training data" in done.out
    card = (tmp_path / "run" / "share" / "card.md").read_text()
    assert "differ by one person" in card
    assert "| most rows of a person | 3 |" in card
    assert "A training example is a person with all their rows" in card
    assert "not for release" not in card  # how many rows were left out is nobody else's business
    kept = open_run(tmp_path / "run")
    assert kept.run.facts.rows == 3
    assert kept.facts["num_train"] == kept.run.facts.num_examples < 120
    assert {each.name for each in kept.encoder.columns} == {"age", "lab"}
    assert "1 run on people." in run_command("verify", tmp_path / "run" / "private" / "ledger").out
    said = run_command("predict", tmp_path / "run", file)
    assert said.exit_code == 0, said.err
    assert len(said.out.splitlines()) == 1 + len(table())


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
def test_nobody_is_on_both_sides_and_others_do_not_decide_on_which(file):
    split = open_source(str(file), recipe=RECIPE).split(0)
    read = table()
    sides = {}
    for seed in (0, 1):
        rows = open_source(str(file), recipe=RECIPE).split_rows(seed)
        trained, tested = set(read["id"].iloc[rows.train]), set(read["id"].iloc[rows.test])
        assert trained.isdisjoint(tested)
        assert trained | tested == set(read["id"])
        assert (read["id"].isin(tested)).sum() == len(rows.test)  # all rows of a person who is tested on
        sides[seed] = tested
    assert sides[0] != sides[1]
    assert len(split.train) + len(sides[0]) == 120
    assert len(split.test.people.unique()) == len(sides[0])
    gone = read[read["id"] != read["id"].iloc[0]]
    gone.to_csv(file, index=False)
    rows = open_source(str(file), recipe=RECIPE).split_rows(0)
    assert set(gone["id"].iloc[rows.test]) == sides[0] - {read["id"].iloc[0]}


@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
def test_what_is_released_of_rows_reads_one_row_of_each_person(file, monkeypatch):
    read, fit = [], table_module.fit_encoder
    monkeypatch.setattr(
        table_module, "fit_encoder", lambda *given, **how: read.append(given[1]) or fit(*given, **how)
    )
    source = with_private_noise(open_source(str(file), recipe=RECIPE), 5.0)
    rows = source.split_rows(0)
    source.split(0)
    assert read[0].tolist() == rows.people.first.tolist()
    assert len(read[0]) == len(rows.people.places) < len(rows.train)


def test_a_person_without_a_name_is_refused(file):
    made = table()
    made.loc[[3, 8], "id"] = None
    made.to_csv(file, index=False)
    with raises_field(DataError, "table", "person 'id'", "2 of 444"):
        open_source(str(file), recipe=RECIPE).split(0)
