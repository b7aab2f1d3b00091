"""equidp evaluate: metrics, the positive class and the threshold, as the command line has them."""

from __future__ import annotations

import json
import re
from functools import partial

import numpy as np
import pandas as pd
import pytest

from support.command import QUICK

TRAIN = ("train", "patients.csv", "--target", "ill", "--group", "region")
PLAN = ("--batch-size", "60", "--delta", "1e-4", *QUICK)


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
        code, _, err = equidp(*TRAIN, *PLAN, "--epochs", "4", "--noise-multiplier", "2", "--out", "run")
        assert code == 0, err
    return equidp


@pytest.mark.soak
def test_the_first_line_says_whether_the_model_is_any_good_and_the_rest_is_short(run, place):
    code, out, err = run("evaluate", "run", "--json", "found.json")
    assert code == 0, err
    words = " ".join(out.split())
    assert re.match(r"(Better|No better) than a coin \(0\.5\): AUC 0\.\d+ \(.*\); epsilon [\d.]+\.", words)
    assert "which finds" in words  # recall, as a class is rare
    assert "predicted %" in words
    assert "happened %" in words
    assert out.count("\n") <= 25
    content = json.loads((place / "found.json").read_text())
    assert content["better_than_a_constant_prediction"] is False
    assert {row["metric"] for row in content["values"]} >= {"auc", "brier", "calibration"}
    assert {row["group"] for row in content["calibration"]} == {"north", "south", "all"}
    assert "always predicting 'no'" in " ".join(run("evaluate", "run", "--metric", "accuracy")[1].split())


@pytest.mark.soak
def test_a_runs_own_cut_and_metric_are_those_of_evaluate_and_predict(run, place):
    if not (place / "cut").exists():
        plan = [*PLAN, "--epochs", "4", "--noise-multiplier", "0.5"]
        code, _, err = run(*TRAIN, *plan, "--threshold", "0.03", "--metric", "auc", "--out", "cut")
        assert code == 0, err
    assert run("evaluate", "cut", "--json", "found.json")[0] == 0
    content = json.loads((place / "found.json").read_text())
    assert (content["metric"], content["threshold"]) == ("auc", 0.03)
    for options, threshold in (((), 0.03), (("--threshold", "0.5"), 0.5)):
        assert run("predict", "cut", "patients.csv", "--out", "answers.csv", *options)[0] == 0
        answers = pd.read_csv(place / "answers.csv")
        clear = (answers["p(yes)"] - threshold).abs() > 1e-5
        assert ((answers["prediction"] == "yes") == (answers["p(yes)"] >= threshold))[clear].all()
    assert "a coin (0.5): AUC " in (place / "cut" / "share" / "card.md").read_text()


@pytest.mark.soak
def test_a_base_rate_is_counted_privately_paid_for_and_kept_as_the_runs_threshold(run, place):
    plan = [*PLAN, "--epochs", "2", "--epsilon", "3", "--set", "privacy.counts_share=0.2"]
    code, _, err = run(*TRAIN, *plan, "--threshold", "base-rate", "--out", "counted")
    assert code == 0, err
    counts = json.loads((place / "counted" / "share" / "class-counts.json").read_text())
    assert run("evaluate", "counted", "--json", "counted.json")[0] == 0
    content = json.loads((place / "counted.json").read_text())
    assert content["threshold"] == pytest.approx(counts["yes"] / sum(counts.values()))
    assert 0 < content["threshold"] < 0.3
    assert content["epsilon"] <= 3
