"""Tutorials run as a reader downloads them, and what their text says of the results holds."""

from __future__ import annotations

import runpy
import sys
import warnings
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS))
from _site.gallery import ORDER, tutorial_place  # noqa: E402

FILES = sorted((DOCS / "tutorials").glob("*.py"))


def run_tutorial(name, folder, monkeypatch) -> dict:
    """Names that a tutorial leaves, run in an empty folder, without windows."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*non-interactive")
        return runpy.run_path(str(DOCS / "tutorials" / f"plot_{name}.py"))


def test_each_tutorial_has_its_place_and_is_tested():
    assert sorted(ORDER) == sorted(path.stem.removeprefix("plot_") for path in FILES)
    assert tutorial_place(f"plot_{ORDER[1]}.py") == 1
    assert all(f'run_tutorial("{name}"' in Path(__file__).read_text() for name in ORDER)


@pytest.mark.soak
def test_patients_get_a_card_and_a_run_that_verifies(tmp_path, monkeypatch):
    left = run_tutorial("patients", tmp_path, monkeypatch)
    aucs = left["found"][left["found"]["metric"] == "auc"].set_index("group")
    assert (aucs["low"] > 0.6).all()
    assert (aucs["high"] - aucs["low"]).idxmax() == "west"
    recall = left["found"][left["found"]["metric"] == "recall"].set_index("group")["value"]
    assert recall["all"] > 0.4
    assert 0.72 < (left["visits"]["readmitted"] == "no").mean() < 0.8
    assert (
        "differentially private" in left["Page"](left["folder"] / "run" / "share" / "card.html")._repr_html_()
    )


@pytest.mark.soak
def test_a_loop_spends_what_it_was_given(tmp_path, monkeypatch):
    left = run_tutorial("training_loop", tmp_path, monkeypatch)
    assert 1.95 < left["private"].epsilon() <= 2.0
    assert 0.97 < left["trainer"].run().epsilon() <= 1.0
    accuracy = left["private"].metrics(left["test"]).set_index("group")["accuracy"]
    plain = left["plain"].metrics(left["test"]).set_index("group")["accuracy"]
    assert accuracy["usual"] > 0.85
    assert plain["rare"] > accuracy["rare"] + 0.05
    assert abs(plain["usual"] - accuracy["usual"]) < 0.03


@pytest.mark.soak
def test_the_rare_group_needs_a_larger_epsilon_and_uses_more_of_it(tmp_path, monkeypatch):
    left = run_tutorial("choose_epsilon", tmp_path, monkeypatch)
    lost = left["plain"] - left["private"]
    assert (lost[:, 1] > lost[:, 0] + 4).all()
    assert lost[0, 1] > lost[3, 1] + 5
    assert left["values"][1] < left["private"][3, 1] - 5  # a bound of 1 at epsilon 8
    released = left["released"].set_index("group")["mean"]
    assert released["rare"] > released["usual"]


@pytest.mark.soak
def test_features_and_prototypes_find_more_of_the_rare_digit(tmp_path, monkeypatch):
    left = run_tutorial("rare_digits", tmp_path, monkeypatch)
    pixels, features, prototypes, _ = (found["mean"] for found in left["ways"].values())
    assert pixels["8"] + 20 < features["8"] < prototypes["8"] - 10
    assert pixels["8"] < 15
    others = [str(digit) for digit in range(10) if digit != 8]
    assert 1 < (features - prototypes)[others].mean() < 6
    assert left["found"]["8"] < prototypes["8"]  # at epsilon 3


@pytest.mark.soak
def test_both_methods_are_tuned_alike_and_conclusions_follow_from_the_table(tmp_path, monkeypatch, capsys):
    left = run_tutorial("own_method", tmp_path, monkeypatch)
    tuning = left["comparison"].tuning
    assert set(tuning.trials.groupby("method").size()) == {4}
    assert {"first_share", "learning_rate"} <= set(tuning.ranges["LowerForFirst"])
    differences = left["comparison"].differences()
    assert set(differences["seeds"]) == {5}
    printed = capsys.readouterr().out
    for row in differences.itertuples():
        known = "the methods differ" if row.corrected_p < 0.05 else "five seeds cannot tell"
        assert f"{row.quantity}: {known}" in printed
