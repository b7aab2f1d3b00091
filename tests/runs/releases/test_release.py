"""A release of a new kind is one file: config, dry run, notice, ledger, card and options follow from it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import equidp
from equidp.accounting.target import Target
from equidp.data import Recipe
from equidp.errors import SettingError
from equidp.kernel.epsilon import epsilon
from equidp.ledger.format import read_ledger
from equidp.runs import layout
from equidp.runs.begin import begin
from equidp.runs.config import RunData, TrainConfig
from equidp.runs.prepare import prepare
from equidp.runs.releases import RELEASES
from equidp.runs.train import train
from support.errors import raises_field
from support.releases import paid_for

DELTA = 1e-3
GROUP_COUNTS = '''
"""GroupCountsRelease: noisy counts of the training examples of each group."""

import json
from dataclasses import dataclass

from equidp.accounting.planned import check_share
from equidp.kernel.noise import SystemRandomness
from equidp.runs.releases.release import RunRelease
from equidp.tables.release import private_counts
from equidp.training.plan import option


@dataclass(frozen=True)
class GroupCountsRelease(RunRelease):
    name = "group counts"
    file = "group-counts.json"
    contents = "how many training examples each group has, released with noise and counted in epsilon."
    audited = ("group_counts.py",)

    group_counts_share: float = option(0.1, "Share of --epsilon to count the groups with.")

    def epsilon(self, target):
        return None if target is None else self.group_counts_share * target

    def check(self, epsilon, method, plan):
        check_share("group_counts_share", self.group_counts_share, epsilon)

    def draw(self, preparation, payment, folder):
        train = preparation.split.train
        noise = payment.draw()
        counts = private_counts(
            train.groups.numpy(), train.num_groups, noise_multiplier=noise, randomness=SystemRandomness()
        )
        (folder / self.file).write_text(json.dumps(counts.tolist()))
        return preparation

    def card_entries(self, epsilon, folder, units):
        return {"counts of groups": f"for a share of {self.group_counts_share:g} of epsilon"}
'''
_AS_A_LINE_OF_THE_TABLE = """
from equidp.runs.releases import RELEASES
from group_counts import GroupCountsRelease
RELEASES[GroupCountsRelease.name] = GroupCountsRelease
from equidp.cli.app import main
main()
"""


@pytest.fixture
def kind(tmp_path, monkeypatch):
    """The class of a release of the user's own, in a file of the current folder."""
    (tmp_path / "group_counts.py").write_text(GROUP_COUNTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "group_counts", raising=False)
    import group_counts

    monkeypatch.setitem(RELEASES, "group counts", group_counts.GroupCountsRelease)
    return group_counts.GroupCountsRelease


@pytest.mark.soak
def test_release_of_one_file_is_in_config_dry_run_ledger_notice_and_card(kind, trained, tmp_path):
    plan = equidp.Plan(batch_size=40, epochs=1, delta=DELTA)
    recipe = Recipe(target="income", group=("sex",))
    config = TrainConfig(
        RunData(str(trained.table), recipe),
        "dpsgd",
        plan,
        Target(3.0, accountant="rdp"),
        releases=(kind(0.2),),
    )
    assert TrainConfig.from_plain(json.loads(json.dumps(config.to_plain()))) == config
    event = paid_for("group counts", 0.2 * 3.0, DELTA)

    prepared = prepare(config)
    assert config.release_costs == {"group counts": pytest.approx(0.6)}
    assert prepared.stated[0] == (event, 1)
    assert 2.99 < epsilon(prepared.stated, DELTA, "rdp") <= 3.0

    place = tmp_path / "run"
    run, _ = train(place, prepared=begin(prepared, place))
    assert len(json.loads((place / kind.file).read_text())) == 2
    assert read_ledger(place / layout.LEDGER).entries[0] == run.entries[0] == (event, 1)
    notice = " ".join((place / layout.NOTICE).read_text().split())
    assert f"{kind.file}: {kind.contents}" in notice
    assert kind.file in (place / layout.MANIFEST).read_text()
    card = (place / layout.CARD).read_text()
    assert "1 release of group counts |" in card
    assert "| counts of groups | for a share of 0.2 of epsilon |" in card
    assert "group_counts.py" in card

    drawn = (place / kind.file).read_bytes()
    train(place)  # reads the kind of release by its name
    assert (place / kind.file).read_bytes() == drawn
    with raises_field(SettingError, "group_counts_share"):
        kind(0.2).check(None, "dpsgd", plan)


@pytest.mark.soak
def test_release_in_the_table_is_set_and_has_a_line_of_the_dry_run(kind, trained, tmp_path):
    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", _AS_A_LINE_OF_THE_TABLE, "train", *arguments],
            cwd=tmp_path,
            env=os.environ,
            capture_output=True,
            text=True,
        )

    table = (str(trained.table), "--target", "income", "--group", "sex")
    options = ("--epsilon", "3", "--batch-size", "40", "--epochs", "1", "--accountant", "rdp")
    found = run(*table, *options, "--set", "group_counts_share=0.2", "--dry-run")
    assert "it would release group counts (epsilon 0.6)" in found.stdout, found.stderr
    found = run(*table, *options, "--set", "group_counts_share=0.2", "--out", "run")
    assert found.returncode == 0, found.stderr
    assert Path(tmp_path / "run" / "group-counts.json").exists()
