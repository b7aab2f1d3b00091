"""Cases whose results must not change: seeded trainings, plans, odd tables, finished runs, comparisons.

A result has three parts:
- "exact": what no processor changes: plans, entries of ledgers, epsilons, splits, findings, what was refused;
- "close": sketches of weights and figures, which other processors round otherwise (1e-4);
- "bits": a digest of everything, for comparisons on one machine (`benchmarks/golden.py`).

What needs the real Adult is in cases named "adult ...", which need EQUIDP_DATA.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import io
import itertools
import json
import math
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

import equidp
from equidp.data import Recipe, open_source
from equidp.errors import DataWarning, EquidpError
from equidp.training.plan import account
from papers.reproduction.fairlens import FairLens
from support.odd_tables import ODD, Odd, save, stated
from support.processes import together

Result = dict[str, Any]
METHODS = (
    *("sgd", "dpsgd", "dpsgd-f", "dpsgd-f-code", "fairlens", "naive", "global", "global-adapt", "quantile"),
    *("quantile-bounded", "softadaclip", "automatic", "psac"),
)
STEPS, BATCH, ROWS = 40, 64, 2000
WAYS = ("plain", "rates", "bounds", "parts", "individual clipping")
DRIVERS = ("own loop", "killed and resumed", "hugging face", "lightning")


def rounded(value: Any) -> Any:
    """The value with floats as texts of twelve digits, as JSON holds it."""
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Mapping):
        return {str(name): rounded(each) for name, each in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [rounded(each) for each in value]
    return value


def digest(*parts: Any) -> str:
    found = hashlib.sha256()
    for part in parts:
        if isinstance(part, Tensor):
            part = part.detach().cpu().contiguous().numpy().tobytes()
        found.update(part if isinstance(part, bytes) else repr(part).encode())
    return found.hexdigest()[:24]


def sketch(values: Tensor) -> list[float]:
    """Norm of a vector and three of its projections on random signs."""
    flat = values.detach().flatten().to(torch.float64)
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (3, len(flat)))
    return [float(flat.norm()), *(torch.as_tensor(signs) @ flat / math.sqrt(max(1, len(flat)))).tolist()]


def attempt(call: Callable[[], Result]) -> Result:
    """What it gives; or type and field of the error that it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return call()
        except EquidpError as error:
            refused = {"refused": type(error).__name__, "field": getattr(error, "field", None)}
            return {"exact": refused, "close": [], "bits": digest(sorted(refused.items()))}


# ---------------------------------------------------------------------------------------------- trajectories


@cache
def rows_of(data: str) -> equidp.GroupedDataset:
    """Digits, whose groups are the rare eights and the others; or Adult, by sex."""
    train = open_source(data).split(0).train
    rows = train.subset(torch.arange(min(ROWS, len(train))))
    if data == "digits":
        names = ("usual", "eight"), rows.class_names
        return equidp.GroupedDataset(rows.inputs, rows.targets, (rows.targets == 8).long(), *names)
    return rows


def model_of(rows: equidp.GroupedDataset) -> nn.Module:
    torch.manual_seed(0)
    width = math.prod(rows.input_shape)
    return nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, rows.num_classes))


def settings_of(method: str, data: str, way: str = "plain") -> dict[str, Any]:
    """Arguments of a Trainer, without model and optimizer."""
    policy = FairLens() if method == "fairlens" else equidp.METHODS[method].policy()
    names = rows_of(data).group_names
    given: dict[str, Any] = {
        "method": policy,
        "noise_multiplier": 1.0 if policy.private else 0.0,
        "delta": 1e-5,
        "steps": STEPS,
        "batch_size": BATCH,
        "seed": 5,
    }
    if way == "rates":
        given["rates"] = {names[-1]: 1.5}
    if way == "bounds":
        given["bound_shares"] = {names[0]: 0.5}
    if way == "parts":
        given["physical_batch_size"] = 7
    if way == "individual clipping":
        given["individual"] = equidp.Individual(per_epoch=3, clipping=True)
    return given


def trainer_of(method: str, data: str, way: str = "plain", **more: Any) -> equidp.Trainer:
    rows = rows_of(data)
    model = model_of(rows)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    return equidp.Trainer(model, optimizer, rows, **settings_of(method, data, way) | more)


def as_golden(event: Any) -> tuple[str, dict[str, Any]]:
    """Class and fields by which golden values name an event."""
    if type(event).__name__ != "Event":  # of a commit that had these classes
        return type(event).__name__, asdict(event)
    found = {"sample_rate": event.rate, "noise_multiplier": event.noise}
    found["statistics_noise"] = event.statistics_noise
    if event.name != "step":
        return "ReleaseEvent", {**found, "name": event.name, "id": ""}
    if not event.shares:
        return "StepEvent", found
    shares = [
        {"name": each.label, "sample_rate": each.rate, "bound_share": each.bound, "row_share": each.row}
        for each in event.shares
    ]
    return "GroupedStepEvent", {**found, "by_group": shares}


def entries_of(run: Any) -> list[Any]:
    events = [(*as_golden(event), count) for event, count in run.entries]
    return [[name, rounded(fields), count] for name, fields, count in events]


def spent_of(run: Any) -> dict[str, Any]:
    found = {"epsilon": run.epsilon(), "rdp": run.epsilon(accountant="rdp")}
    found = {"entries": entries_of(run), **rounded(found)}
    by_group = run.epsilon_by_group(accountant="rdp")
    if len(set(by_group.values())) > 1:
        found["by group"] = rounded(by_group)
    return found


def result_of(run: Any, trainer: Any) -> Result:
    weights = torch.cat([each.detach().flatten() for each in run.model.parameters()])
    state = [each for each in trainer.policy_state if isinstance(each, Tensor)]
    close = [*sketch(weights), *(value for each in state for value in sketch(each))]
    return {"exact": spent_of(run), "close": close, "bits": digest(weights, *state)}


def fitted(method: str, data: str, way: str) -> Result:
    trainer = trainer_of(method, data, way)
    return result_of(trainer.fit(), trainer)


def in_own_loop(method: str, data: str) -> Result:
    trainer = trainer_of(method, data)
    while trainer.step():
        pass
    return result_of(trainer.run(), trainer)


class _Kill(equidp.Callback):
    def after_step(self, trainer: Any) -> None:
        if trainer.steps_done == 17:
            os.kill(os.getpid(), signal.SIGKILL)


class _Save(equidp.Callback):
    """Saves after the tenth step."""

    def __init__(self, checkpoints: equidp.Checkpoints) -> None:
        self.checkpoints = checkpoints

    def after_step(self, trainer: Any) -> None:
        if trainer.steps_done == 10:
            self.checkpoints.save(trainer)


def killed_and_resumed(method: str, data: str) -> Result:
    """Killed after step 17, resumed from the checkpoint of step 10: steps 11 to 17 stay spent."""
    rows_of(data)
    with tempfile.TemporaryDirectory() as folder:

        def make(kill: bool) -> equidp.Trainer:
            kept = equidp.Checkpoints(f"{folder}/kept", seconds=1e9)
            callbacks = [kept, *([_Save(kept), _Kill()] if kill else [])]
            return trainer_of(method, data, ledger=equidp.Ledger(f"{folder}/ledger"), callbacks=callbacks)

        child = os.fork()
        if not child:
            # Blocks that a ledger pays ahead follow the clock: by this one, each step is a block.
            time.monotonic = partial(next, itertools.count(0.0, 1000.0))  # type: ignore[assignment]
            try:
                make(kill=True).fit()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        trainer = make(kill=False)
        lost = trainer.callbacks[0].restore(trainer)
        done = trainer.steps_done
        result = result_of(trainer.fit(), trainer)
        result["exact"] |= {"killed by": os.WTERMSIG(status), "steps when resumed": done}
        result["exact"]["lost"] = lost if isinstance(lost, int) else None
        trainer.ledger.close()
    return result


class _ForTransformers(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, labels: Tensor | None = None, g: Any = None) -> dict[str, Tensor]:
        logits = self.inner(x)
        if labels is None:
            return {"logits": logits}
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def with_transformers(method: str, data: str) -> Result:
    import transformers

    from equidp.integrations.hugging_face import Privacy, PrivateTrainer

    rows, given = rows_of(data), settings_of(method, data)
    listed = [
        {"x": rows.inputs[place].flatten().tolist(), "labels": int(rows.targets[place]), "g": int(group)}
        for place, group in enumerate(rows.groups.tolist())
    ]
    plan = equidp.Plan(**{name: given[name] for name in ("method", "delta", "noise_multiplier")})
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        trainer = PrivateTrainer(
            privacy=Privacy(
                plan,
                seed=given["seed"],
                group_names=rows.group_names,
                group_column="g",
                loss=nn.CrossEntropyLoss(reduction="none"),
            ),
            model=_ForTransformers(model_of(rows)),
            args=transformers.TrainingArguments(
                folder,
                per_device_train_batch_size=BATCH,
                max_steps=STEPS,
                learning_rate=0.01,
                report_to=[],
                save_strategy="no",
                logging_strategy="no",
                disable_tqdm=True,
                use_cpu=True,
                remove_unused_columns=False,
                seed=0,
            ),
            train_dataset=listed,
        )
        trainer.train()
        return result_of(trainer.run(), trainer.private_trainer)


def with_lightning(method: str, data: str) -> Result:
    import lightning

    from equidp.integrations.lightning import PrivateStrategy

    rows, given = rows_of(data), settings_of(method, data)

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = model_of(rows)

        def forward(self, inputs: Tensor) -> Tensor:
            return self.net(inputs)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            inputs, targets, *_ = batch
            return nn.functional.cross_entropy(self(inputs), targets)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.2)

    private = {name: given[name] for name in ("method", "delta", "noise_multiplier", "seed")}
    columns = rows.inputs.flatten(1), rows.targets, rows.groups
    private |= {"group_names": rows.group_names, "group": lambda item: int(item[2])}
    strategy = PrivateStrategy(**private)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(*columns), batch_size=BATCH, shuffle=True
    )
    with tempfile.TemporaryDirectory() as folder:
        trainer = lightning.Trainer(
            strategy=strategy,
            default_root_dir=folder,
            accelerator="cpu",
            max_steps=STEPS,
            logger=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            enable_checkpointing=False,
        )
        trainer.fit(Module(), loader)
    return result_of(strategy.run(), strategy.private_trainer)


def each_method(data: str, methods: tuple[str, ...]) -> dict[str, Result]:
    return {method: attempt(partial(fitted, method, data, "plain")) for method in methods}


def in_two_processes(data: str) -> Result:
    first, second = together(2, each_method, data, METHODS)
    for outcome in (first, second):
        if isinstance(outcome, Exception):
            raise outcome
    return {
        "exact": {name: each["exact"] for name, each in first.items()},
        "close": [value for each in first.values() for value in each["close"]],
        "bits": digest([each["bits"] for each in (*first.values(), *second.values())]),
    }


RUN = {
    "own loop": in_own_loop,
    "killed and resumed": killed_and_resumed,
    "hugging face": with_transformers,
    "lightning": with_lightning,
}


def trajectories() -> dict[str, Callable[[], Result]]:
    cases: dict[str, Callable[[], Result]] = {}
    for data in ("digits", "adult"):
        for method in METHODS:
            for way in WAYS:
                cases[f"{data} {method}, {way}"] = partial(fitted, method, data, way)
            for driver in DRIVERS:
                cases[f"{data} {method}, {driver}"] = partial(RUN[driver], method, data)
        cases[f"{data} all methods, two processes"] = partial(in_two_processes, data)
    return cases


# ----------------------------------------------------------------------------------------------------- plans

PLANS: dict[str, dict[str, Any]] = {
    "noise": {"noise_multiplier": 1.0, "epochs": 20},
    "epsilon": {"epsilon": 3.0, "epochs": 20},
    "small epsilon": {"epsilon": 0.5, "epochs": 5, "delta": 1e-6},
    "steps": {"epsilon": 8.0, "steps": 500},
    "renyi": {"epsilon": 2.0, "epochs": 10, "accountant": "rdp"},
    "statistics": {"epsilon": 3.0, "epochs": 20, "method": "dpsgd-f"},
    "statistics, renyi": {
        "noise_multiplier": 0.8,
        "steps": 900,
        "method": "global-adapt",
        "accountant": "rdp",
    },
    "rates": {"epsilon": 3.0, "epochs": 20, "rates": {"rare": 2.0, "*": 1.0}, "accountant": "rdp"},
    "bounds": {"noise_multiplier": 1.2, "steps": 300, "bound_shares": {"rare": 0.5}, "accountant": "rdp"},
    "budgets by rates": {"epochs": 10, "epsilon_by_group": {"rare": 1.0, "*": 3.0}, "accountant": "rdp"},
    "budgets by bounds": {
        "epochs": 10,
        "epsilon_by_group": {"rare": 1.0, "*": 3.0},
        "protect_by": "scaling",
        "accountant": "rdp",
    },
    "all examples": {"noise_multiplier": 20.0, "steps": 50, "batch": 5000},
    "one step": {"noise_multiplier": 4.0, "steps": 1},
}


def planned(given: Mapping[str, Any]) -> Result:
    given = dict(given)
    plan = account(5000, batch_size=given.pop("batch", 250), **given)
    found = {
        "steps": plan.steps,
        "event": rounded(as_golden(plan.event)),
        "delta": plan.delta,
        "epsilon": {name: plan.epsilon(name) for name in ("pld", "rdp")},
    }
    if {"rates", "bound_shares", "epsilon_by_group"} & set(given):
        found["by group"] = plan.epsilon_by_group("rdp")
    return {"exact": rounded(found), "close": [], "bits": digest(json.dumps(found))}


def plans() -> dict[str, Callable[[], Result]]:
    return {name: partial(planned, given) for name, given in PLANS.items()}


# ---------------------------------------------------------------------------------------------------- tables


def _as_069d3a7c(encoder: str) -> str:
    """JSON of an encoder, as 069d3a7c had it, of which hashed columns were a kind of their own."""
    content = json.loads(encoder)
    for column in content["columns"]:
        column.pop("hashed", None)
    return json.dumps(content)


GOLDEN_CODES = {"digits": "LONG", "zeros": "ZEROS", "3E2": "SCIENTIFIC_OR_PLUS", "1.10": "NUMBER_SPELLINGS"}


def golden_kind(found: Any) -> str:
    """Return the name of a finding's kind when golden results were recorded, which told more kinds apart."""
    kind = found.kind.name
    if kind == "CODES":
        return next(name for word, name in GOLDEN_CODES.items() if word in found.detail)
    if kind == "STAND_IN":
        return "DAY" if found.detail.startswith("the date") else "WORD" if "'" in found.detail else "CODE"
    return "DATES_AS_TEXTS" if kind == "DATES" and found.level != "problem" else kind


def read_odd(odd: Odd, ending: str) -> Result:
    """Split, encoder and findings of an odd column, or the error; and what inspect proposes."""
    from equidp.data.table import split_and_encode
    from equidp.tables.inspect import inspect_table

    roles = Recipe(target="ill", group=("sex",))
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        path = save(odd, Path(folder, f"odd{ending}"))
        found: dict[str, Any] = {}
        try:
            split, encoder = split_and_encode(
                open_source(str(path), recipe=roles.with_changes(stated(odd.recipe))), 0
            )
            found["split"] = split.digest()
            found["groups"] = list(split.train.group_names)
            found["classes"] = list(split.train.class_names)
            found["encoder"] = digest(json.dumps(_as_069d3a7c(encoder.to_json()), sort_keys=True))
            found["inputs"] = split.train.input_shape[0]
        except EquidpError as error:
            found["refused"] = type(error).__name__
        found["warnings"] = sum(issubclass(each.category, DataWarning) for each in said)
        try:
            report = inspect_table(path, roles.with_changes(stated(odd.recipe)))
            found["findings"] = {
                column.name: sorted(kinds)
                for column in report.columns  # what a column tells of the target has tests of its own
                if (kinds := set(map(golden_kind, column.findings)) - {"LEAK"})
            }
        except EquidpError as error:
            found["inspect refused"] = type(error).__name__
    return {"exact": found, "close": [], "bits": digest(json.dumps(found, sort_keys=True))}


def tables() -> dict[str, Callable[[], Result]]:
    return {
        f"{what}{ending}": partial(read_odd, odd, ending)
        for what, odd in ODD.items()
        for ending in ((".csv", ".parquet") if odd.type is None else (".parquet",))
    }


# ------------------------------------------------------------------------------------------------------ runs

SHORT = ("--epochs", "4", "--batch-size", "64")
RUNS: dict[str, tuple[str, ...]] = {
    "row": ("--epsilon", "3"),
    "row, noise given": ("--noise-multiplier", "2", "--method", "dpsgd", *SHORT),
    "row, renyi": ("--epsilon", "2", "--set", "privacy.accountant=rdp", "--method", "dpsgd-f", *SHORT),
    "row, adam and average": ("--epsilon", "3", "--set", "optimizer=adam", "--set", "average=ema"),
    "row, bounds": ("--epsilon", "3", "--bounds", "age=18:90", "--encoding", "cut"),
    "person": ("--epsilon", "3", "--person", "id", "--rows-per-person", "3"),
    "private preprocessing": ("--epsilon", "3", "--preprocessing", "private"),
    "class counts": ("--epsilon", "3", "--class-weight", "balanced"),
    "rates by group": (
        "--noise-multiplier",
        "2",
        "--method",
        "dpsgd",
        *SHORT,
        "--set",
        "privacy.rates=F=1.5",
    ),
    "individual epsilons": ("--epsilon", "3", "--set", "privacy.individual=true"),
    "budget": ("--epsilon", "1", "--ledger", "b.ledger", "--ledger-epsilon", "3", "--ledger-delta", "1e-4"),
    "stopped half way": ("--epsilon", "3", "--method", "dpsgd", *SHORT),
    "no privacy": ("--method", "sgd", *SHORT),
}


def save_people(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    count = 600
    age = rng.integers(18, 80, count)
    table = pd.DataFrame(
        {
            "id": [f"p{row // 2}" for row in range(count)],
            "age": age,
            "hours": np.round(rng.normal(38, 8, count), 1),
            "job": rng.choice(["clerk", "cook", "nurse"], count),
            "sex": rng.choice(["F", "M"], count),
        }
    )
    table["income"] = np.where(age + rng.normal(0, 12, count) > 52, "high", "low")
    table.to_csv(folder / "people.csv", index=False)
    return folder / "people.csv"


@contextlib.contextmanager
def system_from_a_seed() -> Iterable[None]:
    """Fill `os.urandom` from a seed, each size of request by a stream of its own."""
    streams: dict[int, random.Random] = {}

    def drawn(size: int) -> bytes:
        return streams.setdefault(size, random.Random(size)).randbytes(size)

    before, os.urandom = os.urandom, drawn
    try:
        yield
    finally:
        os.urandom = before


_OF_RUN_TOML = {
    "optimizer=adam": "training.optimizer=adam",
    "average=ema": "training.average=ema",
    "--bounds": "--set",
    "age=18:90": "column.age.range=[18, 90]",
    "--encoding": "--set",
    "cut": "table.binning=cut",
}


def command(*arguments: str) -> tuple[int, str]:
    """Exit code and standard output of `equidp`, run here; run.toml has what 069d3a7c had options for."""
    from equidp.cli import main

    arguments = tuple(_OF_RUN_TOML.get(each, each) for each in arguments)

    out, errors, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["equidp", *arguments]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            main()
        code: Any = 0
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.argv = before
    if code:
        print(f"equidp {' '.join(arguments)} ended with {code}: {errors.getvalue()}", file=sys.stderr)
    return (code if isinstance(code, int) else 1), out.getvalue()


def _stop_training_after(steps: int) -> Any:
    """Ends any training in this process after some steps, as Ctrl-C does."""
    from equidp.training import trainer as training

    step = training.Trainer.step

    def counted(self: Any, *given: Any) -> Any:
        found = step(self, *given)
        if self.steps_done == steps:
            raise KeyboardInterrupt
        return found

    return training, step, counted


def trained(name: str) -> Result:
    """What verify, evaluate, predict and recompute.py say of a run that `equidp train` makes."""
    home = Path.cwd()
    with tempfile.TemporaryDirectory() as folder, system_from_a_seed():
        os.chdir(folder)
        try:
            return _trained(name, Path(folder))
        finally:
            os.chdir(home)


def _trained(name: str, folder: Path) -> Result:
    table = save_people(folder)
    data = ("people.csv", "--target", "income", "--group", "sex", "--out", "run", "--seed", "1")
    drop = () if "--person" in RUNS[name] else ("--drop", "id")
    if name == "stopped half way":
        training, step, counted = _stop_training_after(20)
        training.Trainer.step = counted
        with contextlib.suppress(KeyboardInterrupt):
            command("train", *data, *drop, *RUNS[name])
        training.Trainer.step = step
        code, _ = command("train", "--resume", "run")
    else:
        code, _ = command("train", *data, *drop, *RUNS[name])
    found: dict[str, Any] = {"train": code}
    found["verify"], _ = command("verify", "run", "--json", "verify.json")
    checks = json.loads(Path("verify.json").read_text())
    found["checks"] = [[each["check"], each["passed"]] for each in checks]
    found["evaluate"], _ = command("evaluate", "run", "--json", "evaluate.json")
    evaluated = json.loads(Path("evaluate.json").read_text())
    numbers = sorted(_numbers(evaluated))
    found["predict"], _ = command("predict", "run", str(table), "--out", "predicted.csv")
    predicted = pd.read_csv("predicted.csv")
    found["predicted"] = [len(predicted), list(predicted.columns)]
    found["spent"] = _recomputed()
    risks = [float(value) for value in predicted.select_dtypes("number").to_numpy().flatten()]
    return {
        "exact": rounded(found),
        "close": sketch(torch.tensor(risks)),
        "bits": digest(risks, numbers),
    }


def _numbers(value: Any) -> Iterable[str]:
    """Every number of the test set's figures."""
    if isinstance(value, Mapping):
        for name, each in value.items():
            if name not in {"created", "version", "seconds"}:
                yield from _numbers(each)
    elif isinstance(value, list):
        for each in value:
            yield from _numbers(each)
    elif isinstance(value, float):
        yield f"{value:.12g}"


def _recomputed() -> Any:
    """Entries of the run, and their epsilon by the copy of recompute.py in this folder."""
    from tests.golden import recompute

    with tempfile.TemporaryDirectory() as folder:
        settings = json.loads(next(Path("run").rglob("run.json")).read_text())
        settings["entries"] = [[_golden_record(event), count] for event, count in settings["entries"]]
        (Path(folder) / "settings.json").write_text(json.dumps(settings))
        entries, delta = recompute.read_entries(folder)
    epsilon = recompute.recompute_epsilon(entries, delta)
    plain = [[[word, {**step, "id": ""}], count] for event, count in entries for word, step in event.items()]
    return {"entries": plain, "delta": delta, "epsilon": f"{epsilon:.9g}"}


def _golden_record(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Record of an event in the form that the copy of recompute.py reads."""
    if "rate" not in record:  # of a commit that wrote this form
        return record
    from equidp.kernel.event import Event

    name, fields = as_golden(Event.of_record(record))
    return {{"StepEvent": "spend", "GroupedStepEvent": "grouped", "ReleaseEvent": "release"}[name]: fields}


def runs() -> dict[str, Callable[[], Result]]:
    return {name: partial(trained, name) for name in RUNS}


# --------------------------------------------------------------- comparisons, diagnoses, individual reports

COMPARISONS: dict[str, dict[str, Any]] = {
    "published settings": {"plan": "published", "epochs": 2},
    "recommended settings": {"epsilon": 3.0, "epochs": 2},
    "tuned alike": {"plan": "published", "epochs": 1, "tune": 2},
}


def compared(given: Mapping[str, Any]) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        methods = ["dpsgd", "dpsgd-f", "quantile"]
        found = equidp.compare("digits", methods, seeds=2, directory=folder, jobs=1, **given)
        costs = found.costs()
        text = costs.to_csv(float_format="%.12g")
        numbers = costs.select_dtypes("number").to_numpy().flatten()
        numbers = np.where(np.isfinite(numbers), numbers, -1.0)  # epsilon of the baseline
        shape = [sorted(costs.columns), sorted(set(costs["method"])), len(costs)]
        kept = [found.to_markdown(name) for name in found.table_names]
        names = [{"references": "baselines"}.get(name, name) for name in found.table_names]
        return {
            "exact": {"costs": shape, "tables": names},
            "close": sketch(torch.as_tensor(numbers)),
            "bits": digest(text, kept),
        }


def diagnosed(method: str) -> Result:
    trainer = trainer_of(method, "digits")
    trainer.fit()
    rows, little = rows_of("digits"), equidp.Effort(batches=3, trace_vectors=3, eigenvalue_products=3)
    found = equidp.diagnose(
        copy.deepcopy(trainer.model),
        trainer.policy,
        rows,
        batch_size=BATCH,
        learning_rate=0.2,
        noise_multiplier=1.0,
        policy_state=trainer.policy_state,
        effort=little,
    )
    tables = (found.sensitive_groups, found.sensitive_pairs)
    numbers = [table.select_dtypes("number").fillna(0.0).to_numpy().flatten() for table in tables]
    return {
        "exact": [sorted(table.columns) for table in tables],
        "close": [value for each in numbers for value in sketch(torch.as_tensor(each, dtype=torch.float64))],
        "bits": digest(*(table.to_csv(float_format="%.12g") for table in tables)),
    }


def accounted(method: str, **given: Any) -> Result:
    trainer = trainer_of(method, "digits", individual=equidp.Individual(**given))
    trainer.fit()
    report = trainer.individual_report()
    table = report.sensitive_by_group()
    numbers = table.select_dtypes("number").fillna(0.0).to_numpy().flatten()
    return {
        "exact": {"bounds": rounded(report.group_epsilons), "columns": sorted(table.columns)},
        "close": sketch(torch.as_tensor(numbers, dtype=torch.float64)),
        "bits": digest(table.to_csv(float_format="%.12g"), report.for_owner(3)),
    }


def studies() -> dict[str, Callable[[], Result]]:
    return {
        **{f"comparison, {name}": partial(compared, given) for name, given in COMPARISONS.items()},
        "diagnosis of dpsgd": partial(diagnosed, "dpsgd"),
        "diagnosis of dpsgd-f": partial(diagnosed, "dpsgd-f"),
        "individual, each step": partial(accounted, "dpsgd-f", interval=1),
        "individual, three times an epoch": partial(accounted, "global-adapt", per_epoch=3),
    }


SECTIONS: dict[str, Callable[[], dict[str, Callable[[], Result]]]] = {
    "trajectories": trajectories,
    "plans": plans,
    "tables": tables,
    "runs": runs,
    "studies": studies,
}


def needs_adult(name: str) -> bool:
    return name.startswith("adult ")


def make(sections: Iterable[str] = tuple(SECTIONS), only: str = "") -> dict[str, dict[str, Result]]:
    """Results of all cases by section and name; those of Adult where EQUIDP_DATA is set."""
    torch.set_num_threads(1)
    found: dict[str, dict[str, Result]] = {}
    for section in sections:
        found[section] = {}
        for name, case in SECTIONS[section]().items():
            if only in name and not (needs_adult(name) and not os.environ.get("EQUIDP_DATA")):
                found[section][name] = attempt(case)
                print(f"{section}: {name}", file=sys.stderr, flush=True)
    return found


def main() -> None:
    out, *sections = sys.argv[1:]
    words = [each for each in sections if each not in SECTIONS]
    chosen = [each for each in sections if each in SECTIONS] or list(SECTIONS)
    results = make(chosen, *words[:1])
    Path(out).write_text(json.dumps(results, indent=0, sort_keys=True), encoding="utf-8")


if __name__ == "__main__":
    main()
