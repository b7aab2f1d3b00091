"""Effects of columns add up to what an additive model answers, and show no statistics of training rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from equidp.evaluation.effects import column_effects
from equidp.kernel.noise import SeededRandomness
from equidp.models import logistic, mlp
from equidp.report.document import Document
from equidp.report.effects import effect_blocks
from equidp.tables.fit import fit_encoder
from equidp.tables.intervals import Binning
from equidp.tables.release import Release

CUT = Binning.parse("cut")
N = 500


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    age, job = rng.integers(20, 60, N).astype(float), rng.choice(["cook", "clerk", "judge"], N).astype(object)
    pay = np.where(rng.random(N) < 0.1, np.nan, rng.lognormal(8, 2, N))
    return pd.DataFrame({"age": age, "pay": pay, "job": job})


@pytest.fixture(scope="module")
def encoder(table):
    return fit_encoder(table, np.arange(N), {"age": (0, 80)}, "category", CUT)


def added(effects, table) -> np.ndarray:
    """What the effects of each row's parts add together, [n, outputs]."""
    total = 0.0
    for effect in effects:
        column = table[effect.column]
        if effect.edges is None:
            places = np.array([effect.texts.index(text) for text in column])
        else:
            places = np.searchsorted(effect.edges, column, side="right")
            places[column.isna()] = len(effect.edges) + 1
        total = total + effect.values[places]
    return total


def centred(values) -> np.ndarray:
    return values - values[:1]


@pytest.mark.parametrize("classes", [2, 3])
def test_effects_add_up_to_the_log_odds_or_logits_of_every_row(table, encoder, classes):
    model = logistic((encoder.width,), classes)
    outputs = model(encoder.encode(table)).detach().double().numpy()
    expected = outputs[:, [0]] - outputs[:, [1]]
    if classes == 3:
        expected = outputs - outputs.mean(axis=1, keepdims=True)
    effects = column_effects(encoder, model, classes, 0 if classes == 2 else None)
    np.testing.assert_allclose(centred(added(effects, table)), centred(expected), atol=1e-5)
    assert [each.spread for each in effects] == sorted((each.spread for each in effects), reverse=True)
    for effect in effects:
        np.testing.assert_allclose(effect.known.mean(axis=0), 0, atol=1e-12)


def test_a_model_that_is_not_additive_a_diverged_one_and_scaled_numbers_have_no_effects(table, encoder):
    assert column_effects(encoder, mlp((encoder.width,), 2), 2) == ()
    diverged = logistic((encoder.width,), 2)
    nn.init.constant_(diverged[1].weight, torch.nan)
    assert column_effects(encoder, diverged, 2) == ()
    standard = fit_encoder(table, np.arange(N), {}, "category")
    assert column_effects(standard, logistic((standard.width,), 2), 2) == ()


@pytest.mark.soak
def test_a_card_shows_public_edges_and_hides_those_of_training_rows(table, encoder):
    effects = column_effects(encoder, logistic((encoder.width,), 2), 2)
    assert {each.column: each.public for each in effects} == {"age": True, "pay": False, "job": False}
    document = Document("card", list(effect_blocks(effects, ("no", "yes"), "yes")))
    edges = {f"{edge:.4g}" for each in effects if each.column == "pay" for edge in each.edges}
    for text in (document.to_markdown(), document.to_html()):
        assert not any(edge in text for edge in edges if "." in edge)
        assert "judge" not in text
        assert "pay" in text
    (row,) = [line for line in document.to_markdown().splitlines() if line.startswith("| age")]
    ages = next(each for each in effects if each.column == "age")
    lowest = ages.known[:, 0].argmin()
    assert f"{ages.known[lowest, 0]:+.2f}" in row


@pytest.mark.soak
def test_a_card_shows_edges_that_were_released(table):
    drawn = fit_encoder(
        table, np.arange(len(table)), {}, "category", CUT, release=Release(0.5, SeededRandomness(0))
    )
    effects = column_effects(drawn, logistic((drawn.width,), 3), 3)
    assert all(each.public for each in effects)
    text = Document("card", list(effect_blocks(effects, ("a", "b", "c"), ""))).to_markdown()
    (row,) = [line for line in text.splitlines() if line.startswith("| age")]
    assert row.count("to") + row.count("from") + row.count("below") >= 2
