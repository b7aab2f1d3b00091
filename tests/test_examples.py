"""The example scripts run as they stand, learn something, and spend what they say."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[1] / "examples"


def example(name: str) -> dict:
    torch.manual_seed(0)
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def accuracies(run, test) -> dict[str, float]:
    return run.metrics(test).set_index("group")["accuracy"].to_dict()


def digits_test():
    from equidp.data import open_source

    return open_source("digits").split(seed=0).test


@pytest.mark.soak
@pytest.mark.parametrize(
    ("name", "epsilon", "accuracy"), [("own_cnn", 8.0, 0.7), ("last_layer", 2.0, 0.7), ("own_loop", 4.0, 0.5)]
)
def test_examples_on_digits(name, epsilon, accuracy, capsys):
    run = example(name)["main"]()
    assert 0.8 * epsilon < run.epsilon() <= epsilon
    assert accuracies(run, digits_test())["all"] > accuracy
    assert f"epsilon {run.epsilon():.3f}" in capsys.readouterr().out


@pytest.mark.soak
def test_a_text_classifier_learns_both_groups_words():
    script = example("text_classifier")
    run = script["main"]()
    assert 3.9 < run.epsilon() <= 4.0
    found = accuracies(run, script["reviews"](1000, 1))
    assert found["north"] > 0.9
    assert found["south"] > 0.6
    assert script["tokens"]("Zounds bonny")[:3] == [
        script["UNKNOWN"],
        script["VOCABULARY"]["bonny"],
        script["PADDING"],
    ]


@pytest.mark.soak
def test_opacus_and_equidp_agree():
    pytest.importorskip("opacus")
    results = example("from_opacus")["main"]()
    for accuracy, epsilon in results.values():
        assert accuracy > 0.6
        assert 5.8 < epsilon <= 6.05  # Opacus calibrates to within 0.01 of the target, from either side


def test_every_example_is_tested():
    tested = Path(__file__).read_text()
    assert all(f'"{path.stem}"' in tested for path in EXAMPLES.glob("*.py"))
