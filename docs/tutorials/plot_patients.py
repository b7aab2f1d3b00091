"""
Patients: from a CSV to a model card
====================================

A hospital has a table of visits, with several visits per patient, and wants to predict readmissions. The
model must protect each patient with all of their visits, and work for every region.

You would type the commands in a terminal. Here, a few lines of Python run them and show their output.
"""

import html
import json
import os
import shlex
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

folder = Path(tempfile.mkdtemp())


def run_command(line):
    """Run a command in the folder; return what it printed."""
    words = [sys.executable, "-m", *shlex.split(line)]
    environment = {**os.environ, "COLUMNS": "84", "NO_COLOR": "1", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return "\n".join(textwrap.fill(row, 84) if len(row) > 84 else row for row in done.stdout.splitlines())


# %%
# The table
# ---------
# The table is simulated: 4,000 patients with one to four visits each. The risk depends on age, smoking and
# blood pressure. The west is a small region with older patients. One in twenty blood pressures is missing.

rng = np.random.default_rng(0)
patient = np.repeat(np.arange(4000), rng.integers(1, 5, 4000))
region = rng.choice(["north", "south", "west"], 4000, p=[0.6, 0.3, 0.1])
age = (rng.normal(56, 14, 4000) + 8 * (region == "west")).clip(18, 95).round()
smoker = rng.random(4000) < 0.25
pressure = (rng.normal(120, 12, len(patient)) + 0.4 * (age[patient] - 58)).round()
logit = 0.05 * (age[patient] - 58) + 0.8 * smoker[patient] + 0.03 * (pressure - 120) - 1.6
visits = pd.DataFrame(
    {
        "patient": [f"P{number:05d}" for number in patient],
        "age": age[patient],
        "region": region[patient],
        "smoker": np.where(smoker[patient], "yes", "no"),
        "pressure": np.where(rng.random(len(patient)) < 0.05, np.nan, pressure),
        "readmitted": np.where(rng.random(len(patient)) < 1 / (1 + np.exp(-logit)), "yes", "no"),
    }
)
visits.to_csv(folder / "visits.csv", index=False)
print(visits.head().to_string())

# %%
# Look before training
# --------------------
# ``inspect`` checks the table and writes run.toml, which tells the other commands how to read it.
# ``--person`` names the column that identifies a patient, so that epsilon protects a patient instead of a
# single visit.

print(
    run_command(
        "equidp inspect visits.csv --target readmitted --group region --person patient --out run.toml"
    )
)

# %%
# Train
# -----
# equidp chooses method and settings from the size of the table and from epsilon, without reading a row.
# equidp cuts numbers into intervals. Their edges come from public ranges, so they reveal nothing about the
# rows. Samples and noise come from the operating system and have no seed, so figures differ a little each
# time this page is built.

run_command(
    "equidp train visits.csv --config run.toml --epsilon 3 --out run --set column.age.range=[18,100]"
    " --set column.pressure.range=[80,200]"
)
print(run_command("equidp evaluate run --metric auc --threshold 0.25 --json evaluation.json"))

# %%
# Three in four visits have no readmission, so accuracy says little: always predicting "no" would be about as
# good. AUC needs no threshold and measures how well the model ranks visits by risk. A threshold of 0.25 finds
# more readmissions than the usual 0.5, with more false alarms. You can change it later without spending
# epsilon.
#
# Look at it by group
# -------------------
# The bars are 95% intervals. The smallest region has the fewest test examples, so its interval is the widest.
# If two intervals overlap, the difference may be chance.

found = pd.DataFrame(json.loads((folder / "evaluation.json").read_text())["values"])
figure, panels = plt.subplots(1, 2, figsize=(7.5, 2.6), sharey=True, layout="constrained")
for panel, metric, label in zip(panels, ("auc", "recall"), ("AUC", "recall of readmissions"), strict=True):
    rows = found[found["metric"] == metric].iloc[::-1]
    reach = [rows["value"] - rows["low"], rows["high"] - rows["value"]]
    panel.errorbar(rows["value"], rows["group"], xerr=reach, fmt="o", color="#0072B2", capsize=3)
    panel.set_xlabel(label)
    panel.grid(axis="x", alpha=0.3)
plt.show()

# %%
# The model card
# --------------
# Give ``run/share/card.html`` to everyone who gets the model. It has the guarantee, accuracy by group, limits
# and versions. This is the card of the run above.


class Page:
    """An HTML file, shown as it is."""

    def __init__(self, path):
        self.text = path.read_text()

    def _repr_html_(self):
        content = html.escape(self.text)
        return f'<iframe srcdoc="{content}" title="Model card" class="card-of-a-run"></iframe>'


Page(folder / "run" / "share" / "card.html")

# %%
# Check and share
# ---------------
# ``verify`` checks that files, ledger and epsilon agree. You may share ``run/share/``. Keep ``run/private/``.

print(run_command("equidp verify run"))
print(*sorted(path.name for path in (folder / "run" / "share").iterdir()), sep="\n")

# %%
# Predict
# -------
# New visits need only the columns that the model reads, so region and outcome may be missing.

visits.drop(columns=["region", "readmitted"]).head(20).to_csv(folder / "june.csv", index=False)
print(run_command("equidp predict run june.csv --threshold 0.25 --out predictions.csv"))
print((folder / "predictions.csv").read_text().splitlines()[:3])

# %%
# Next, measure what privacy cost each region: ``equidp compare visits.csv --config run.toml --epsilon 3
# --report report.html``. It also trains models without privacy, so its page is for you, not for publication.
