"""From data to a page: what is written, what is kept, and what bad input gets."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pandas as pd
import pytest

from equidp.comparison import cells
from equidp.data import SOURCES
from equidp.data.dataset import ALL
from equidp.errors import CheckpointError, DataError, TrainingStopped
from papers.reproduction import item as item_module, reproduce as module
from papers.reproduction.accounted import Accounted, HeldExamples
from papers.reproduction.compared import Ablated, Compared
from papers.reproduction.item import COLUMNS, XU, Item, Printed, Request, Verdict
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


TWO = Item(
    "xu-table-9",
    XU,
    "Two datasets",
    (
        Compared("digits", ("dpsgd",), 0.001, changes=LITTLE),
        Compared("demo", ("dpsgd",), 0.002, changes=LITTLE),
    ),
    seeds=2,
)


@pytest.mark.soak
def test_slow_data_may_have_fewer_seeds_and_the_command_says_so(tmp_path):
    with patch.dict(ITEMS, {TWO.name: TWO}), patch.dict(SOURCES, {"demo": SOURCES["digits"]}):
        judged = reproduce_demo(tmp_path, seeds_of={"demo": 1})
    table = judged.result.found.table
    assert table.groupby("data")["seeds"].unique().map(list).to_dict() == {"demo": [1], "digits": [2]}
    assert judged.result.command == "python -m papers reproduce xu-table-9 --seeds-of demo=1"
    assert judged.result.seeds_in_words == "1 to 2 seeds"


def test_the_hours_of_an_item_count_each_study_s_seeds():
    assert TWO.hours() == pytest.approx(0.003)
    assert TWO.hours(4, {"demo": 1}) == pytest.approx((4 * 0.001 + 0.002) / 2)


def test_data_that_is_not_there_is_named_before_anything_is_trained(toy, tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_DATA", str(tmp_path))
    missing = Item("xu-table-9", XU, "A toy", (Compared("papers.utkface:UTKFace", ("dpsgd",), 1.0),))
    with (
        patch.dict(ITEMS, {missing.name: missing}),
        patch.object(cells, "train_cell", side_effect=AssertionError("trained")),
        pytest.raises(DataError, match="UTKFace"),
    ):
        reproduce_demo(tmp_path)


@pytest.mark.soak
def test_a_disk_that_fills_up_leaves_the_kept_runs(toy, tmp_path):
    def full(*_):
        raise OSError(28, "No space left on device")

    with patch.object(module, "write_whole", side_effect=full), pytest.raises(OSError, match="space"):
        reproduce_demo(tmp_path, seeds=1)
    assert not (tmp_path / "results" / f"{TOY.name}.json").exists()
    with patch.object(cells, "train_cell", side_effect=AssertionError("trained again")):
        reproduce_demo(tmp_path, seeds=1)


def test_a_full_disk_does_not_hide_why_a_run_stopped(tmp_path):
    def make(seed, folder):
        folder.mkdir()
        raise CheckpointError("no checkpoint can be kept")

    with (
        patch.object(item_module, "write_whole", side_effect=OSError(28, "No space left on device")),
        pytest.raises(CheckpointError, match="checkpoint"),
    ):
        Request((0,), tmp_path, 1).load_or_make(SMALL, 0, make)


def test_a_stopped_run_counts_the_time_before(tmp_path):
    request = Request((0,), tmp_path, 1)

    def stop_run(seed, folder):
        folder.mkdir()
        raise TrainingStopped("stopped", signal.SIGTERM)

    with pytest.raises(TrainingStopped):
        request.load_or_make(SMALL, 0, stop_run)
    (clock,) = tmp_path.glob("*-study/seconds")
    clock.write_text("1000")
    _, seconds = request.load_or_make(SMALL, 0, lambda seed, folder: pd.DataFrame({"value": [1.0]}))
    assert 1000 < seconds < 2000


@pytest.mark.soak
def test_a_sweep_gives_each_value_its_point(tmp_path):
    study = Compared("digits", ("dpsgd",), 0.001, changes=LITTLE, sweep=("clipping_bound", (0.5, 2.0)))
    rows, seconds = study.rows(Request((0,), tmp_path, 1))
    change = rows[(rows["quantity"] == "change") & (rows["group"] == ALL) & (rows["method"] == "dpsgd")]
    assert sorted(change["at"]) == [0.5, 2.0]
    assert seconds > 0
    assert set(rows[rows["method"] == "sgd"]["at"].isna()) == {True}


@pytest.mark.soak
def test_accuracy_lost_is_followed_over_epochs_and_epsilon_is_that_of_the_run(tmp_path):
    """The last epoch has the figures of the whole run."""
    changes = {**LITTLE, "epochs": 2}
    study = replace(SMALL, changes=changes, by_epoch=("change", "epsilon"), followed=("2", "8"))
    rows, _ = study.rows(Request((0,), tmp_path, 1))
    private = rows[rows["method"] == "dpsgd"]
    change = private[(private["quantity"] == "change") & private["group"].isin(("2", "8"))]
    assert sorted(change["at"].dropna()) == [1, 1, 2, 2]
    last = change[change["at"] == 2].set_index("group")["value"]
    whole = change[change["at"].isna()].set_index("group")["value"]
    assert last.to_dict() == pytest.approx(whole.to_dict(), abs=1e-6)
    assert last.abs().max() > 0
    epsilons = private[private["quantity"] == "epsilon"]
    assert set(epsilons["group"]) == {ALL}
    spent = epsilons.set_index("at")["value"]
    assert spent[1] < spent[2]


@pytest.mark.soak
def test_an_ablation_names_the_error_as_the_method(tmp_path):
    study = Ablated("digits", ("magnitude", "direction"), 0.001, changes=LITTLE)
    rows, _ = study.rows(Request((0,), tmp_path, 1))
    assert set(rows["method"]) == {"magnitude", "direction"}
    with patch("papers.ablation.ablate", side_effect=AssertionError("trained again")):
        again, _ = study.rows(Request((0,), tmp_path, 1))
    pd.testing.assert_frame_equal(rows, again)


@pytest.fixture(scope="module")
def accounted_rows(tmp_path_factory):
    study = Accounted(
        "digits",
        0.001,
        changes={**LITTLE, "epochs": 2},
        median_bound=0.5,
        per_epoch=4,
        held=20,
        attacked=True,
    )
    return study.rows(Request((0,), tmp_path_factory.mktemp("runs"), 1))[0]


def one(rows: pd.DataFrame, quantity: str) -> float:
    return rows[(rows["quantity"] == quantity) & (rows["group"] == ALL)]["value"].iloc[0]


@pytest.mark.soak
def test_no_example_has_more_than_the_epsilon_of_the_run(accounted_rows):
    largest = one(accounted_rows, "epsilon")
    own = accounted_rows[accounted_rows["quantity"] == "epsilon of an example"]["value"]
    assert 0 < own.min() <= own.max() <= largest * (1 + 1e-9)
    quantiles = accounted_rows[accounted_rows["quantity"] == "quantile of epsilon"].sort_values("at")["value"]
    assert quantiles.is_monotonic_increasing
    assert 0 <= one(accounted_rows, "share at the worst case") <= 1


@pytest.mark.soak
def test_a_stopped_run_goes_on_from_its_checkpoint(tmp_path):
    study = Accounted("digits", 0.001, changes={**LITTLE, "epochs": 2}, median_bound=0.5, held=5)
    request, steps, seen, watch = Request((0,), tmp_path, 1), [], [], HeldExamples.after_step

    def stop_run(held, trainer):
        watch(held, trainer)
        steps.append(trainer.steps_done)
        seen.append(held)
        if len(steps) == 5:
            os.kill(os.getpid(), signal.SIGTERM)

    with patch.object(HeldExamples, "after_step", stop_run):
        with pytest.raises(TrainingStopped, match="the same command"):
            study.rows(request)
        (kept,) = tmp_path.glob("*-study/sensitive/HeldExamples-000000005-*.npz")
        whole = kept.read_bytes()
        kept.write_bytes(whole[:100])
        with pytest.raises(CheckpointError, match="damaged"):
            study.rows(request)
        kept.write_bytes(whole)
        rows, _ = study.rows(request)
    assert steps == [*range(1, len(steps) + 1)]
    for counts in (seen[-1].exact, *seen[-1].estimates.values()):
        assert set(counts.sum(axis=1)) == {len(steps)}
    assert sorted(set(rows[rows["quantity"] == "median norm"]["at"])) == [1, 2]
    assert not list(tmp_path.glob("*-study"))


@pytest.mark.soak
def test_individual_clipping_and_no_privacy_are_studies_too(tmp_path):
    request = Request((0,), tmp_path, 1)
    clipped, _ = Accounted("digits", 0.001, changes=LITTLE, clipped=True, per_epoch=1).rows(request)
    assert one(clipped, "individual epsilon") <= one(clipped, "epsilon") * (1 + 1e-9)  # a mean is rounded
    plain, _ = Accounted("digits", 0.001, method="sgd", changes=LITTLE, held=5, attacked=True).rows(request)
    assert set(plain["quantity"]) == {"accuracy", "median norm", "success of membership inference"}


def test_each_paper_has_its_tables_and_figures():
    names = set(ITEMS)
    assert len(names) >= 35
    assert {f"xu-table-{number}" for number in (1, 2, 3)} < names
    assert {f"yu-figure-{number}" for number in range(1, 15)} < names
    assert {f"esipova-table-{number}" for number in (1, 2, 4, 5)} < names
    assert {f"esipova-figure-{number}" for number in (3, 4, 5, 7, 8, 9, 11, 12, 14, 15, 16)} < names


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
