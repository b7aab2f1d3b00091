"""
A PyTorch model: train it, and watch each group
===============================================

``equidp.Trainer`` takes a model, an optimizer and data, and takes private steps. This page trains a small
network on two groups with different patterns, and plots the accuracy of each group after every epoch.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import equidp

# %%
# Data
# ----
# 4,000 simulated examples with ten inputs. In nine of ten examples, the class depends on the first input; in
# the rest, on the second. The last input is the group.

torch.manual_seed(0)
inputs = torch.randn(6000, 10)
groups = (torch.rand(6000) < 0.1).long()
inputs[:, 9] = 2.0 * groups
signal = torch.where(groups == 0, inputs[:, 0], inputs[:, 1])
targets = (signal + 0.3 * torch.randn(6000) > 0).long()
data = equidp.GroupedDataset(inputs, targets, groups, ("usual", "rare"), ("no", "yes"))
train, test = data.subset(torch.arange(4000)), data.subset(torch.arange(4000, 6000))

# %%
# A private and a non-private model
# ---------------------------------
# equidp chooses the noise so that all planned steps together cost ``epsilon``. ``SGD`` is the same training
# without clipping and noise. ``EpochRecorder`` measures each group on the test data after each epoch.


def train_model(method, **privacy):
    """Train a fresh network; return the run, and its test metrics by epoch and group."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.Tanh(), torch.nn.Linear(32, 2))
    record = equidp.RunRecord()
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        train,
        method=method,
        batch_size=200,
        epochs=20,
        delta=1e-5,
        callbacks=[equidp.EpochRecorder(record, test)],
        **privacy,
    )
    return trainer.fit(), record.table()


private, by_epoch = train_model(equidp.DPSGD(clipping_bound=1.0), epsilon=2.0)
plain, plain_by_epoch = train_model(equidp.SGD())
print(f"epsilon {private.epsilon():.2f} at delta {private.delta:g}, after {private.facts.steps} steps")
print(private.metrics(test).round(3).to_string(index=False))

# %%
# What each group gets
# --------------------
# Solid lines show the private model, dashed lines the model without privacy. Measuring on held-out test data
# costs no privacy of the training data, because it only uses weights that training released.

figure, panel = plt.subplots(figsize=(6.5, 3.2), layout="constrained")
for group, color, marker in (("usual", "#0072B2", "o"), ("rare", "#D55E00", "s")):
    for table, style, name in ((by_epoch, "-", "private"), (plain_by_epoch, "--", "without privacy")):
        rows = table[table["group"] == group]
        panel.plot(
            rows["epoch"],
            100 * rows["accuracy"],
            style,
            color=color,
            marker=marker,
            ms=4,
            label=f"{group}, {name}",
        )
panel.set(xlabel="epoch", ylabel="accuracy, %")
panel.grid(alpha=0.3)
panel.legend(ncols=2, frameon=False)
plt.show()

# %%
# The usual group loses almost nothing. With privacy, the model learns the rare group later and less well:
# examples that are not learned yet have long gradients, and clipping shortens those most. Try more epochs or
# another clipping bound before you try a larger epsilon.
#
# A loop of your own
# ------------------
# ``Trainer.fit`` runs this loop. In your own, you can run code after each step.

torch.manual_seed(1)
model = torch.nn.Linear(10, 2)
trainer = equidp.Trainer(
    model,
    torch.optim.SGD(model.parameters(), lr=1.0),
    train,
    method=equidp.DPSGD(clipping_bound=1.0),
    batch_size=200,
    epochs=5,
    epsilon=1.0,
    delta=1e-5,
)
for epoch in trainer.epochs():
    for step in epoch:
        if step.number % 25 == 0:
            print(f"step {step.number}: epsilon {step.epsilon:.2f}")
print(f"epsilon {trainer.run().epsilon():.2f}")

# %%
# The card
# --------
# A run in Python has the same card as ``equidp train`` writes: the guarantee, accuracy by group, and how to
# recompute epsilon.

folder = Path(tempfile.mkdtemp())
equidp.write_card(private, folder / "card.html", folder / "card.md", test=test, data="simulated")
print((folder / "card.md").read_text()[:1500], "...")
