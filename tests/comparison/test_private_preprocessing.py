"""A comparison whose private runs preprocess privately: each cell's epsilon, key and split have it."""

import numpy as np
import pandas as pd
import pytest

import equidp
from equidp.comparison.cells import Cell
from equidp.comparison.compare import prepare
from equidp.comparison.plan import ComparisonPlan
from equidp.data import Recipe, TableSource
from equidp.data.table import releases_of, with_private_noise
from equidp.errors import SettingError
from support.errors import raises_field

PLAN = equidp.Plan(batch_size=100, epochs=1, delta=1e-4)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    rng = np.random.default_rng(0)
    age = rng.integers(20, 60, 600)
    table = pd.DataFrame(
        {
            "age": age,
            "job": rng.choice(["cook", "clerk"], 600),
            "sex": rng.choice(["F", "M"], 600),
            "income": np.where(age > 40, "high", "low"),
        }
    )
    path = tmp_path_factory.mktemp("people") / "people.csv"
    table.to_csv(path, index=False)
    return TableSource(str(path), Recipe(target="income", group=("sex",)))


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    given = {"methods": ["dpsgd"], "seeds": [0], "plan": PLAN, "epsilons": (3.0,), "directory": place}
    return {**given, "jobs": 1, "preprocessing_share": 0.5}


def cells_of(source, asked) -> dict[str, Cell]:
    """First run of each method of a comparison by arguments of `compare`."""
    plan = {name: value for name, value in asked.items() if name not in ("directory", "jobs")}
    prepared = prepare(source, ComparisonPlan(**plan), directory=asked["directory"])
    cells = [cell for cell in prepared.first_cells() if isinstance(cell, Cell)]
    return {cell.plan.method: cell for cell in reversed(cells)}


def compared(source, asked) -> equidp.Comparison:
    """The comparison by arguments of `prepared_by`."""
    given = {name: value for name, value in asked.items() if name not in ("epsilons", "preprocessing_share")}
    if (share := asked["preprocessing_share"]) is not None:
        given |= {"preprocessing": "private", "preprocessing_share": share}
    return equidp.compare(source, epsilon=asked["epsilons"], **given)


@pytest.mark.soak
def test_each_private_run_meets_its_epsilon_with_preprocessing(source, asked):
    comparison = compared(source, asked)
    spent = comparison.results.set_index("method")["epsilon"]
    assert 2.99 < spent["dpsgd"].iloc[0] <= 3.0
    assert np.isinf(spent["sgd"].iloc[0])
    notes = " ".join(comparison.setup.notes)
    assert "Preprocessing was private" in notes
    assert "plain SGD, the reference, was preprocessed exactly" in notes


@pytest.mark.soak
def test_the_share_is_part_of_what_a_run_is_kept_under(source, asked):
    cells = [cells_of(source, {**asked, "preprocessing_share": share}) for share in (None, 0.5, 0.4)]
    names = [{method: cell.key for method, cell in each.items()} for each in cells]
    assert len({each["dpsgd"] for each in names}) == 3
    assert len({each["sgd"] for each in names}) == 1  # the reference preprocesses exactly, whatever the share
    exact, private = (each["dpsgd"] for each in cells[:2])
    assert private.plan.noise_multiplier > exact.plan.noise_multiplier
    (event,) = releases_of(private.source)
    assert private.trainer(private.source.split(0)).entries == ((event, 1),)


@pytest.mark.soak
def test_a_seed_draws_the_same_preprocessing_again(source, asked):
    cell = cells_of(source, asked)["dpsgd"]
    assert cell.source.split(0).digest() == cell.source.split(0).digest()


@pytest.mark.soak
def test_a_source_with_private_noise_of_its_own_is_charged_and_its_note_says_where(source, asked):
    own = with_private_noise(source, 3.0)
    given = {**asked, "preprocessing_share": None}
    comparison = compared(own, given)
    spent = comparison.results.set_index("method")["epsilon"]
    assert 2.99 < spent["dpsgd"].iloc[0] <= 3.0
    private = cells_of(own, given)["dpsgd"]
    exact = cells_of(source, given)["dpsgd"]
    assert private.trainer(own.split(0)).entries == ((releases_of(own)[0], 1),)
    assert private.plan.noise_multiplier > exact.plan.noise_multiplier
    (note,) = own.split(0).notes
    assert "The epsilon of a comparison counts them" in note
    assert note in comparison.setup.notes
    with raises_field(SettingError, "preprocessing_share", "already"):
        compared(own, asked)
