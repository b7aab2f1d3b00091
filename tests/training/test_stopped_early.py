"""A run that ended before its plan states what the plan costs, wherever an epsilon is shown.

Results may have decided when to end. What the steps taken cost stands once, under a name of its own.
"""

from __future__ import annotations

import pytest

import equidp
from equidp.accounting.risk import Risk
from equidp.kernel.epsilon import epsilon
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


@pytest.mark.soak
def test_the_card_states_once_what_the_steps_taken_cost_and_under_which_condition(tmp_path):
    run, whole = stopped_and_whole()
    cards = tmp_path / "run.md", tmp_path / "whole.md"
    for each, path in zip((run, whole), cards, strict=True):
        equidp.write_card(each, path)
    card, of_whole = (path.read_text() for path in cards)
    assert card.count(f"{run.epsilon_of_steps_taken():.6g}") == 1
    assert f"{whole.epsilon():.6g}" in card
    assert "no result decided when to stop" in card
    assert "no result decided" not in of_whole
