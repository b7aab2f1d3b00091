"""From data to a page: what is written and what is kept."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import pytest

from equidp.data.dataset import ALL
from papers.reproduction.compared import Compared
from papers.reproduction.item import COLUMNS, XU, Item, Printed, Verdict
from papers.reproduction.page import results_page
from papers.reproduction.plots import Bars, Curves
from papers.reproduction.reproduce import ITEMS, judged_items, reproduce
from papers.reproduction.result import Result

ROOT = Path(__file__).parents[2]
LITTLE = {"epochs": 1, "batch_size": 256}
SMALL = Compared("digits", ("dpsgd",), 0.001, changes=LITTLE, by_epoch=("loss",), last=("mean_norm",))
TOY = Item(
    "xu-table-9", XU, "A toy", (SMALL,), seeds=2, printed=(Printed("digits", "sgd", ALL, "accuracy", 2.0),),
    plots=(Bars("Cost", "change", "change"), Curves("Loss", "loss", "loss")),
)  # fmt: skip


@pytest.fixture
def toy():
    with patch.dict(ITEMS, {TOY.name: TOY}):
        yield TOY


def reproduce_demo(place: Path, **changes):
    return reproduce(TOY.name, into=place / "results", directory=place / "runs", jobs=1, **changes)


@pytest.mark.soak
def test_an_item_goes_from_data_to_page_pictures_and_rows(toy, tmp_path):
    judged = reproduce_demo(tmp_path)
    folder = tmp_path / "results" / TOY.name
    names = {
        "index.md",
        "figures.parquet",
        "plot-1.pdf",
        "plot-1.svg",
        "plot-2.pdf",
        "plot-2.svg",
    }
    assert {path.name for path in folder.iterdir()} == names
    assert "A toy" in (folder / "index.md").read_text()
    by_seed = pd.read_parquet(folder / "figures.parquet")
    assert list(by_seed) == COLUMNS
    assert set(by_seed["seed"]) == {0, 1}
    assert judged.state == "differs"  # nothing has an accuracy of 2
    kept = Result.load(tmp_path / "results" / f"{TOY.name}.json")
    assert kept.seeds == (0, 1)
    assert kept.command == "python -m papers reproduce xu-table-9"
    assert kept.found.mean(method="sgd", group=ALL, quantity="accuracy") == pytest.approx(
        by_seed.query("method == 'sgd' and group == 'all' and quantity == 'accuracy'")["value"].mean(),
        rel=1e-5,
    )


@pytest.mark.soak
@pytest.mark.parametrize("item", ITEMS.values(), ids=lambda item: item.name)
def test_an_item_is_whole(item):
    """Its claims judge nothing without figures, and what is printed fits."""
    nothing = Result.of(item, pd.DataFrame(columns=COLUMNS), (0,), 0).found
    assert all(claim.judge(nothing) == Verdict(None) for claim in item.claims)
    labels = {getattr(study, "label", "") or study.data for study in item.studies}
    assert {each.data for each in item.printed} <= labels


@pytest.mark.soak
def test_the_page_of_results_follows_from_the_kept_results():
    """`python -m papers reproduce --page FILE --results papers/results` writes what is there."""
    page = results_page(judged_items(ROOT / "results"))
    assert (ROOT / "results.md").read_text() == page


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*.json")), ids=lambda path: path.stem)
def test_a_kept_result_is_small_and_of_an_item(path):
    result = Result.load(path)
    assert result.item == path.stem
    assert result.item in ITEMS
    assert path.stat().st_size < 300_000
    assert json.loads(path.read_text())["commit"]


@pytest.mark.soak
def test_each_difference_from_print_has_its_reason():
    for judged in judged_items(ROOT / "results"):
        assert judged.unexplained == [], judged.item.name
