"""Fine-tunes only the last layer: the body learns from public data, the head from private data.

Frozen parameters have no gradient to clip and get no noise, so a small head needs far less epsilon than the
whole network.

Run: python examples/last_layer.py
"""

from __future__ import annotations

import torch
from torch import nn

import equidp
from equidp.data import GroupedDataset, open_source


def pretrain(body: nn.Module, public: GroupedDataset) -> None:
    """Plain training, without privacy: on public data only."""
    model = nn.Sequential(body, nn.Linear(64, public.num_classes))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(public.inputs), public.targets).backward()
        optimizer.step()


def main() -> equidp.Run:
    split = open_source("digits").split(seed=0)
    half = len(split.train) // 2
    public, private = split.train.subset(torch.arange(half)), split.train.subset(torch.arange(half, 2 * half))

    body = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.Tanh())
    pretrain(body, public)
    for parameter in body.parameters():
        parameter.requires_grad = False  # before the Trainer is made, which checks what is trained

    head = nn.Linear(64, private.num_classes)
    model = nn.Sequential(body, head)
    frozen = [parameter.clone() for parameter in body.parameters()]
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(head.parameters(), lr=0.5),
        private,
        method=equidp.Automatic(clipping_bound=1.0),
        batch_size=128,
        steps=100,
        epsilon=2.0,
        delta=1e-4,
    )
    run = trainer.fit()
    assert all(torch.equal(old, new) for old, new in zip(frozen, body.parameters(), strict=True))
    print(run.metrics(split.test).round(3).to_string(index=False))
    print(f"epsilon {run.epsilon():.3f} at delta {run.delta:g}, for {len(private)} private examples")
    return run


if __name__ == "__main__":
    main()
