"""A log gets releases and settings, and nothing else of the training data."""

from __future__ import annotations

import pytest

import equidp
from equidp.policies.weights import released_values
from support.toy import make_trainer, toy

FIGURES = {"epsilon", "epsilon_of_steps_taken", "clipping_bound/a", "clipping_bound/_b_ 1"}
SETTINGS = {
    *("method", "clipping_bound", "smoothing", "max_ratio", "statistics_ratio"),
    *("noise_multiplier", "delta", "steps", "expected_batch_size", "optimizer"),
}


class Log:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.settings: list[dict[str, str]] = []
        self.figures: dict[int, dict[str, float]] = {}
        self.callback = equidp.LogReleases(self.add, self.settings.append)

    def add(self, figures: dict[str, float], step: int) -> None:
        assert step not in self.figures
        self.figures[step] = figures


def releasing(callback: equidp.Callback | None = None) -> equidp.Trainer:
    """Two epochs, of 5 steps each, by a method that releases; a group's name has what no service takes."""
    data = toy(150)
    data = equidp.GroupedDataset(data.inputs, data.targets, data.groups, ("a", "/b: 1"), data.class_names)
    policy = equidp.DPSGDF(clipping_bound=1.0, smoothing=0.9)
    callbacks = [] if callback is None else [callback]
    return make_trainer(data, policy, seed=0, callbacks=callbacks)


def check_figures(found: dict[int, dict[str, float]]) -> None:
    """Figures by step are those that runs of as many steps have released."""
    assert set(found) == {5, 10}
    trainer = releasing()
    while trainer.step():
        if trainer.steps_done in found:
            released = released_values(trainer.policy, trainer.policy_state, trainer.num_groups)
            first, second = released["clipping_bound"].tolist()
            figures = found[trainer.steps_done]
            assert set(figures) == FIGURES
            assert figures["epsilon"] == trainer.epsilon_so_far(trainer.steps)
            assert figures["epsilon_of_steps_taken"] == trainer.epsilon_so_far(trainer.steps_done)
            assert figures["clipping_bound/a"] == pytest.approx(first)
            assert figures["clipping_bound/_b_ 1"] == pytest.approx(second)


@pytest.mark.soak
def test_a_log_gets_releases_and_settings_alone():
    log = Log()
    releasing(log.callback).fit()
    check_figures(log.figures)
    assert {type(each) for figures in log.figures.values() for each in figures.values()} == {float}
    (settings,) = log.settings
    assert set(settings) == SETTINGS
    assert settings["method"] == "DPSGDF"
    assert {type(each) for each in settings.values()} == {str}


def test_a_log_that_fails_loses_no_step():
    calls = []

    def log(figures: dict[str, float], step: int) -> None:
        calls.append(step)
        if len(calls) == 1:
            raise ConnectionError

    trainer, other = releasing(equidp.LogReleases(log)), releasing()
    with pytest.raises(ConnectionError):
        trainer.fit()
    assert sum(count for _, count in trainer.entries) == trainer.steps_done == 5
    assert trainer.fit().entries == other.fit().entries
    assert calls == [5, 10]
