"""A release of a new kind is one file: config, dry run, folder, ledger, card and options follow from it."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass

import pytest
import torch

import equidp
from equidp.data import Recipe
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event
from equidp.ledger.ledger import Ledger
from equidp.runs.begin import begin, prepare
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.folder import CARD, LEDGER, SUMS
from equidp.runs.releases import CountsRelease, PreprocessingRelease
from equidp.runs.train import train
from equidp.runs.verify import verify
from equidp.training.release import RELEASES, Release
from support.errors import raises_field
from support.releases import paid_for

DELTA = 1e-3
GROUP_COUNTS = '''
"""GroupCounts: noisy counts of the training examples of each group, before training and by epoch."""

from dataclasses import dataclass

from equidp.accounting.planned import check_share
from equidp.kernel.noise import SystemRandomness
from equidp.tables.release import private_counts
from equidp.training.option import option
from equidp.training.release import Release


@dataclass(frozen=True)
class GroupCounts(Release):
    name = "group counts"
    file = "group-counts.json"

    group_counts_share: float = option(0.1, "Share of --epsilon to count the groups with.")

    def epsilon(self, target):
        return self.group_counts_share * target

    def check(self, plan):
        check_share("group_counts_share", self.group_counts_share, plan.run_epsilon)

    def before(self, trainer):
        groups, source = (trainer.train.groups.numpy(), trainer.train.num_groups), SystemRandomness()
        trainer.release(
            self, lambda noise: private_counts(*groups, noise_multiplier=noise, randomness=source).tolist()
        )

    def card_entries(self):
        return {"counts of groups": f"for a share of {self.group_counts_share:g} of epsilon"}
'''


@dataclass(frozen=True)
class StepsByEpoch(Release):
    """The number of steps, with noise, after each epoch; and of all, after the last."""

    name = "steps by epoch"
    file = "steps-by-epoch.json"

    def charges(self, resolved):
        return ((Event(1.0, 20.0, name=self.name), round(resolved.steps * resolved.sample_rate) + 1),)

    def after_epoch(self, trainer):
        trainer.release(self, lambda noise: [trainer.steps_done, noise])

    def after(self, trainer):
        trainer.release(self, lambda noise: ["end", noise])


@pytest.fixture
def kind(tmp_path, monkeypatch):
    """The class of a release of the user's own, in a file of the current folder."""
    (tmp_path / "group_counts.py").write_text(GROUP_COUNTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "group_counts", raising=False)
    import group_counts

    monkeypatch.setitem(RELEASES, "group counts", group_counts.GroupCounts)
    return group_counts.GroupCounts


@pytest.mark.soak
def test_release_of_one_file_is_in_config_dry_run_ledger_folder_and_card(kind, trained, tmp_path):
    plan = equidp.Plan(batch_size=40, epochs=1, delta=DELTA)
    recipe = Recipe(target="income", group=("sex",))
    config = TrainConfig(
        RunData(str(trained.table), recipe),
        plan.with_changes(method="dpsgd", epsilon=3.0, accountant="rdp", releases=(kind(0.2),)),
    )
    assert TrainConfig.from_plain(json.loads(json.dumps(config.to_plain()))) == config
    event = paid_for("group counts", 0.2 * 3.0, DELTA)

    prepared = prepare(config)
    assert prepared.plan.release_costs() == {"group counts": pytest.approx(0.6, rel=1e-3)}
    assert prepared.plan.charges[0] == (event, 1)
    assert 2.99 < epsilon(prepared.plan.charges, DELTA, "rdp") <= 3.0

    place = tmp_path / "run"
    run, _ = train(place, prepared=begin(prepared, place))
    assert len(json.loads((place / "share" / kind.file).read_text())) == 2
    assert Ledger.read(place / "private" / LEDGER).entries()[0] == run.entries[0] == (event, 1)
    assert kind.file in (place / "share" / SUMS).read_text()
    card = (place / "share" / CARD).read_text()
    assert "1 release of group counts |" in card
    assert "| counts of groups | for a share of 0.2 of epsilon |" in card
    checks = {each.name: each for each in verify(place).checks}
    assert checks["entries"].passed
    assert checks["entries"].found["releases"] == ["group counts"]
    assert [name for name, each in checks.items() if each.passed is False] == []

    drawn = (place / "share" / kind.file).read_bytes()
    train(place)  # reads the kind of release by its name
    assert (place / "share" / kind.file).read_bytes() == drawn
    with raises_field(SettingError, "group_counts_share"):
        plan.with_changes(noise_multiplier=1.0, releases=(kind(0.2),)).resolve(100)


@pytest.fixture
def steps_by_epoch(monkeypatch):
    """A release of this file, as a line of the table."""
    monkeypatch.setitem(RELEASES, StepsByEpoch.name, StepsByEpoch)
    return StepsByEpoch()


def drawn_in_two_parts(release, **given):
    """Train three epochs by a loop that stops after the first, and goes on from its state."""
    x, groups = torch.randn(64, 3), torch.arange(64) % 2
    data = equidp.GroupedDataset(x, groups, groups, ("a", "b"), ("no", "yes"))
    model, ledger = torch.nn.Linear(3, 2), Ledger()

    def trainer(**more):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return equidp.Trainer(
            model, optimizer, data, batch_size=16, epochs=3, delta=1e-3, releases=(release,), **given, **more
        )

    first = trainer(ledger=ledger)
    for _ in next(first.epochs()):
        pass
    second = trainer(ledger=(ledger, first.run_id))
    second.restore(first.state())
    return first, second, second.fit()


def test_a_release_after_each_epoch_is_charged_and_drawn_once_each(steps_by_epoch):
    first, second, run = drawn_in_two_parts(steps_by_epoch, noise_multiplier=2.0)
    event = Event(1.0, 20.0, name=steps_by_epoch.name)
    assert first.released == {event.name: [[4, 20.0]]}
    assert second.released == {event.name: [[4, 20.0], [8, 20.0], [12, 20.0], ["end", 20.0]]}
    assert second.resolved.releases == ((event, 4),)
    assert (event, 4) in run.entries
    assert not run.not_taken
    assert run.epsilon() == epsilon([(second.event, 12), (event, 4)], 1e-3)
    second.run()
    assert dict(second.ledger.entries(second.run_id))[event] == 4  # not drawn again


@pytest.mark.soak
@pytest.mark.parametrize("release", [CountsRelease(0.1), PreprocessingRelease(0.1)], ids=str)
def test_a_trainer_of_ones_own_refuses_a_release_that_it_does_not_draw_before_it_spends(release):
    x, groups = torch.randn(64, 3), torch.arange(64) % 2
    data = equidp.GroupedDataset(x, groups, groups, ("a", "b"), ("no", "yes"))
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = equidp.Trainer(
        model, optimizer, data, batch_size=16, epochs=3, epsilon=3.0, delta=1e-3, releases=(release,)
    )
    with raises_field(SettingError, "releases", release.name):
        trainer.fit()
    assert not trainer.entries
