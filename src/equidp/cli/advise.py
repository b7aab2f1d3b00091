"""`equidp advise`: which method, and with what settings."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from cyclopts import Parameter

from equidp._files import check_outputs, command_line, write_whole
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.planned import default_delta
from equidp.advice.advise import Advice, advise
from equidp.advice.auto import Choice, choose, images_of
from equidp.advice.norm_profile import NormProfile, private_profile, public_profile
from equidp.cli import options
from equidp.cli.app import command
from equidp.data import DataSource, GroupedDataset
from equidp.data.targets import in_units
from equidp.errors import DataError, SettingError
from equidp.kernel.ledger import Ledger, MemoryLedger
from equidp.models import model_named
from equidp.training.build import build_model
from equidp.training.device import chosen_device
from equidp.training.plan import Plan, loss_named

_PROFILE_SHARE = 0.1
_FREE = (
    "This advice cost nothing: it follows from the shape of an input and the number of examples alone. "
    "--profile-epsilon or --public take norms of gradients into account."
)

app = command(
    "advise",
    "equidp advise people.csv --target income --group sex --epsilon 3 --out advice.toml",
    "equidp advise people.csv --target income --group sex --epsilon 3 \\\n      --profile-epsilon 0.3",
    "equidp advise people.csv --target income --group sex --epsilon 3 \\\n      --public census.csv",
)


@Parameter(name="*")
@dataclass(frozen=True)
class AdviceOptions:
    """Options of the advice, and the data that it may read."""

    model: options.Model = None
    loss: str | None = None
    """User-defined loss of each example, my_module:my_loss; default: cross entropy."""
    epsilon: float = 3.0
    """Epsilon of advice and training together."""
    delta: options.Delta = None
    profile_epsilon: float | None = None
    """What gradient norms and group sizes may cost; default: a tenth of --epsilon, where they are needed; 0
    reads nothing."""
    public: Path | None = None
    """A public file with the same columns, whose gradient norms cost nothing."""
    device: options.Device = "cpu"
    seed: int = 0
    """Seed of the split and the initial weights, as for equidp train."""

    @property
    def profiled(self) -> bool:
        """True where advice on a model, or from norms of gradients, is requested."""
        asked = (self.model, self.loss, self.profile_epsilon, self.public)
        return any(each is not None for each in asked)


@app.default
def advise_command(
    data: options.Data,
    *,
    wanted: AdviceOptions = AdviceOptions(),
    out: Annotated[
        Path | None,
        Parameter(
            help="Write the options to this TOML file, for equidp train --config.",
            converter=options.file_name,
        ),
    ] = None,
    config: options.Config = None,
    table: options.TableOptions = options.TableOptions(),
    budget: options.BudgetOptions = options.BudgetOptions(),
) -> None:
    """Recommend method and settings for a target epsilon, with reasons.

    Says what did best on data of this kind, which costs nothing. For a model of your own (--model), and where
    no evidence is at hand, it reads norms of gradients once, through noise (--profile-epsilon), and says what
    that cost; the recommended noise makes up for it.
    """
    read = (data, wanted.public, config, table.recipe)
    check_outputs({"--out": out, "--budget": budget.budget}, *read)
    if budget.budget is not None:
        options.check_budget(budget.budget, *read)
    if wanted.public is not None and wanted.profile_epsilon:
        given = f"--public {wanted.public} and --profile-epsilon {wanted.profile_epsilon:g}"
        raise SettingError(f"{given}: each is a source of gradient norms; give one of the two.")
    if budget.budget is None and (budget.budget_epsilon is not None or budget.budget_delta is not None):
        raise SettingError("--budget-epsilon and --budget-delta are of a budget's file; give --budget too.")
    place = chosen_device(wanted.device)
    source = table.open(data)
    train = source.split(wanted.seed).train
    same = [*options.typed_again(table), *options.typed_again(budget), f"--seed={wanted.seed}"]
    same += [] if wanted.device == "cpu" else [f"--device={wanted.device}"]
    if not wanted.profiled and (choice := choose(images_of(source, wanted.seed) or train)).settings:
        own = table.starting_plan(data).delta if wanted.delta is None else wanted.delta
        plan = choice.plan(Plan(delta=own)).resolve(choice.method, len(train), epsilon=wanted.epsilon)
        spent = f"{plan.steps:,} steps with noise multiplier {plan.noise_multiplier:.4g}: epsilon "
        spent += f"{wanted.epsilon:g} at delta {plan.delta:g}."
        same += [f"--epsilon={wanted.epsilon:g}", f"--delta={plan.delta:g}"]
        typed = [*same, *_by_evidence(choice, table.features)]
        _recommend(data, typed, [*choice.in_words(), spent, _FREE], out)
        return
    model = wanted.model or table.starting_plan(data).model_name
    factory = in_units(model_named(model), train.target_bounds)
    fresh = build_model(factory, train.input_shape, train.num_outputs, wanted.seed).to(place)
    delta = default_delta(len(train)) if wanted.delta is None else wanted.delta
    loss = None if wanted.loss is None else loss_named(wanted.loss)
    profile: NormProfile | None = None
    if wanted.public is not None:
        public = _like(train, table.open(str(wanted.public)), wanted.public, wanted.seed)
        profile = public_profile(public, fresh, loss)
    elif wanted.profile_epsilon != 0:
        cost = _PROFILE_SHARE * wanted.epsilon if wanted.profile_epsilon is None else wanted.profile_epsilon
        if 0 < wanted.epsilon <= cost:
            raise SettingError(f"--profile-epsilon {cost:g} leaves nothing of --epsilon {wanted.epsilon:g}.")
        with _ledger(budget, train.source, train.unit) as ledger:
            profile = private_profile(train, fresh, epsilon=cost, delta=delta, loss=loss, ledger=ledger)
    size, limits = sum(map(torch.numel, fresh.parameters())), {"epsilon": wanted.epsilon, "delta": delta}
    advice = advise(len(train), size, num_groups=train.num_groups, profile=profile, **limits)
    own_loss = [] if wanted.loss is None else [f"--loss={wanted.loss}"]
    _recommend(data, [*same, *_options(advice, model), *own_loss], advice.in_words(), out)


def _recommend(data: str, typed: list[str], lines: Sequence[str], out: Path | None) -> None:
    """Prints advice and the command that follows it, and writes the file where one is asked for."""
    print(*lines, sep="\n")
    given = command_line("equidp", "train", Path(data) if os.path.exists(data) else data, *typed, "--out=run")
    print(f"\nTo train so:\n{given}")
    if out is not None:
        write_whole(out, _toml([f"--data={data}", *typed], lines))
        print("or:\n" + command_line("equidp", "train", "--config", out, "--out", "run"))


def _by_evidence(choice: Choice, given: str | None) -> list[str]:
    """Options that train as `equidp train --method auto` does, beside features that were given."""
    features = [] if choice.features is None or given is not None else [f"--features={choice.features}"]
    settings = {**choice.settings, "weight_decay": 0}
    typed = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    return [f"--method={choice.method}", *features, *typed]


@contextmanager
def _ledger(budget: options.BudgetOptions, source: str, unit: str) -> Iterator[Ledger]:
    """Where the cost of advice is written: to a budget where there is one."""
    if budget.budget is None:
        yield MemoryLedger()
        return
    with PrivacyBudget(
        budget.budget,
        epsilon=budget.budget_epsilon,
        delta=budget.budget_delta,
        data=budget.budget_data,
        run="advise",
    ) as account:
        account.for_data(source, unit)
        ledger = account.ledger(MemoryLedger())
        yield ledger
        ledger.settle()


def _like(train: GroupedDataset, source: DataSource, path: Path, seed: int) -> GroupedDataset:
    """Public data, which must look like the private data."""
    public = source.split(seed).train
    given, wanted = ((list(x.input_shape), x.class_names, x.group_names) for x in (public, train))
    if given != wanted:
        gives = f"{str(path)!r} gives inputs, classes and groups {given}"
        raise DataError(f"{gives}; the private data has {wanted}. They must be the same.")
    return public


def _options(advice: Advice, model: str) -> list[str]:
    """Options that train as advised. Without a budget, that run's epsilon leaves out what the advice cost."""
    settings = [f"--{name.replace('_', '-')}={value:.6g}" for name, value in advice.settings.items()]
    noise = float(f"{advice.noise_multiplier * (1 + 5e-6):.6g}")  # rounding must not lower it
    own = ["--weight-decay=0", f"--noise-multiplier={noise:g}", f"--delta={advice.delta:g}"]
    return [f"--method={advice.method}", f"--model={model}", *settings, *own]


def _toml(typed: Sequence[str], said: Sequence[str]) -> str:
    """The same options as a TOML file, with the reasons above them."""
    pairs = [option.removeprefix("--").split("=", 1) for option in typed]
    lines = [options.ADVISED, *(f"# {line}" for line in said if line)]
    return "\n".join([*lines, *(f"{name} = {json.dumps(value)}" for name, value in pairs)]) + "\n"
