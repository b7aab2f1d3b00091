"""A hospital's messy table, from the raw file to a card, predictions and an evaluation of new patients.

    python benchmarks/patients.py [--epsilon 3] [--form csv|gz|semicolons|latin|parquet] [--folder FOLDER]

Makes 12,000 patients and 3,000 new ones with what real tables have: dates, ids, codes for missing values,
thousands separators, leading zeros, constant columns, umlauts, 8% readmissions, and a rare region. Then calls
`equidp` as a person would, with one recipe and no file edited by hand. Prints what each command took, and the
mean predicted risk of new patients beside what happened, by region.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

WARDS = ("Chirurgie", "Innere Medizin", "Gynäkologie", "Pädiatrie", "Unfall-/Notaufnahme")
REGIONS = {"Süd": 0.60, "Österreich-Grenze": 0.02, "Nord": 0.38}
MISSING = {"bmi": 0.08, "crp": 0.03, "smoker": 0.05, "Geschlecht": 0.02, "Einkommen €": 0.1}
NEW, OLD = 3000, 12000
FEWEST = 200
"""People that a region needs for its mean risk to be judged."""


def patients(count: int, seed: int, first_id: int) -> pd.DataFrame:
    """Made-up patients: who is readmitted depends on age, smoking, diabetes, CRP and BMI."""
    rng = np.random.default_rng(seed)
    region = rng.choice(list(REGIONS), count, p=list(REGIONS.values()))
    age = rng.integers(18, 95, count)
    bmi, crp = rng.normal(27, 5, count).round(1), rng.gamma(2, 4, count).round(2)
    smoker = rng.random(count) < 0.22
    diabetes = rng.random(count) < 0.05 + 0.002 * (age - 18)
    score = -3.35 + 0.028 * (age - 50) + 0.9 * smoker + 0.9 * diabetes + 0.09 * (crp - 8) + 0.04 * (bmi - 27)
    score += np.where(region == "Österreich-Grenze", 0.6 - 0.12 * (crp - 8), 0)
    readmitted = rng.random(count) < 1 / (1 + np.exp(-score))
    admitted = pd.Timestamp("2021-01-01") + pd.to_timedelta(rng.integers(0, 1400, count), unit="D")
    table = pd.DataFrame(
        {
            "patient_id": [f"P{first_id + row}" for row in range(count)],
            "admitted": admitted.strftime("%d.%m.%Y"),
            "Alter": np.where(rng.random(count) < 0.003, -999, age),
            "Geschlecht": rng.choice(["weiblich", "männlich", "divers"], count, p=[0.51, 0.48, 0.01]),
            "region": region,
            "zip": [f"{code:05d}" for code in rng.choice(np.arange(1067, 99999, 37), count)],
            "ward": rng.choice(WARDS, count),
            "Einkommen €": [f"{value:,.2f}" for value in rng.lognormal(10.4, 0.5, count)],
            "bmi": bmi,
            "crp": crp,
            "smoker": np.where(smoker, "yes", "no"),
            "diabetes": np.where(diabetes, "ja", "nein"),
            "insurer_code": -1,
            "country": "DE",
            "notes": rng.choice(["", "Größe unklar", "o.B.", "müde, blass"], count, p=[0.6, 0.1, 0.2, 0.1]),
            "readmitted": np.where(readmitted, "yes", "no"),
        }
    )
    for name, share in MISSING.items():
        table.loc[rng.random(count) < share, name] = None
    table["bmi"] = table["bmi"].astype(object)
    table.loc[rng.random(count) < 0.002, "bmi"] = "n/a "
    return table


def write(table: pd.DataFrame, path: Path, form: str) -> Path:
    """Write the table as a hospital might send it, and return where."""
    if form == "parquet":
        typed = table.assign(admitted=pd.to_datetime(table["admitted"], dayfirst=True))
        typed["bmi"] = pd.to_numeric(typed["bmi"], errors="coerce")
        path = path.with_suffix(".parquet")
        typed.astype({"ward": "category"}).to_parquet(path, index=False)
        return path
    if form == "semicolons":  # Excel's CSV in much of Europe
        amounts = table["Einkommen €"].str.translate(str.maketrans(",.", ".,"))
        numbers = table["bmi"].map(str, na_action="ignore").str.replace(".", ",")
        table = table.assign(**{"Einkommen €": amounts, "bmi": numbers})
        table.to_csv(path, index=False, sep=";", decimal=",", encoding="utf-8")
    elif form == "latin":
        table.rename(columns={"Einkommen €": "Einkommen"}).to_csv(path, index=False, encoding="latin-1")
    else:
        path = path.with_suffix(".csv.gz") if form == "gz" else path
        table.to_csv(path, index=False)
    return path


@dataclass(frozen=True)
class Timed:
    """A command as it was typed, and its seconds."""

    typed: str
    seconds: float
    output: str


def walk(folder: Path, form: str, epsilon: float) -> Iterator[Timed]:
    """Call each command in the folder."""
    people = write(patients(OLD, 7, 100_000), folder / "patients.csv", form).name
    later = patients(NEW, 99, 900_000)
    known = write(later, folder / "new_labelled.csv", form).name
    new = write(later.drop(columns="readmitted"), folder / "new.csv", form).name
    recipe, private = ("--recipe", "patients.toml"), ("--epsilon", f"{epsilon:g}")
    for arguments in (
        ("inspect", people, "--target", "readmitted", "--group", "region", "--out", "patients.toml"),
        ("compare", people, *recipe, *private, "--metric", "auc", "--report", "report.html"),
        ("advise", people, *recipe, *private, "--out", "advice.toml"),
        ("train", "--config", "advice.toml", "--out", "run"),
        ("predict", "run", new, "--out", "risks.csv"),
        ("evaluate", "run", known),
    ):
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "equidp", *arguments], cwd=folder, capture_output=True, text=True
        )
        typed = " ".join(("equidp", *arguments))
        if done.returncode:
            sys.exit(f"{typed}\nexit code {done.returncode}\n{done.stderr}")
        yield Timed(typed, time.perf_counter() - began, done.stdout + done.stderr)


def calibration(folder: Path) -> pd.DataFrame:
    """Mean predicted risk of the new patients and what happened, by region."""
    later = patients(NEW, 99, 900_000)
    risk = pd.read_csv(folder / "risks.csv")["p(yes)"]
    table = pd.DataFrame(
        {"region": later["region"], "predicted": risk, "observed": later["readmitted"] == "yes"}
    )
    return table.groupby("region").agg(
        people=("observed", "size"), predicted=("predicted", "mean"), observed=("observed", "mean")
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--form", choices=("csv", "gz", "semicolons", "latin", "parquet"), default="csv")
    parser.add_argument("--folder", type=Path, default=Path("equidp-patients"))
    given = parser.parse_args()
    folder = given.folder / given.form
    folder.mkdir(parents=True)
    for done in walk(folder, given.form, given.epsilon):
        print(f"{done.seconds:6.1f} s  {done.typed}", flush=True)
    found = calibration(folder)
    print(f"\nMean predicted risk of {NEW} new patients beside what happened:\n{found.round(3)}")
    judged = found[found["people"] > FEWEST]
    off = ((judged["predicted"] - judged["observed"]).abs() / judged["observed"]).max()
    print(f"Furthest off, in regions of over {FEWEST} people: {off:.0%} of what happened.")


if __name__ == "__main__":
    main()
