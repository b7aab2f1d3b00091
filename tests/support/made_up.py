"""Made-up comparisons with known figures."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from equidp.comparison.result import Comparison, Setup
from equidp.training.plan import Plan


def made_up(
    costs: dict[str, dict[str, float]],
    *,
    seeds: int = 5,
    spread: float = 0.01,
    epsilons: tuple[float, ...] = (),
) -> Comparison:
    """A comparison in which each method's cost by group is as given, up to a known spread over seeds."""
    generator = np.random.default_rng(0)
    groups = list(next(iter(costs.values())))
    results, epochs = [], []
    for method in ["sgd", *costs]:
        settings = [f"epsilon={e:g}" for e in epsilons] if epsilons and method != "sgd" else [""]
        for setting in settings:
            scale = 1.0 if not setting else 3.0 / float(setting.split("=")[1])
            for seed in range(seeds):
                run = {"method": method, "setting": setting, "target_epsilon": math.nan, "seed": seed}
                lost = {group: 0.0 if method == "sgd" else costs[method][group] * scale for group in groups}
                accuracy = {
                    g: 0.9 - lost[g] + (method != "sgd") * spread * generator.standard_normal()
                    for g in groups
                }
                epsilon = math.inf if method == "sgd" else float(setting.split("=")[1]) if setting else 3.0
                for group, value in [*accuracy.items(), ("all", float(np.mean(list(accuracy.values()))))]:
                    row = {"group": group, "count": 100, "accuracy": value, "loss": 1.5 - value}
                    results.append({**run, **row, "epsilon": epsilon, "epsilon_rdp": epsilon * 1.1})
                for epoch in range(1, 6):
                    for group in groups:
                        shown = {
                            "accuracy": accuracy[group],
                            "loss": 2.0 / epoch,
                            "mean_norm": 3.0 * epoch,
                            "max_norm": 9.0,
                        }
                        shown |= {
                            "mean_gradient_norm": 1.0,
                            "share_clipped": 0.5,
                            "scale": math.nan,
                            "scale_name": "",
                        }
                        bound = math.inf if method == "sgd" else 1.0 + groups.index(group)
                        shown |= {"clipping_bound": bound, "epsilon": 1.0}
                        epochs.append({**run, "epoch": epoch, "step": epoch, "group": group, **shown})
    setup = Setup(
        data="made-up",
        group_names=tuple(groups),
        class_names=("no", "yes"),
        num_train_by_seed=(640,) * seeds,
        train_group_sizes=(640 // len(groups),) * len(groups),
        test_group_sizes=(100,) * len(groups),
        most_frequent_class=("yes", 0.3),
        plan=Plan(batch_size=64, epochs=5, delta=1e-5).for_method("sgd").resolve(640),
        methods=("sgd", *costs),
        seeds=tuple(range(seeds)),
        versions={"equidp": "0"},
        notes=("A note on preparation.",),
        command="equidp compare",
    )
    return Comparison(setup, pd.DataFrame(results), {"epochs": pd.DataFrame(epochs)})
