"""`equidp advise`: which method, and with what settings."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from equidp._validate import unknown_name
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.schedule import default_delta
from equidp.advice.advise import Advice, advise
from equidp.advice.norm_profile import NormProfile, private_profile, public_profile
from equidp.cli.app import app
from equidp.cli.options import (
    DATA,
    Bounds,
    Budget,
    BudgetDelta,
    BudgetEpsilon,
    Drop,
    Group,
    Missing,
    Model,
    Target,
    opened,
)
from equidp.data import DataSource, GroupedDataset
from equidp.errors import DataError, SettingError
from equidp.kernel.ledger import Ledger, MemoryLedger
from equidp.models import MODELS
from equidp.training.build import build_model
from equidp.training.plan import Plan, default_plan

_PROFILE_SHARE = 0.1


@app.command("advise")
def advise_command(
    data: Annotated[str, DATA],
    target: Target = None,
    group: Group = "",
    drop: Drop = "",
    missing: Missing = "refuse",
    bounds: Bounds = "",
    model: Model = None,
    epsilon: Annotated[float, typer.Option(help="Of advice and training together.")] = 3.0,
    delta: Annotated[
        float | None, typer.Option(help="Default: a tenth of 1 / n, rounded down to a power of ten.")
    ] = None,
    profile_epsilon: Annotated[
        float | None,
        typer.Option(
            help="What gradient norms and sizes of groups may cost; default: a tenth of --epsilon; 0 reads nothing."
        ),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(help="A public file with the same columns: its gradient norms are taken, at no cost."),
    ] = None,
    budget: Budget = None,
    budget_epsilon: BudgetEpsilon = None,
    budget_delta: BudgetDelta = None,
    seed: Annotated[int, typer.Option(help="Of the split and the initial weights, as for equidp train.")] = 0,
) -> None:
    """Recommend method, clipping bound, noise, batch size and epochs for a target epsilon, with reasons.

    Reads the private data once, through noise, and says what that cost; the recommended noise makes up for it.

    Examples:

        equidp advise people.csv --target income --group sex --epsilon 3

        equidp advise people.csv --target income --group sex --epsilon 3 --public census.csv

        equidp advise adult --epsilon 3 --profile-epsilon 0
    """
    if public is not None and profile_epsilon:
        raise SettingError(
            f"--public {public} and --profile-epsilon {profile_epsilon:g}; give one of the two."
        )
    if budget is None and (budget_epsilon is not None or budget_delta is not None):
        raise SettingError("--budget-epsilon and --budget-delta are of a budget's file; give --budget too.")
    if model is not None and model not in MODELS:
        raise unknown_name("model", model, MODELS)
    shown = {
        "target": target,
        "group": group,
        "drop": drop,
        "bounds": bounds,
        "missing": missing,
        "budget": budget,
        "budget-epsilon": budget_epsilon,
        "budget-delta": budget_delta,
    }
    options = [
        f"--{name}={value}"
        for name, value in shown.items()
        if value and (name, value) != ("missing", "refuse")
    ]

    like_data = partial(opened, target=target, group=group, drop=drop, missing=missing, bounds=bounds)
    split = like_data(data).split(seed)
    train, name = split.train, model or str(default_plan(data).model)
    fresh = build_model(Plan(name), split, seed)
    delta = default_delta(len(train)) if delta is None else delta
    if public is not None:
        profile: NormProfile | None = public_profile(
            _like(train, like_data(str(public)), public, seed), fresh
        )
    elif profile_epsilon == 0:
        profile = None
    else:
        cost = _PROFILE_SHARE * epsilon if profile_epsilon is None else profile_epsilon
        if epsilon > 0 and cost >= epsilon:
            raise SettingError(f"--profile-epsilon {cost:g} leaves nothing of --epsilon {epsilon:g}.")
        with _ledger(budget, budget_epsilon, budget_delta) as ledger:
            profile = private_profile(train, fresh, epsilon=cost, delta=delta, ledger=ledger)
    parameters = sum(parameter.numel() for parameter in fresh.parameters())
    advice = advise(
        len(train), parameters, epsilon=epsilon, delta=delta, num_groups=train.num_groups, profile=profile
    )
    for line in advice.in_words():
        typer.echo(line)
    typer.echo("\nTo train so:\n" + _train_command(advice, data, name, [*options, f"--seed={seed}"]))


@contextmanager
def _ledger(budget: Path | None, epsilon: float | None, delta: float | None) -> Iterator[Ledger]:
    """Where the cost of advice is written: to a budget where there is one."""
    if budget is None:
        yield MemoryLedger()
        return
    with PrivacyBudget(budget, epsilon=epsilon, delta=delta, run="advise") as account:
        ledger = account.ledger(MemoryLedger())
        yield ledger
        ledger.settle()


def _like(train: GroupedDataset, source: DataSource, path: Path, seed: int) -> GroupedDataset:
    """Public data, which must look like the private."""
    public = source.split(seed).train
    given, wanted = (
        (list(each.inputs.shape[1:]), each.class_names, each.group_names) for each in (public, train)
    )
    if given != wanted:
        raise DataError(
            f"{str(path)!r} gives inputs, classes and groups {given}; the private data has {wanted}. They must be the same."
        )
    return public


def _train_command(advice: Advice, data: str, model: str, options: list[str]) -> str:
    """The command that trains as advised. Without a budget, its own epsilon leaves out what the advice cost."""
    parts = ["equidp", "train", data, *options, f"--method={advice.method}", f"--model={model}"]
    parts += [f"--{name.replace('_', '-')}={value:.6g}" for name, value in advice.settings.items()]
    noise = float(f"{advice.noise_multiplier * (1 + 5e-6):.6g}")  # rounding must not lower it
    parts += ["--weight-decay=0", f"--noise-multiplier={noise:g}", f"--delta={advice.delta:g}", "--out=run"]
    return shlex.join(parts)
