"""
Choose epsilon, and see what each group pays
============================================

How small can epsilon be while the model is still useful, and useful to whom? This page trains one model at
four epsilons and plots what an attacker can achieve at most, and the accuracy of each group. Then it asks how
much of its epsilon each group used.
"""

import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch

import equidp
from equidp.training.plan import account

# %%
# Public or past data first
# -------------------------
# If you choose epsilon by results on the private data, that costs privacy that nobody counts. Use other data
# of the same kind instead. Here the data is simulated: 4,000 people to train on, and 4,000 to test on. One in
# ten belongs to a group whose outcome depends on other inputs.


def draw_people(n, seed):
    """Return inputs [n, 8], outcomes and groups (0: usual, 1: rare)."""
    rng = np.random.default_rng(seed)
    inputs = rng.normal(size=(n, 8))
    rare = rng.random(n) < 0.1
    inputs[:, 7] = rare
    signal = np.where(rare, 1.5 * inputs[:, 1] - inputs[:, 2], 1.5 * inputs[:, 0] + inputs[:, 2])
    return inputs, (signal + rng.logistic(size=n) > 0).astype(int), rare.astype(int)


X, y, group = draw_people(4000, seed=0)
X_test, y_test, group_test = draw_people(4000, seed=1)
EPSILONS = (0.5, 1.0, 3.0, 8.0)

# %%
# What an attacker can achieve at most
# ------------------------------------
# For each epsilon, ``account`` computes the noise of the planned training, and a bound on every attack that
# tries to find out who was in the data. It needs no data. The diagonal is guessing.

rates = tuple(np.logspace(-3, -0.01, 25))
figure, panel = plt.subplots(figsize=(5.6, 3.4), layout="constrained")
colors = ("#56B4E9", "#0072B2", "#D55E00", "#000000")
for epsilon, color, marker in zip(EPSILONS, colors, "osv^", strict=True):
    risk = account(4000, batch_size=256, epochs=20, epsilon=epsilon, delta=1e-5).risk(rates)
    panel.loglog(
        rates, risk.true_positive_rates, color=color, marker=marker, ms=3, label=f"epsilon {epsilon:g}"
    )
panel.loglog((1e-3, 1), (1e-3, 1), ":", color="#777777", label="guessing")
panel.set(xlabel="others wrongly named", ylabel="members found, at most", xlim=(1e-3, 1), ylim=(1e-3, 1.1))
panel.grid(alpha=0.3)
panel.legend(frameon=False)
plt.show()

# %%
# What each group gets
# --------------------
# Average accuracy of two trainings at each epsilon. Dashed lines show the same model without privacy.

warnings.simplefilter("ignore", equidp.errors.PrivacyWarning)  # seeds, which are for examples alone, warn


def train_twice(**options):
    """Return mean test accuracy of both groups over two trainings, [2], in percent."""
    found = []
    for seed in range(2):
        classifier = equidp.PrivateClassifier(model="mlp", random_state=seed, **options)
        correct = classifier.fit(X, y).predict(X_test) == y_test
        found.append([100 * correct[group_test == each].mean() for each in (0, 1)])
    return np.mean(found, axis=0)


chosen = {"clipping_bound": 4.0, "learning_rate": 0.5}
private = np.array([train_twice(epsilon=epsilon, **chosen) for epsilon in EPSILONS])
plain = train_twice(method="sgd", epsilon=None, learning_rate=1.0)

figure, panel = plt.subplots(figsize=(5.6, 3.2), layout="constrained")
for number, (name, color, marker) in enumerate((("usual", "#0072B2", "o"), ("rare", "#D55E00", "s"))):
    panel.semilogx(EPSILONS, private[:, number], color=color, marker=marker, label=name)
    panel.axhline(plain[number], color=color, linestyle="--", label=f"{name}, without privacy")
panel.set(xlabel="epsilon", ylabel="accuracy, %")
panel.set_xticks(EPSILONS, labels=[f"{epsilon:g}" for epsilon in EPSILONS], minor=False)
panel.minorticks_off()
panel.grid(alpha=0.3)
panel.legend(frameon=False, fontsize="small")
plt.show()
for epsilon, values in zip(EPSILONS, private, strict=True):
    print(f"epsilon {epsilon:3g}: usual {values[0]:.1f}%, rare {values[1]:.1f}%")
print(f"without privacy: usual {plain[0]:.1f}%, rare {plain[1]:.1f}%")

# %%
# The rare group needs a larger epsilon than the usual one, because noise hides first what few examples show.
#
# Settings before epsilon
# -----------------------
# Before you give people less protection, check the settings. A clipping bound of 1 instead of 4 cuts the long
# gradients of the rare group most. Then even a larger epsilon hardly helps that group:

short = {"clipping_bound": 1.0, "learning_rate": 1.0}
for epsilon in (3.0, 8.0):
    values = train_twice(epsilon=epsilon, **short)
    print(f"clipping bound 1, epsilon {epsilon:g}: usual {values[0]:.1f}%, rare {values[1]:.1f}%")

# %%
# How much of its epsilon each group used
# ---------------------------------------
# Epsilon holds for everyone, but few examples use all of it. With ``Individual``, the run adds up what each
# example's own gradients could reveal. These accounts are private. ``release_by_group`` publishes the mean
# of each group with noise, and charges the ledger a further epsilon for it.

data = equidp.GroupedDataset(
    torch.tensor(X, dtype=torch.float32),
    torch.tensor(y),
    torch.tensor(group),
    ("usual", "rare"),
    ("no", "yes"),
)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
trainer = equidp.Trainer(
    model,
    torch.optim.SGD(model.parameters(), lr=0.5),
    data,
    method=equidp.DPSGD(clipping_bound=4.0),
    batch_size=256,
    epochs=20,
    epsilon=3.0,
    delta=1e-5,
    individual=equidp.Individual(per_epoch=1),
)
run = trainer.fit()
released = trainer.individual_report().release_by_group(epsilon=0.3, delta=1e-6)
print(released)
print(f"epsilon of everyone: {run.epsilon():.2f}, and with the release {trainer.run().epsilon():.2f}")

# %%
# Examples of the rare group use more of their epsilon: the model fits them worse, so their gradients are
# longer. The mean guarantees nothing to anyone. Only the epsilon of the run does.
