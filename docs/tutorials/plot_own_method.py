"""
A method of your own, compared fairly
=====================================

Which of two methods wins often depends on which one was tuned more carefully. This page writes a method,
checks it, and compares it with DP-SGD. Both are tuned with the same effort.
"""

import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

import equidp
from equidp.data import open_source
from equidp.policies.ranges import Uniform

# %%
# The method
# ----------
# It clips gradients of group 0 to a share of the others' bound, so that a large group cannot drown out a
# small one. ``bound`` is the longest that a gradient of a group may be. The noise follows from the largest.


@dataclass(frozen=True)
class LowerForFirst(equidp.Policy):
    """Clips group 0 at a share of the bound of the others."""

    clipping_bound: float = 1.0
    first_share: float = field(
        default=0.5, metadata={"help": "Share of the bound for group 0.", "tune": Uniform(0.1, 1.0)}
    )

    def bound(self, state, group):
        return torch.where(group == 0, self.first_share, 1.0) * self.clipping_bound


# %%
# ``check_policy`` tries extreme norms, all groups and absurd releases, and raises an error if a rule breaks.

equidp.check_policy(LowerForFirst(), num_groups=2)

# %%
# Data
# ----
# 4,000 simulated people. In the small group, the outcome depends on other columns.

rng = np.random.default_rng(0)
values = rng.normal(size=(4000, 6))
small = rng.random(4000) < 0.15
signal = np.where(small, 2 * values[:, 1] - values[:, 2], 2 * values[:, 0] + values[:, 2])
people = pd.DataFrame(values, columns=[f"x{number}" for number in range(6)])
people["group"] = np.where(small, "small", "large")
people["outcome"] = np.where(signal + rng.logistic(size=4000) > 0, "yes", "no")
folder = Path(tempfile.mkdtemp())
people.to_csv(folder / "people.csv", index=False)
source = open_source(str(folder / "people.csv"), target="outcome", group="group")

# %%
# Compare with equal tuning
# -------------------------
# ``tune=4`` tries four settings of each method on parts of the training set: the plan's own and three random
# ones. Pass the class to have its settings tuned; an object keeps its settings. equidp then trains the best
# settings of each method on new seeds. ``against`` adds differences paired by seed. This page uses few epochs
# to build quickly.

warnings.simplefilter("ignore", equidp.errors.CacheWarning)  # a page has no file that a run could be kept by
comparison = equidp.compare(
    source,
    methods=["dpsgd", LowerForFirst],
    epsilon=2.0,
    plan=equidp.Plan(batch_size=256, epochs=4, learning_rate=0.5),
    tune=4,
    seeds=5,
    against="dpsgd",
    directory=folder / "runs",
    jobs=1,
)
print(comparison.table("methods").to_string())

# %%
# Differences from DP-SGD with intervals, and p values corrected for several comparisons:

differences = comparison.differences().set_index("quantity")
print(differences.drop(columns=["method", "setting", "against", "against_setting"]).round(4).to_string())
for quantity, row in differences.iterrows():
    known = "the methods differ" if row["corrected_p"] < 0.05 else "five seeds cannot tell the methods apart"
    print(f"{quantity}: {known}")

# %%
# ``overall`` and ``worst group`` are accuracies, so a difference above 0 favours the new method. ``gap`` is
# the largest difference between groups in privacy cost, so there a difference below 0 does. If five seeds
# cannot tell the methods apart, use more seeds or more data; don't go by the better mean.
#
# Accuracy and cost by group
# --------------------------
# Privacy cost is the accuracy that the same model loses to privacy, in points.

costs = comparison.costs()
figure, panel = plt.subplots(figsize=(6.5, 2.4), layout="constrained")
looks = {"dpsgd": ("#0072B2", "o", -0.1), "LowerForFirst": ("#D55E00", "s", 0.1)}
for method, (color, marker, shift) in looks.items():
    found = 100 * costs[costs["method"] == method].groupby("group")["privacy_cost"].agg(["mean", "sem"])
    places = [number + shift for number in range(len(found))]
    panel.errorbar(found["mean"], places, xerr=found["sem"], fmt=marker, color=color, capsize=3, label=method)
panel.axvline(0, color="#777777", linestyle=":")
panel.set(xlabel="privacy cost, points of accuracy (bars: standard errors)")
panel.set_yticks(range(len(found)), labels=found.index)
panel.legend(frameon=False)
plt.show()
