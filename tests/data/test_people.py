"""Rows by person: whose rows are kept follows from that person and the seed alone."""

from __future__ import annotations

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, strategies as st

import equidp
from equidp.data.people import PeoplesRows, by_person, rows_by_person
from equidp.errors import DataError, DataWarning, SettingError
from equidp.evaluation.evaluation import evaluate
from equidp.ledger.ledger import Ledger
from equidp.tables.recipe import Recipe
from support.errors import raises_field
from support.toy import make_trainer, toy


def kept_of(people: list[str], rows: list[str], most_rows: int, seed: int) -> dict[str, list[str]]:
    """The kept rows of each person, by name."""
    chosen = PeoplesRows.choose_rows(people, most_rows, seed)
    return {
        people[places[0]]: [rows[at] for at, there in zip(places, present, strict=True) if there]
        for places, present in zip(chosen.places, chosen.present, strict=True)
    }


@pytest.mark.soak
@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    most_rows=st.integers(1, 5),
    seed=st.integers(0, 99),
    order=st.randoms(use_true_random=False),
)
def test_rows_are_drawn_from_a_persons_own_rows_alone(sizes, most_rows, seed, order):
    """One person more, anywhere in the table, changes the rows of nobody else."""
    table = [(f"p{person}", f"p{person}r{row}") for person, size in enumerate(sizes) for row in range(size)]
    turns = [person for person, _ in table]
    order.shuffle(turns)  # people's rows in turns, each person's own in order
    left = {person: iter([row for owner, row in table if owner == person]) for person, _ in table}
    rows = [next(left[person]) for person in turns]
    whole = kept_of(turns, rows, most_rows, seed)
    without = [(person, row) for person, row in zip(turns, rows, strict=True) if person != "p0"]
    if without:
        others = kept_of([person for person, _ in without], [row for _, row in without], most_rows, seed)
        assert others == {person: kept for person, kept in whole.items() if person != "p0"}
    for person, size in enumerate(sizes):
        kept = whole[f"p{person}"]
        assert len(set(kept)) == len(kept) == min(size, most_rows)
        assert all(row.startswith(f"p{person}r") for row in kept)


def test_every_row_is_drawn_as_often():
    """Seeds 0 to 999: two of three rows, each kept 667 times; four deviations of 15 are beyond 60."""
    counts = np.zeros(3)
    for seed in range(1000):
        counts[PeoplesRows.choose_rows([7, 7, 7], 2, seed).places[0]] += 1
    assert np.abs(counts - 2000 / 3).max() < 60


def test_people_become_examples_and_padding_counts_nothing():
    rows = toy(9)
    data = by_person(rows, [5, 5, 5, 8, 8, 2, 2, 2, 2], most_rows=4)
    assert data.inputs.shape == (3, 4, 5)
    assert data.weights.tolist() == [[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]]
    assert torch.equal(data.inputs[1, :2], rows.inputs[3:5])
    assert torch.equal(data.inputs[1, 2], rows.inputs[3])  # its own
    assert data.groups.tolist() == rows.groups[[0, 3, 5]].tolist()  # of the first row
    assert data.input_shape == (5,)
    assert len(data) == 3
    assert torch.equal(data.subset(torch.tensor([2])).targets[0], rows.targets[5:])


def test_the_owner_is_told_what_is_left_out():
    with pytest.warns(
        DataWarning, match="sensitive, not for release: 1 of 2 people have more than 2 rows, so 3"
    ):
        by_person(toy(6), [1, 1, 1, 1, 1, 2], most_rows=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        by_person(toy(6), [1, 1, 1, 1, 1, 2], most_rows=5)


def test_bad_people_are_refused_in_words():
    with raises_field(SettingError, "most_rows"):
        by_person(toy(4), [1, 1, 2, 2], most_rows=0)
    with raises_field(DataError, "people"):
        by_person(toy(4), ["a", None, "b", "b"], most_rows=2)
    with raises_field(DataError, "people"):
        by_person(toy(4), [1, 2, 3], most_rows=2)
    for wrong in ("aabb", {0: 1, 1: 1, 2: 2, 3: 2}, [[1], [1], [2], [2]], torch.ones(4, 1), torch.tensor(1)):
        with raises_field(DataError, "people"):
            by_person(toy(4), wrong, most_rows=2)
    with raises_field(DataError, "rows"):
        by_person(by_person(toy(4), [1, 1, 2, 2], most_rows=2), [1, 2], most_rows=2)


@pytest.mark.parametrize("people", [[1, "1", 2, "2"], [b"a", "a", "b", "b"], pd.Categorical([1, "1", 2, 2])])
def test_one_person_does_not_count_as_two_by_the_type_of_an_identifier(people):
    """As pandas reads a long column in parts, some of which hold texts."""
    data = equidp.GroupedDataset(
        torch.eye(4), torch.tensor([0, 1, 0, 1]), torch.zeros(4, dtype=torch.int64), ("a",), ("no", "yes")
    )
    with raises_field(DataError, "people"):
        by_person(data, people, most_rows=2)
    classifier = equidp.PrivateClassifier(rows_per_person=2, epochs=1)
    with raises_field(DataError, "people"):
        classifier.fit(np.eye(4), [0, 1, 0, 1], people=people)
    assert len(by_person(data, pd.Series(["1", "1", "2", "2"]), most_rows=2)) == 2


def test_people_are_trained_on_and_rows_tested_on():
    rows = toy(8)
    people = by_person(rows, [1, 1, 2, 2, 3, 3, 4, 4], most_rows=2)
    with raises_field(DataError, "rows"):
        equidp.DataSplit(people, people)
    with raises_field(DataError, "rows"):
        evaluate(torch.nn.Linear(5, 2), people)


def test_ids_that_differ_in_their_last_digits_are_split_apart():
    """Sixteen digits: no text of twelve stands for two of them, whose draws would depend on one another."""
    ids = 1e15 + np.arange(40.0)
    table = pd.DataFrame({"id": ids, "sex": ["F", "M"] * 20})
    recipe = Recipe(target="ill", group=("sex",), person="id", rows_per_person=1, test_share=0.5)
    groups = np.arange(40) % 2
    _, _, tested, _ = rows_by_person(table, recipe, groups, 0)
    _, _, without, _ = rows_by_person(table[1:], recipe, groups[1:], 0)
    assert set(table["id"].iloc[1:].iloc[without]) == set(ids[tested]) - {ids[0]}
    assert 5 < len(tested) < 35


@pytest.mark.soak
@pytest.mark.parametrize("first", ["rows", "people"])
def test_a_ledger_counts_rows_or_people_and_not_both(first, tmp_path):
    rows = toy(60)
    people = by_person(rows, np.arange(60) // 2, most_rows=2)
    data, other = (rows, people) if first == "rows" else (people, rows)
    asked = {"batch_size": 10, "steps": 1, "epochs": None, "delta": 1e-4, "accountant": "rdp"}
    assert make_trainer(data, **asked).ledger.unit == first
    with Ledger(tmp_path / "ledger", unit=first) as ledger:
        with raises_field(equidp.BudgetError, "unit"):
            make_trainer(other, **asked, ledger=ledger)
        make_trainer(data, **asked, ledger=ledger).fit()
    with Ledger(tmp_path / "ledger") as ledger:
        assert ledger.unit == first
        with raises_field(equidp.BudgetError, "unit"):
            make_trainer(other, **asked, ledger=ledger)
