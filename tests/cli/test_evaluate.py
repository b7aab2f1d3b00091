"""equidp evaluate: metrics, the positive class and the threshold, as the command line has them."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("patients")
    generator = np.random.default_rng(0)
    age, region = generator.normal(50, 10, 1100), generator.choice(["north", "south"], 1100)
    ill = generator.random(1100) < 1 / (1 + np.exp(3 - 0.08 * (age - 50)))
    table = pd.DataFrame({"age": age.round(1), "region": region, "ill": np.where(ill, "yes", "no")})
    table.to_csv(place / "patients.csv", index=False)
    return place


@pytest.fixture
def run(place, command):
    equidp = partial(command, cwd=place)
    if not (place / "run").exists():
        code, _, err = equidp("train", "patients.csv", "--target", "ill", "--group", "region",
                              "--epochs", "4", "--batch-size", "60", "--noise-multiplier", "2",
                              "--accountant", "rdp", "--delta", "1e-4", "--out", "run")  # fmt: skip
        assert code == 0, err
    return equidp


@pytest.mark.soak
def test_the_terminal_and_json_show_metrics_by_group_and_what_accuracy_hides(run, place):
    code, out, err = run("evaluate", "run", "--json", "found.json")
    assert code == 0, err
    for part in (
        "AUC",
        "average precision",
        "Brier score",
        "predicted, %",
        "happened, %",
        "no better than one",
    ):
        assert part in out, part
    assert "Positive class: 'yes', predicted where it is the more probable class" in " ".join(out.split())
    content = json.loads((place / "found.json").read_text())
    assert content["better_than_a_constant_prediction"] is False
    assert {row["metric"] for row in content["values"]} >= {"auc", "brier", "calibration"}
    assert {row["group"] for row in content["calibration"]} == {"north", "south", "all"}


@pytest.mark.soak
def test_a_threshold_changes_answers_and_not_the_ranking(run, place):
    found = {}
    for threshold in ("0.5", "0.02"):
        assert (
            run("evaluate", "run", "--threshold", threshold, "--metric", "auc", "--json", "cut.json")[0] == 0
        )
        content = json.loads((place / "cut.json").read_text())
        found[threshold] = {row["metric"]: row["value"] for row in content["values"] if row["group"] == "all"}
    assert found["0.5"]["auc"] == found["0.02"]["auc"]
    assert found["0.5"]["recall"] < found["0.02"]["recall"]


@pytest.mark.soak
def test_a_base_rate_is_a_public_number(run, place):
    for options in (("0.03",), ("base-rate", "--base-rate", "0.03")):
        assert run("evaluate", "run", "--threshold", *options, "--json", "rate.json")[0] == 0
        assert json.loads((place / "rate.json").read_text())["threshold"] == 0.03


@pytest.mark.soak
def test_reliability_is_shown_by_group_and_risk(run):
    code, out, err = run("evaluate", "run", "--reliability")
    assert code == 0, err
    assert "risk, %" in out


@pytest.mark.soak
def test_a_runs_own_cut_and_metric_are_those_of_evaluate_and_predict(run, place):
    if not (place / "cut").exists():
        code, _, err = run("train", "patients.csv", "--target", "ill", "--group", "region", "--epochs", "4",
                           "--batch-size", "60", "--noise-multiplier", "2", "--accountant", "rdp", "--delta",
                           "1e-4", "--out", "cut", "--threshold", "0.03", "--metric", "auc")  # fmt: skip
        assert code == 0, err
    assert run("evaluate", "cut", "--json", "found.json")[0] == 0
    content = json.loads((place / "found.json").read_text())
    assert (content["metric"], content["threshold"]) == ("auc", 0.03)
    for options, threshold in (((), 0.03), (("--threshold", "0.5"), 0.5)):
        assert run("predict", "cut", "patients.csv", "--out", "answers.csv", *options)[0] == 0
        answers = pd.read_csv(place / "answers.csv")
        clear = (answers["p(yes)"] - threshold).abs() > 1e-5
        assert ((answers["prediction"] == "yes") == (answers["p(yes)"] >= threshold))[clear].all()
    assert "AUC: 0." in (place / "cut" / "card.md").read_text()


@pytest.mark.soak
def test_a_base_rate_is_counted_privately_paid_for_and_kept_as_the_runs_threshold(run, place):
    code, _, err = run("train", "patients.csv", "--target", "ill", "--group", "region", "--epochs", "2",
                       "--batch-size", "60", "--epsilon", "3", "--accountant", "rdp", "--delta", "1e-4",
                       "--set", "counts_share=0.2", "--threshold", "base-rate",
                       "--out", "counted")  # fmt: skip
    assert code == 0, err
    counts = json.loads((place / "counted" / "class-counts.json").read_text())
    assert run("evaluate", "counted", "--json", "counted.json")[0] == 0
    content = json.loads((place / "counted.json").read_text())
    assert content["threshold"] == pytest.approx(counts["yes"] / sum(counts.values()))
    assert 0 < content["threshold"] < 0.3
    assert content["epsilon"] <= 3


@pytest.mark.soak
def test_training_refuses_a_metric_or_class_that_the_data_lacks_before_it_spends(run, place):
    asked = ("train", "patients.csv", "--target", "ill", "--group", "region", "--noise-multiplier", "2")
    for options, message in (
        (("--positive", "ill"), "unknown positive class 'ill'"),
        (("--metric", "aucc"), "Did you mean 'auc'"),
    ):
        code, _, err = run(*asked, "--out", "refused", *options)
        assert code == 2
        assert message in " ".join(err.split())
        assert not (place / "refused").exists()


@pytest.mark.soak
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--metric", "aucc"), "Did you mean 'auc'"),
        (("--metric", "own_metrics:F1"), "unknown metric 'own_metrics:F1'"),
        (("--threshold", "1.5"), "threshold=1.5; expected a number in [0, 1]"),
        (("--threshold", "half"), "expected a number in [0, 1], or base-rate"),
        (("--threshold", "base-rate"), "needs --base-rate, a public number"),
        (("--threshold", "base-rate", "--base-rate", "2"), "base_rate=2.0; expected a number in (0, 1)"),
        (("--base-rate", "0.1"), "give that too"),
        (("--positive", "ill"), "unknown positive class 'ill'"),
    ],
)
def test_bad_input_ends_with_what_to_do(run, options, message):
    code, _, err = run("evaluate", "run", *options)
    assert code == 2
    assert message in " ".join(err.split())
    assert "Traceback" not in err
