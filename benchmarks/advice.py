"""What `equidp advise` recommends, and its accuracy beside other methods at the same settings and epsilon.

EQUIDP_DATA=... python benchmarks/advice.py adult [--json figures.json]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import equidp
from equidp.accounting.planned import default_delta
from equidp.advice.advise import advise_by_norms
from equidp.advice.norm_profile import private_profile
from equidp.data import open_source
from equidp.kernel.noise import SeededRandomness
from equidp.models import MODELS
from equidp.report.advice import advice_sentences
from equidp.training.plan import Plan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", help="adult, digits, ...")
    parser.add_argument("--model", default="logistic")
    parser.add_argument("--epsilon", type=float, default=3.0)
    parser.add_argument("--methods", default="dpsgd,dpsgd-f,dpsgd-f-code,global-adapt")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path, help="file for the figures, as of equidp compare --json")
    arguments = parser.parse_args()

    source = open_source(arguments.data)
    train = source.split(seed=0).train
    torch.manual_seed(0)
    model = MODELS[arguments.model](tuple(train.inputs.shape[1:]), train.num_classes)
    profile = private_profile(
        train,
        model,
        epsilon=arguments.epsilon / 10,
        delta=default_delta(len(train)),
        randomness=SeededRandomness(0),
    )
    advice = advise_by_norms(
        len(train),
        sum(parameter.numel() for parameter in model.parameters()),
        epsilon=arguments.epsilon,
        model=arguments.model,
        profile=profile,
    )
    print("\n".join(advice_sentences(advice)))
    comparison = equidp.compare(
        source,
        methods=list(dict.fromkeys([advice.method, *arguments.methods.split(",")])),
        seeds=arguments.seeds,
        plan=advice.plan(Plan()),
        epsilons=[arguments.epsilon],
        baseline="plan",
    )
    if arguments.json is not None:
        comparison.to_json(arguments.json)
    costs = comparison.costs()
    figures = costs.groupby(["method", "group"])[["accuracy", "privacy_cost"]].mean()
    print(figures.round(4).unstack("group").to_string())


if __name__ == "__main__":
    main()
