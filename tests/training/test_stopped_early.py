"""A run that ended before its plan states what the plan costs, wherever an epsilon is shown.

Results may have decided when to end. What the steps taken cost stands once, under a name of its own.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import optimize, stats
from scipy.signal import fftconvolve

import equidp
from equidp.accounting.replacement import replacement_epsilon
from equidp.accounting.risk import Risk
from equidp.kernel.epsilon import epsilon
from equidp.report.format import upper
from support.toy import StopAt, make_trainer

STEPS = 20


def stopped_and_whole(at=7, **settings):
    return make_trainer(callbacks=[StopAt(at)], **settings).fit(), make_trainer(**settings).fit()


@pytest.mark.soak
def test_a_stopped_run_has_the_epsilon_of_a_whole_one():
    run, whole = stopped_and_whole(bound_shares={"a": 0.5})
    assert (run.facts.steps, run.facts.planned_steps) == (7, STEPS)
    assert run.epsilon() == whole.epsilon()
    assert run.epsilon(1e-3, "rdp") == whole.epsilon(1e-3, "rdp")
    assert run.epsilon(rows=2) == whole.epsilon(rows=2)
    assert run.risk() == whole.risk() == Risk.of(whole.entries)
    own = run.epsilon_by_group()
    assert own == whole.epsilon_by_group()
    assert len(set(own.values())) == 2


@pytest.mark.soak
def test_what_the_steps_taken_cost_has_a_name_of_its_own_and_releases_count_beside_it():
    trainer = make_trainer(callbacks=[StopAt(7)], accountant="rdp")
    run = trainer.fit()
    ((event, taken),) = run.spent
    assert taken == 7
    assert run.epsilon_of_steps_taken() == epsilon([(event, 7)], run.delta, "rdp") < run.epsilon()
    trainer.ledger.release(trainer.run_id, "counts", 10.0, lambda noise: None)
    after = trainer.run()
    assert after.epsilon() > run.epsilon()
    assert after.epsilon_of_steps_taken() > run.epsilon_of_steps_taken()
    whole = trainer.fit()
    assert whole.epsilon_of_steps_taken() == whole.epsilon()
    assert whole.not_taken == ()


def numbers(run, *paths):
    equidp.write_card(run, *paths)
    return [path.read_text() for path in paths]


@pytest.mark.soak
def test_the_card_states_the_plan_and_once_what_the_steps_taken_cost(tmp_path):
    """Sentence, odds, risk, several rows, groups, replacement and the code that recomputes epsilon."""
    run, whole = stopped_and_whole()
    paths = tmp_path / "card.html", tmp_path / "card.md"
    (page, card), (_, of_whole) = numbers(run, *paths), numbers(whole, *paths)
    less = f"{run.epsilon_of_steps_taken():.6g}"
    for text in (page, card):
        assert text.count(less) == 1
        assert "no result decided when to stop" in " ".join(text.split())
    assert "no result decided" not in " ".join(of_whole.split())
    (line,) = (line for line in card.splitlines() if less in line)
    kept = [each for each in card.splitlines() if each != line and "SHA-256" not in each]
    others = [each for each in of_whole.splitlines() if "SHA-256" not in each]
    taken = [each for each in kept if each not in others]
    assert all("steps" in each for each in taken)  # how many steps were taken, in the table of settings
    assert f"Training was ({math.ceil(run.epsilon() * 1e3 - 1e-9) / 1e3:g}, " in " ".join(card.split())
    assert upper(replacement_epsilon(whole.entries, run.delta, run.accountant)) in card
    assert f"{whole.epsilon():.6g}" in card


def gaussian(mean: float, delta: float) -> float:
    """Epsilon of normal distributions so far apart (Balle and Wang 2018, Theorem 8)."""

    def excess(spent: float) -> float:
        tail = math.exp(spent) * stats.norm.cdf(-mean / 2 - spent / mean)
        return stats.norm.cdf(mean / 2 - spent / mean) - tail - delta

    return float(optimize.brentq(excess, 0, mean * mean / 2 + 40 * mean + 5))


def worst_delta(stated: list[float], mean: float) -> float:
    """Delta at the stated epsilons, by step, of the worst rule for when to stop: by dynamic programming over
    the privacy loss of Gaussian steps."""
    losses = np.linspace(-4.0, 30.0, 6801)
    width = losses[1] - losses[0]
    places = np.arange(-int(8 * mean / width) - 2, int(8 * mean / width) + 3)
    kernel = np.diff(stats.norm.cdf((np.append(places, places[-1] + 1) - 0.5) * width, mean**2 / 2, mean))

    def continued(value):
        ends = len(places) // 2
        padded = np.concatenate([np.full(ends, value[0]), value, np.full(ends, value[-1])])
        return fftconvolve(padded, kernel[::-1], "valid")[: len(losses)]

    ended = [np.maximum(0, -np.expm1(epsilon - losses)) for epsilon in stated]
    value = ended.pop()
    while ended:
        value = np.maximum(ended.pop(), continued(value))
    return float(np.interp(0.0, losses, continued(value)))


@pytest.mark.soak
def test_no_rule_for_when_to_stop_exceeds_delta_at_the_epsilon_of_a_stopped_run():
    """Steps without sampling, in which each result may decide; at the epsilon of the steps taken the worst
    rule has seven times delta."""
    noise, steps, delta = 10 / 3, 12, 1e-5
    settings = {"batch_size": 300, "noise_multiplier": noise, "delta": delta, "epochs": None, "steps": steps}
    runs = [make_trainer(callbacks=[StopAt(at)], **settings).fit() for at in range(1, steps + 1)]
    assert worst_delta([run.epsilon() for run in runs], 1 / noise) <= delta * 1.01
    assert worst_delta([run.epsilon_of_steps_taken() for run in runs], 1 / noise) > 3 * delta
    assert runs[0].epsilon_of_steps_taken() == pytest.approx(gaussian(1 / noise, delta), rel=3e-3)
