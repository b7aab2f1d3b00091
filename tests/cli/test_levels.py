"""Epsilons that people chose, on the command line: from a column to card, ledger, check and dry run."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from equidp.kernel.epsilon import epsilon_of_group
from equidp.runs.saved import open_run
from support.command import equidp_here

TABLE = ("visits.csv", "--target", "again", "--group", "region")
CHOICE = ("--epsilon-column", "choice", "--epsilon-levels", "0.5,1,3")
FAST = ("--epochs", "2", "--batch-size", "40", "--accountant", "rdp", "--delta", "1e-4", "--method", "dpsgd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made, draw = tmp_path_factory.mktemp("visits"), np.random.default_rng(0)
    age = draw.normal(60, 15, 400)
    table = pd.DataFrame({"age": age.round(1), "region": np.where(draw.random(400) < 0.3, "east", "west")})
    table["again"] = np.where(draw.random(400) < 1 / (1 + np.exp((60 - age) / 8)), "yes", "no")
    table["choice"] = draw.choice([0.5, 1.0], 400)  # nobody chose 3
    table.assign(who=np.arange(400) // 2).to_csv(made / "visits.csv", index=False)
    for name, wrong in (("missing", ""), ("zero", 0), ("other", 2), ("text", "some")):
        changed = table.astype({"choice": object})
        changed.loc[7 if name != "text" else slice(None), "choice"] = wrong
        changed.to_csv(made / f"{name}.csv", index=False)
    return made


@pytest.fixture(scope="module")
def finished(folder):
    given = ("--person", "who", "--rows-per-person", "2", "--recalibration", "0.05", "--individual")
    done = equidp_here("train", *TABLE, *CHOICE, *given, *FAST, "--out", "run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "run", done.stdout


@pytest.mark.soak
def test_a_run_meets_the_levels_with_its_releases(finished):
    place, _ = finished
    run = open_run(place).run
    found = run.epsilon_by_level()
    assert list(found) == ["level 0.5", "level 1", "level 3"]
    for level, epsilon in zip((0.5, 1.0, 3.0), found.values(), strict=True):
        assert 0.98 * level <= epsilon <= level
    assert run.epsilon() == found["level 3"]


@pytest.mark.soak
def test_card_and_terminal_say_the_epsilon_of_each_level(finished):
    place, out = finished
    card = (place / "card.md").read_text()
    for name, epsilon in open_run(place).run.epsilon_by_level().items():
        assert f"| epsilon of {name} | {epsilon:.6g} |" in card
    assert "| column of chosen epsilons | choice |" in card
    assert "| input columns | age |" in card
    for text in (card, out):
        assert "A person who chose several levels has the smallest of them." in text
        assert "2601.12922" in text


@pytest.mark.soak
def test_the_ledger_says_the_epsilon_of_each_level_and_the_run_is_verified(finished, command):
    place, _ = finished
    code, out, _ = command("ledger", "show", "run", cwd=place.parent)
    assert code == 0
    entries = open_run(place).run.entries
    small = epsilon_of_group(entries, "level 0.5", 1e-4)
    assert f"By group: epsilon {small:.4f} at level 0.5, " in out
    code, out, err = command("verify", "run", cwd=place.parent)
    assert code == 0, out + err


@pytest.mark.soak
def test_a_table_without_the_column_is_evaluated_and_predicted(finished, command):
    place, _ = finished
    later = pd.read_csv(place.parent / "visits.csv").drop(columns="choice")
    later.to_csv(place.parent / "later.csv", index=False)
    for name in ("evaluate", "predict"):
        code, _, err = command(name, "run", "later.csv", cwd=place.parent)
        assert code == 0, err


@pytest.mark.soak
def test_a_dry_run_and_an_account_say_the_epsilon_of_each_level(folder, command):
    code, out, err = command("train", *TABLE, *CHOICE, *FAST, "--dry-run", cwd=folder)
    assert code == 0, err
    assert re.search(r"people of level 0\.5: drawn at rate 0\.0\d+, 1 of the bound; epsilon 0\.\d+", out)
    given = ("--examples", "1000", "--batch-size", "50", "--epochs", "4", "--epsilon-levels", "1,3")
    code, out, _ = command("account", *given, "--protect-by", "scaling", cwd=folder)
    assert code == 0
    assert re.search(r"people of level 1: drawn at rate 0\.05, 0\.\d+ of the bound; epsilon", out)


@pytest.mark.soak
def test_levels_are_read_from_a_file_of_options(folder, command):
    (folder / "train.toml").write_text('epsilon-column = "choice"\nepsilon-levels = "0.5,1,3"\n')
    code, out, err = command("train", *TABLE, *FAST, "--config", "train.toml", "--dry-run", cwd=folder)
    assert code == 0, err
    assert "people of level 0.5: drawn at rate" in out


@pytest.mark.parametrize(
    "given",
    [
        ("--epsilon-column", "choice"),
        ("--epsilon-levels", "0.5,1"),
        ("--epsilon-column", "choice", "--epsilon-levels", "1,3"),
        ("--epsilon-column", "age", "--epsilon-levels", "0.5,1"),
        ("--epsilon-column", "region", "--epsilon-levels", "0.5,1"),
        (*CHOICE, "--drop", "choice"),
        (*CHOICE, "--epsilon", "2"),
        (*CHOICE, "--noise-multiplier", "1"),
        (*CHOICE, "--epsilon-by-group", "east=1,*=3"),
        (*CHOICE, "--rates", "east=2"),
        (*CHOICE, "--recalibration", "0.5"),
        (*CHOICE, "--method", "sgd"),
        ("--epsilon-column", "choice", "--epsilon-levels", "0.5,0.5"),
    ],
)
def test_levels_that_cannot_be_promised_are_refused(given, folder, command):
    code, _, err = command("train", *TABLE, *FAST[:-2], *given, "--out", "refused", cwd=folder)
    assert code != 0
    assert "Traceback" not in err
    assert not (folder / "refused").exists()


@pytest.mark.parametrize("name", ["missing", "zero", "other", "text"])
def test_a_row_without_a_level_is_refused(name, folder, command):
    table = (f"{name}.csv", *TABLE[1:])
    code, _, err = command("train", *table, *CHOICE, *FAST, "--out", "refused", cwd=folder)
    assert code != 0
    assert "Traceback" not in err
    assert not (folder / "refused").exists()


@pytest.mark.parametrize("given", [CHOICE, ("--epsilon-column", "choice", "--epsilon", "1")])
def test_a_comparison_of_levels_is_refused(given, folder, command):
    code, _, err = command("compare", *TABLE, *given, "--methods", "sgd,dpsgd", cwd=folder)
    assert code != 0
    assert "epsilon_levels" in err
