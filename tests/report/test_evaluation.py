"""Sentences on blind spots and wrong risks name causes that the run has, and what corrects them."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

import equidp
from equidp.display import Table
from equidp.evaluation.evaluation import BlindSpots, evaluate
from equidp.report.evaluation import (
    blind_spot_sentences,
    evaluation_blocks,
    gap_sentences,
    risk_sentences,
    summary_sentence,
)
from equidp.training.run import RunFacts
from support.toy import make_trainer, toy

ALL, NORTH = ("all", 0.02, 0.08), ("north", 0.089, 0.052)


def said(*off: tuple[str, float, float], **facts) -> str:
    rows = pd.DataFrame(off, columns=["group", "mean_predicted", "observed"]).assign(off=True)
    return " ".join(
        risk_sentences(replace(evaluate(nn.Linear(5, 2), toy()), calibration=rows), RunFacts(**facts))
    )


def test_a_private_run_is_told_of_clipping():
    text = said(ALL, NORTH, policy=equidp.DPSGD())
    assert "2.0% predicted where 8.0% happened; group north: 8.9% predicted where 5.2% happened" in text
    assert "lengths of gradients" in text


@pytest.mark.parametrize("off", [ALL, NORTH])
def test_where_nothing_was_clipped_clipping_is_no_cause(off):
    text = said(off, policy=equidp.SGD())
    assert "shift" not in text
    assert "bound" not in text


@pytest.mark.parametrize("policy", [equidp.DPSGD(), equidp.SGD()])
def test_what_acts_on_all_groups_is_no_cure_for_some(policy):
    text = said(NORTH, policy=policy)
    assert "that distinguish these groups" in text


def test_weights_of_classes_are_named_as_the_cause():
    assert "--class-weight" in said(ALL, policy=equidp.DPSGD(), class_weighted=True)
    assert said(policy=equidp.DPSGD()) == ""


def test_a_run_knows_what_shifts_its_risks():
    facts = make_trainer(epochs=1).fit().facts
    assert (facts.policy.private, facts.class_weighted) == (True, False)
    plain = make_trainer(epochs=1, method=equidp.SGD(), noise_multiplier=None)
    assert plain.fit().facts.policy.private is False
    weighted = equidp.losses.Loss(nn.CrossEntropyLoss(reduction="none"), torch.tensor([1.0, 2.0]))
    assert make_trainer(epochs=1, loss=weighted).fit().facts.class_weighted


def test_blind_spots_are_said():
    spots = BlindSpots("well", 0.75, ("ill", "dead"), uninformative=True, ranking_auc=0.7)
    evaluation = replace(evaluate(nn.Linear(5, 2), toy()), blind_spots=spots)
    never, nothing, ranking = blind_spot_sentences(evaluation)
    assert never == "The model predicts 'ill', 'dead' for no test example."
    assert nothing.startswith("By accuracy the model is no better than one constant prediction")
    assert "Its ranking is informative (AUC 0.700)" in ranking
    assert blind_spot_sentences(replace(evaluation, blind_spots=BlindSpots("well", 0.55))) == []
    assert blind_spot_sentences(replace(evaluation, blind_spots=None)) == []
    by_auc = replace(evaluation, blind_spots=BlindSpots("well", 0.95))
    share = "Always predicting 'well' would be correct for 95.0% of the test examples."
    assert blind_spot_sentences(by_auc) == [share]


@pytest.mark.parametrize("uninformative", [True, False])
def test_no_fairness_is_stated_of_a_model_whose_metrics_say_nothing_about_it(uninformative):
    found = evaluate(nn.Linear(5, 2), toy())
    assert found.blind_spots is not None
    assert found.gaps
    found = replace(found, blind_spots=replace(found.blind_spots, uninformative=uninformative))
    assert (gap_sentences(found) == []) == uninformative


def test_a_threshold_that_was_given_is_not_advised_again():
    """By a low threshold accuracy is low on purpose, so it is not held against the model."""
    found = evaluate(nn.Linear(5, 2), toy())
    spots = replace(found.blind_spots, uninformative=True, ranking_auc=0.7)
    found = replace(found, blind_spots=spots, threshold=0.07)
    text = " ".join([*blind_spot_sentences(found), summary_sentence(found)])
    assert "threshold" not in text
    assert "constant prediction" not in text
    assert "a coin (0.5): AUC" in summary_sentence(found)
    assert gap_sentences(found)


def test_one_metric_a_table_and_the_same_groups_in_each():
    found = evaluate(nn.Linear(5, 2), toy())
    tables = [each for each in evaluation_blocks(found, RunFacts()) if isinstance(each, Table)]
    heads = [table.columns[-1].heading for table in tables]
    assert heads == ["accuracy, %", "AUC", "recall, %", "happened, %"]
    for table in tables:
        assert {str(row[0]) for row in table.rows} == {"a", "b", "all"}


def test_a_value_that_is_not_defined_is_a_dash():
    """Groups that are classes have no AUC."""
    inputs = torch.randn(60, 3)
    groups = (inputs[:, 0] > 0).long()
    classes = equidp.GroupedDataset(inputs, groups, groups, ("a", "b"), ("no", "yes"))
    found = evaluate(nn.Linear(3, 2), classes, metric="auc")
    first = next(each for each in evaluation_blocks(found, RunFacts()) if isinstance(each, Table))
    assert [first.columns[-1].parts(row[-1]) for row in first.rows[:2]] == [("–", "")] * 2
