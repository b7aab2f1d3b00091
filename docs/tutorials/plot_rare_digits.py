"""
Images with a rare class: features and prototypes
=================================================

In scikit-learn's digits, as ``equidp`` splits them, only 13 of 1,229 training images show an eight. Noisy
training barely sees so few images. This page shows two remedies that need no new data: fixed image features,
and a method that trains in a single release.
"""

import tempfile

import matplotlib.pyplot as plt
import pandas as pd

import equidp

folder = tempfile.mkdtemp()  # keeps finished runs, so that a stopped comparison continues

# %%
# Three ways at the same epsilon
# ------------------------------
# - DP-SGD on pixels: a linear model with plain settings.
# - DP-SGD on features, with recommended settings. The features are scattering coefficients: fixed wavelets
#   that aren't learned from data, so they cost no privacy.
# - Prototypes on the same features: equidp releases each class's sum once, with noise. An image gets the
#   class whose sum is closest in angle.
#
# Each is trained three times. The digits are both classes and groups, so a group's accuracy is the share of
# its images that the model finds.

EPSILON = 8.0
common = {"seeds": 3, "epsilon": EPSILON, "directory": folder, "jobs": 1}
pixels = equidp.compare("digits", methods=["dpsgd"], plan="published", **common)
features = equidp.compare("digits", methods=["dpsgd", "prototypes"], **common)


def accuracy_by_digit(comparison, method):
    """Return mean and standard error of accuracy over seeds, by group, in percent."""
    rows = comparison.results
    return 100 * rows[rows["method"] == method].groupby("group")["accuracy"].agg(["mean", "sem"])


ways = {
    "DP-SGD on pixels": accuracy_by_digit(pixels, "dpsgd"),
    "DP-SGD on features": accuracy_by_digit(features, "dpsgd"),
    "prototypes on features": accuracy_by_digit(features, "prototypes"),
    "without privacy, on features": accuracy_by_digit(features, "sgd"),
}
print(pd.DataFrame({name: found["mean"] for name, found in ways.items()}).round(1).to_string())

# %%
# By digit
# --------
# Bars are standard errors over the three trainings.

figure, panel = plt.subplots(figsize=(7.5, 3.6), layout="constrained")
looks = (("#0072B2", "o"), ("#009E73", "s"), ("#D55E00", "D"), ("#777777", "x"))
digits = [str(number) for number in range(10)]
for number, ((name, found), (color, marker)) in enumerate(zip(ways.items(), looks, strict=True)):
    places = [int(digit) + 0.15 * (number - 1.5) for digit in digits]
    rows = found.loc[digits]
    panel.errorbar(
        places, rows["mean"], yerr=rows["sem"], fmt=marker, color=color, label=name, ms=5, capsize=2
    )
panel.set(xlabel="digit (8 is rare)", ylabel="images found, %", xticks=range(10), ylim=(-3, 103))
panel.grid(axis="y", alpha=0.3)
panel.legend(frameon=False, loc="lower left", ncols=2)
plt.show()

# %%
# On pixels, the model finds hardly any eights. Features bring some of them back. Prototypes find more, and
# lose a few points on the other digits. This holds for these images at this epsilon. At a smaller epsilon,
# the noise is longer than a sum of 13 images:

for epsilon in (1.0, 3.0):
    small = equidp.compare("digits", methods=["prototypes"], **(common | {"epsilon": epsilon}))
    found = accuracy_by_digit(small, "prototypes")["mean"]
    print(f"epsilon {epsilon:g}: {found['8']:.0f}% of the eights, {found['all']:.0f}% of all digits")

# %%
# See :doc:`our measurements </evidence-groups>` for other methods, classes and epsilons.
