"""Trains the same logistic regression with Opacus and with equidp.

In equidp, no PrivacyEngine wraps model, optimizer and loader: `Trainer` takes the model, the optimizer and
the dataset. Batches are Poisson samples in both. The loss gives one number per example. Groups are optional.

Run: python examples/from_opacus.py (needs Opacus)
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import equidp
from equidp.data import open_source

EPSILON, DELTA, EPOCHS, BATCH_SIZE, BOUND, RATE = 6.0, 1e-4, 20, 256, 1.0, 0.5


def fresh_model() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def with_opacus(train: equidp.GroupedDataset) -> tuple[nn.Module, float]:
    from opacus import PrivacyEngine

    model = fresh_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    loader = DataLoader(TensorDataset(train.inputs, train.targets), batch_size=BATCH_SIZE)
    engine = PrivacyEngine()
    model, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        target_epsilon=EPSILON,
        target_delta=DELTA,
        epochs=EPOCHS,
        max_grad_norm=BOUND,
    )
    loss = nn.CrossEntropyLoss()
    for _ in range(EPOCHS):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss(model(inputs), targets).backward()
            optimizer.step()
    return model, engine.get_epsilon(DELTA)


def with_equidp(train: equidp.GroupedDataset) -> tuple[nn.Module, float]:
    model = fresh_model()  # as before; no wrapper, so state_dict and pickles keep their names
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)  # as before
    trainer = equidp.Trainer(  # DataLoader and PrivacyEngine in one
        model,
        optimizer,
        train,  # in memory, or any map-style Dataset of (input, target, group)
        batch_size=BATCH_SIZE,  # of the DataLoader
        epsilon=EPSILON,  # or noise_multiplier
        delta=DELTA,  # target_delta
        epochs=EPOCHS,
        method=equidp.DPSGD(clipping_bound=BOUND),  # max_grad_norm; another policy is another method
        loss=nn.CrossEntropyLoss(reduction="none"),  # one loss per example
    )
    while trainer.step():  # the two loops: zero_grad, backward and optimizer.step
        pass  # trainer.fit() does the same
    return model, trainer.run().epsilon()  # get_epsilon


def main() -> dict[str, tuple[float, float]]:
    """Test accuracy and epsilon of each."""
    split = open_source("digits").split(seed=0)
    results = {}
    for name, train in (("Opacus", with_opacus), ("equidp", with_equidp)):
        model, epsilon = train(split.train)
        with torch.no_grad():
            predicted = model.eval()(split.test.inputs).argmax(dim=1)
        results[name] = (float((predicted == split.test.targets).double().mean()), epsilon)
        print(f"{name}: accuracy {results[name][0]:.3f}, epsilon {epsilon:.3f} at delta {DELTA:g}")
    return results


if __name__ == "__main__":
    main()
