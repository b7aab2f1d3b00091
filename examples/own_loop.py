"""A training loop of your own: your code runs between the private steps.

Run: python examples/own_loop.py
"""

from __future__ import annotations

import torch
from torch import nn

import equidp
from equidp.data import open_source


def main() -> equidp.Run:
    split = open_source("digits").split(seed=0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.5),
        split.train,
        method=equidp.GlobalAdapt(clipping_bound=1.0, initial_bound=5.0),
        batch_size=256,
        epochs=20,
        epsilon=4.0,
        delta=1e-4,
    )
    while trainer.step():  # Draws a Poisson sample, charges it, adds noise and steps the optimizer.
        if trainer.steps_done % 24 == 0:
            spent = trainer.epsilon_so_far(trainer.steps_done)
            bound = trainer.policy_state.bound
            print(f"step {trainer.steps_done}: epsilon at most {spent:.3f}, Z {bound:.2f}")
    model.eval()
    run = trainer.run()
    print(run.metrics(split.test).round(3).to_string(index=False))
    print(f"epsilon {run.epsilon():.3f} at delta {run.delta:g} after {trainer.steps_done} steps")
    return run


if __name__ == "__main__":
    main()
