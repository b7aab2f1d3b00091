"""A convolutional network of your own, with a scheduler and a callback, trained privately.

Run: python examples/own_cnn.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

import equidp
from equidp.data import open_source


class DigitNet(nn.Module):
    """Its output for one example must not depend on others: GroupNorm, not BatchNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.GroupNorm(4, 16), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images).flatten(1))


class Watch(equidp.Callback):
    """Prints test accuracy every five epochs. It reads test examples only, never the training data."""

    def __init__(self, test: equidp.GroupedDataset) -> None:
        self.test = test

    def after_epoch(self, trainer: equidp.Trainer) -> None:
        if round(trainer.epoch) % 5 == 0:
            metrics = trainer.run().metrics(self.test).set_index("group")
            print(f"epoch {trainer.epoch:.0f}: accuracy {metrics.loc['all', 'accuracy']:.3f}")


def main() -> equidp.Run:
    split = open_source("digits").split(seed=0)
    model = DigitNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.5)
    steps = 120
    trainer = equidp.Trainer(
        model,
        optimizer,
        split.train,
        method=equidp.DPSGD(clipping_bound=1.0),
        batch_size=256,
        steps=steps,
        epsilon=8.0,
        delta=1e-4,
        scheduler=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps),
        callbacks=[Watch(split.test)],  # or equidp.ProgressBar()
    )
    run = trainer.fit()
    print(run.metrics(split.test).round(3).to_string(index=False))
    print(f"epsilon {run.epsilon():.3f} at delta {run.delta:g}")
    return run


if __name__ == "__main__":
    main()
