"""Sentences on wrong risks name causes that the run has."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
import torch
from torch import nn

import equidp
from equidp.evaluation.evaluation import evaluate
from equidp.report.evaluation import (
    gap_sentences,
    risk_sentences,
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


def test_a_run_knows_what_shifts_its_risks():
    facts = make_trainer(epochs=1).fit().facts
    assert (facts.policy.private, facts.class_weighted) == (True, False)
    plain = make_trainer(epochs=1, method=equidp.SGD(), noise_multiplier=None)
    assert plain.fit().facts.policy.private is False
    weighted = equidp.losses.Loss(nn.CrossEntropyLoss(reduction="none"), torch.tensor([1.0, 2.0]))
    assert make_trainer(epochs=1, loss=weighted).fit().facts.class_weighted


@pytest.mark.parametrize("uninformative", [True, False])
def test_no_fairness_is_stated_of_a_model_whose_metrics_say_nothing_about_it(uninformative):
    found = evaluate(nn.Linear(5, 2), toy())
    assert found.blind_spots is not None
    assert found.gaps
    found = replace(found, blind_spots=replace(found.blind_spots, uninformative=uninformative))
    assert (gap_sentences(found) == []) == uninformative
