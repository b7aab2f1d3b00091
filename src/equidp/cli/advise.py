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
from torch import nn

from equidp._files import check_outputs, command_line, write_whole
from equidp._validate import check_number, check_seed
from equidp.accounting.planned import default_delta
from equidp.accounting.target import Target
from equidp.advice.advise import Advice, advise, advise_by_norms, images_of, normalised_features
from equidp.advice.chosen_plan import encoding_to_train_on
from equidp.advice.norm_profile import NormProfile, private_profile, public_profile
from equidp.cli import options
from equidp.cli.app import command
from equidp.data import DataSource, GroupedDataset
from equidp.data.features import add_features
from equidp.data.targets import in_units
from equidp.errors import DataError, SettingError
from equidp.kernel.ledger import Ledger, MemoryLedger
from equidp.models import model_named
from equidp.report.advice import advice_sentences
from equidp.runs.config import BudgetFile
from equidp.training.build import build_model
from equidp.training.device import chosen_device
from equidp.training.plan import Plan, ResolvedPlan, default_plan, loss_named

_PROFILE_SHARE = 0.1
_FREE = (
    "This advice cost nothing: it follows from the shape of an input and the number of examples alone. "
    "--profile-epsilon or --public take norms of gradients into account."
)

_PUBLIC = "This advice cost nothing: it read public data alone."

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
    """Epsilon spent on gradient norms; default: a tenth of --epsilon, where they are needed; 0
    reads nothing."""
    public: Path | None = None
    """A public file with the same columns, whose gradient norms cost nothing."""
    device: options.Device = "cpu"
    seed: int = 0
    """Seed of the split and the initial weights, as for equidp train."""

    @property
    def reads_norms(self) -> bool:
        """True where advice on a model or a loss, or from norms of gradients, is requested."""
        own = (self.model, self.loss, self.public)
        return bool(self.profile_epsilon) or any(each is not None for each in own)


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

    The recommendation is what did best in benchmarks on data of this kind. It costs no privacy, and equidp
    train --method auto takes the same. For a model of your own (--model), and for data without benchmarks,
    clipping bound and learning rate follow from norms of gradients, which are measured once, with noise
    (--profile-epsilon); the recommended noise of training includes that cost.
    """
    check_seed(wanted.seed)
    if wanted.profile_epsilon is not None:
        check_number("[0, inf)", profile_epsilon=wanted.profile_epsilon)
    read = (data, wanted.public, config, table.recipe)
    charged = budget.file(*read)
    check_outputs({"--out": out, "--budget": None if charged is None else charged.path}, *read)
    if wanted.public is not None and wanted.profile_epsilon:
        given = f"--public {wanted.public} and --profile-epsilon {wanted.profile_epsilon:g}"
        raise SettingError(f"{given}: each is a source of gradient norms; give one of the two.")
    place = chosen_device(wanted.device)
    source = table.open(data)
    same = [*options.typed_again(table), *options.typed_again(budget), f"--seed={wanted.seed}"]
    same += [] if wanted.device == "cpu" else [f"--device={wanted.device}"]
    train = source.split(wanted.seed).train
    start = default_plan(source)
    encoding = encoding_to_train_on(source, own_model=wanted.reads_norms)
    of_privacy = {} if wanted.delta is None else {"delta": wanted.delta}
    images, features = images_of(source, wanted.seed), normalised_features(source)
    advice = advise(images or train, Target(wanted.epsilon), of_privacy, encoding, features)
    delta = start.delta if wanted.delta is None else wanted.delta
    delta = default_delta(len(train)) if delta is None else delta
    begin = "auto takes"
    if wanted.reads_norms or not advice.settings:
        begin = "Take"
        own_inputs = wanted.model is not None or table.features is not None
        features = None if own_inputs else advice.features
        if features is not None:
            train = add_features(source, features).split(wanted.seed).train
        model = wanted.model or str(advice.settings.get("model", start.model_name))
        factory = in_units(model_named(model), train.target_bounds)
        fresh = build_model(factory, train.input_shape, train.num_outputs, wanted.seed).to(place)
        advice = advise_by_norms(
            len(train),
            sum(map(torch.numel, fresh.parameters())),
            model=model,
            epsilon=wanted.epsilon,
            delta=delta,
            profile=_profile(wanted, charged, table, train, fresh, delta),
            features=features,
        )
    plan = advice.plan(Plan(delta=delta)).resolve(
        advice.method, len(train), Target(wanted.epsilon), also_spent=advice.spent
    )
    included = ", this advice included" if advice.spent else ""
    lines = [
        *advice_sentences(advice, begin),
        f"{plan.steps:,} steps with noise multiplier {plan.noise_multiplier:.4g}: epsilon {wanted.epsilon:g} "
        f"at delta {delta:g}{included}.",
    ]
    if advice.spent:
        lines.append(f"This advice cost epsilon {advice.cost(delta):.3g}; another costs as much again.")
    else:
        lines.append(_FREE if wanted.public is None else _PUBLIC)
    _recommend(data, [*same, *_training_options(advice, plan, wanted, table)], lines, out)


def _training_options(
    advice: Advice, plan: ResolvedPlan, wanted: AdviceOptions, table: options.TableOptions
) -> list[str]:
    """Return the options of equidp train that follow advice on the plan, as a command line has them."""
    typed = [f"--method={advice.method}"]
    typed += [f"--encoding={advice.encoding}"] if advice.encoding and table.encoding is None else []
    typed += [f"--features={advice.features}"] if advice.features and table.features is None else []
    settings = {**advice.settings, "weight_decay": 0}
    typed += [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    typed += [] if wanted.loss is None else [f"--loss={wanted.loss}"]
    if advice.spent:  # without a budget, the run's epsilon leaves out what the advice cost
        noise = float(f"{plan.noise_multiplier * (1 + 5e-6):.6g}")  # rounding must not lower it
        return [*typed, f"--noise-multiplier={noise:g}", f"--delta={plan.delta:g}"]
    return [*typed, f"--epsilon={wanted.epsilon:g}", f"--delta={plan.delta:g}"]


def _profile(
    wanted: AdviceOptions,
    budget: BudgetFile | None,
    table: options.TableOptions,
    train: GroupedDataset,
    model: nn.Module,
    delta: float,
) -> NormProfile | None:
    """Measure gradient norms of public data or, at a cost, of training data; None for --profile-epsilon 0."""
    loss = None if wanted.loss is None else loss_named(wanted.loss)
    if wanted.public is not None:
        public = _read_public(train, table.open(str(wanted.public)), wanted.public, wanted.seed)
        return public_profile(public, model, loss)
    if wanted.profile_epsilon == 0:
        return None
    cost = _PROFILE_SHARE * wanted.epsilon if wanted.profile_epsilon is None else wanted.profile_epsilon
    if 0 < wanted.epsilon <= cost:
        raise SettingError(f"--profile-epsilon {cost:g} leaves nothing of --epsilon {wanted.epsilon:g}.")
    with _ledger(budget, train.source, train.unit) as ledger:
        return private_profile(train, model, epsilon=cost, delta=delta, loss=loss, ledger=ledger)


def _recommend(data: str, typed: list[str], lines: Sequence[str], out: Path | None) -> None:
    """Print advice and the command that uses it; write the options to the file, if given."""
    print(*lines, sep="\n")
    given = command_line("equidp", "train", Path(data) if os.path.exists(data) else data, *typed, "--out=run")
    print(f"\nTo train with these settings:\n{given}")
    if out is not None:
        write_whole(out, _toml([f"--data={data}", *typed], lines))
        print("or:\n" + command_line("equidp", "train", "--config", out, "--out", "run"))


@contextmanager
def _ledger(budget: BudgetFile | None, source: str, unit: str) -> Iterator[Ledger]:
    """Open the ledger of the advice, charged to the budget if there is one."""
    if budget is None:
        yield MemoryLedger()
        return
    with budget.open("advise") as account:
        account.for_data(source, unit)
        ledger = account.ledger(MemoryLedger())
        yield ledger
        ledger.settle()


def _read_public(train: GroupedDataset, source: DataSource, path: Path, seed: int) -> GroupedDataset:
    """Read public data; DataError unless inputs, classes and groups are as in the private data."""
    public = source.split(seed).train
    given, wanted = ((list(x.input_shape), x.class_names, x.group_names) for x in (public, train))
    if given != wanted:
        gives = f"{str(path)!r} gives inputs, classes and groups {given}"
        raise DataError(f"{gives}; the private data has {wanted}. They must be the same.")
    return public


def _toml(typed: Sequence[str], said: Sequence[str]) -> str:
    """Return the options as the text of a TOML file, with the sentences as comments above them."""
    pairs = [option.removeprefix("--").split("=", 1) for option in typed]
    lines = [options.ADVISED, *(f"# {line}" for line in said if line)]
    return "\n".join([*lines, *(f"{name} = {json.dumps(value)}" for name, value in pairs)]) + "\n"
