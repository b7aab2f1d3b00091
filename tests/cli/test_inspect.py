"""`equidp inspect` shows what is in a file as it was saved, and its recipe serves every command after it."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from support.command import QUICK, equidp_here as equidp

NOISE = ("--noise-multiplier", "2", "--epochs", "1", *QUICK)


def patients(start: int, rows: int = 240) -> pd.DataFrame:
    index, rng = np.arange(rows), np.random.default_rng(start)
    days = pd.Timestamp("2021-01-01") + pd.to_timedelta(index % 90, unit="D")
    return pd.DataFrame(
        {
            "patient_id": [f"P{start + row}" for row in index],
            "admitted": days.strftime("%d.%m.%Y"),
            "Alter": np.where(index % 60 == 7, -999.0, 18 + index % 70),
            "Einkommen €": [
                f"{value:,.2f}".translate({44: 46, 46: 44}) for value in rng.lognormal(10, 1, rows)
            ],
            "plz": [f"{1067 + 37 * (row % 9):05d}" for row in index],
            "sex": np.where(index % 2, "weiblich", "männlich"),
            "ill": np.where(rng.random(rows) < 0.3, "ja", "nein"),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("patients")
    how = {"sep": ";", "decimal": ",", "encoding": "cp1252", "index": False}
    patients(1000).to_csv(folder / "patients.csv.gz", **how)
    patients(9000).drop(columns="ill").to_csv(folder / "new.csv", **how)
    patients(5000).to_csv(folder / "others.csv", **how)
    return folder


@pytest.fixture(scope="module")
def inspected(folder):
    labels = ("--target", "ill", "--group", "sex")
    files = ("--out", "run.toml", "--json", "report.json")
    return equidp("inspect", "patients.csv.gz", *labels, *files, cwd=folder)


@pytest.mark.soak
def test_the_report_names_each_option_and_says_that_it_stays_in_the_house(inspected, folder):
    assert inspected.returncode == 0, inspected.stderr
    for part in (
        "240 rows, 7 columns. Separator ;  Charset cp1252",
        '[column.admitted] format = "%d.%m.%Y"',
        '[column.Alter] missing = ["-999"]',
        '[column."Einkommen €"] thousands = ".", decimal = ","',
        '[column.plz] kind = "text"',
        "Groups by sex: männlich 50.0%, weiblich 50.0%.",
        "patient_id: holds another text in each of its 240 rows",
        "Epsilon protects one row",
        "it is confidential",
    ):
        assert part in inspected.stdout
    assert "Written: run.toml" in inspected.stderr
    assert "equidp train patients.csv.gz --config run.toml --epsilon 3 --out run" in inspected.stderr
    again = equidp("inspect", "patients.csv.gz", "--out", "run.toml", cwd=folder)
    assert (again.returncode, "'run.toml' exists" in again.stderr) == (2, True)
    report = json.loads((folder / "report.json").read_text())
    assert report["recipe"]["sep"] == ";"
    assert [each["lines"] for each in report["columns"][0]["findings"]] == ['[table] drop = ["patient_id"]']


@pytest.mark.soak
def test_one_recipe_leads_from_the_raw_file_to_predictions_for_new_ones(inspected, folder):
    assert inspected.returncode == 0
    noise = [*NOISE, "--batch-size", "40"]
    recipe = ("--config", "run.toml")
    trained = equidp("train", "patients.csv.gz", *recipe, *noise, "--out", "run", cwd=folder)
    assert trained.returncode == 0, trained.stderr
    predicted = equidp("predict", "run", "new.csv", "--keep", "patient_id", "--out", "p.csv", cwd=folder)
    assert predicted.returncode == 0, predicted.stderr
    assert pd.read_csv(folder / "p.csv")["patient_id"].tolist() == patients(9000)["patient_id"].tolist()
    evaluated = equidp("evaluate", "run", "others.csv", cwd=folder)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "weiblich" in evaluated.stdout
    kept = json.loads((folder / "run" / "private" / "config.json").read_text())["config"]["data"]["recipe"]
    assert kept["charset"] == "cp1252"
