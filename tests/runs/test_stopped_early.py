"""The files of a run that a callback ended state what its plan costs, and its ledger what was spent."""

from __future__ import annotations

import json

import pytest

import equidp
from equidp.ledger.ledger import Ledger
from equidp.runs.folder import LEDGER, RUN
from equidp.runs.recompute import read_entries, recompute_epsilon
from equidp.runs.saved import open_run
from equidp.runs.train import train
from equidp.runs.verify import verify


class StopAt(equidp.Callback):
    def after_step(self, trainer):
        if trainer.steps_done == 3:
            trainer.stop()


@pytest.fixture
def stopped(begun):
    return begun, train(begun, callbacks=[StopAt()])[0]


@pytest.mark.soak
def test_every_file_has_the_planned_epsilon(stopped, trained, tmp_path):
    folder, run = stopped
    assert run.epsilon() == trained.run.epsilon() > run.epsilon_of_steps_taken()
    kept = open_run(folder).run
    assert (kept.entries, kept.spent, kept.epsilon()) == (run.entries, run.spent, run.epsilon())
    assert kept.epsilon_of_steps_taken() == run.epsilon_of_steps_taken()
    assert read_entries(folder) == read_entries(trained.folder)
    assert recompute_epsilon(*read_entries(folder)) == recompute_epsilon(*read_entries(trained.folder))
    assert sum(count for _, count in Ledger.read(folder / "private" / LEDGER).entries()) == 3


@pytest.mark.soak
def test_it_is_verified_with_the_steps_that_its_ledger_holds(stopped):
    folder, run = stopped
    checks = {each.name: each for each in verify(folder).checks}
    assert all(each.passed is not False for each in checks.values())
    assert checks["entries"].passed
    assert (checks["entries"].found["steps"], checks["entries"].found["planned"]) == (3, 7)
    assert checks["epsilon"].found["epsilon"] == run.epsilon()
    settings = json.loads((folder / "share" / RUN).read_text())
    settings["not_taken"] = []  # as if all had been taken
    (folder / "share" / RUN).write_text(json.dumps(settings))
    assert not {each.name: each.passed for each in verify(folder).checks}["entries"]
