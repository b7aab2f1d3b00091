"""Does an individual privacy filter help? DP-SGD, and DP-SGD in which each example has an account of its own.

    EQUIDP_DATA=data python benchmarks/individual_filter.py digits --tuned-on 2 --out filter.jsonl
    EQUIDP_DATA=data python benchmarks/individual_filter.py law adult bank --epsilon 3 --out filter.jsonl
    EQUIDP_DATA=data python benchmarks/individual_filter.py digits --epsilon 3 --at 2 1 100

`--at` trains the filter at these settings for each number of `LONGER`, without tuning.

A filter (Feldman and Zrnic 2021, in Renyi form) charges an example, before each step, the Renyi divergence of
the step at its own norm instead of the bound, and leaves it out where the next charge does not fit. Examples
with small gradients so last for more steps, and the run takes `longer` times as many. Both methods are
simulated in NumPy on the same splits, for the same (epsilon, delta), and tuned alike: by mean log loss of
validation rows of other splits, over learning rate, bound and steps, and for the filter also `longer`.

What is favourable to the filter: it is tuned over more settings, and passes over the data that take norms
cost no time. Models are softmax regressions, of columns that are encoded by the ranges of all rows. Raw data
is read without noise, and the output says who is left out: for research on public data.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise, product
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import RdpAccountant
from scipy.optimize import brentq
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import StepEvent
from tables import TABLES

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

HIDDEN = 0
"""Units of a hidden layer; 0: softmax regression."""
PASSES = 3
"""Passes an epoch that take the norms of all examples."""
CELLS = 200
"""Shares of the bound that charges are computed at; others are rounded up to them."""
RATES = (0.25, 0.5, 1.0, 2.0, 4.0)
LONGER = (1, 2, 4)
SHOWN = ("table", "epsilon", "method", "seed", "settings", "log_loss", "worst", "drawn_to_the_end")
DIGITS = tuple(map(str, range(10)))
ORDERS = tuple(np.round(np.geomspace(1.5, 128, 60), 3))


@dataclass(frozen=True)
class Task:
    """Rows of a split, and the settings of a run on them."""

    train: tuple[Floats, Integers, Integers]
    validation: tuple[Floats, Integers, Integers]
    test: tuple[Floats, Integers, Integers]
    groups: tuple[str, ...]
    sample_rate: float
    bounds: tuple[float, ...]
    steps: tuple[int, ...]
    full_steps: tuple[int, ...]
    delta: float


@dataclass(frozen=True)
class Settings:
    """Settings of one run; `longer` 0: plain DP-SGD, of `steps` steps; else an example that is always clipped
    is drawn in `steps` steps, of `longer` times as many."""

    rate: float
    bound: float
    steps: int
    longer: int


def read_digits(seed: int) -> Task:
    """Return scikit-learn's digits, with a tenth of the eights in training."""
    bunch = load_digits()
    inputs, targets = bunch.data / 16.0, bunch.target.astype(np.int64)
    rng = np.random.default_rng(seed)
    keep = (targets != 8) | (rng.random(len(targets)) < 0.1)
    rest, test = train_test_split(
        np.arange(len(targets)), test_size=0.25, stratify=targets, random_state=seed
    )
    rest = rest[keep[rest]]
    train, validation = train_test_split(rest, test_size=0.2, random_state=seed)
    parts = [(inputs[each], targets[each], targets[each]) for each in (train, validation, test)]
    bounds, steps, full_steps = (0.25, 0.5, 1, 2, 4), (100, 200, 400, 800), (50, 100, 200, 400)
    return Task(*parts, DIGITS, 0.1, bounds, steps, full_steps, 1e-4)


def read_table(name: str, seed: int) -> Task:
    """Return a table of `tables.TABLES`, encoded by public ranges of its own."""
    table = TABLES[name]
    rows = table.read(Path(os.environ["EQUIDP_DATA"]))
    inputs = rows.drop(columns=table.target)
    numbers = make_column_selector(dtype_include="number")(inputs)
    texts = make_column_selector(dtype_exclude="number")(inputs)
    inputs[numbers], inputs[texts] = inputs[numbers].fillna(0.0), inputs[texts].fillna("missing").astype(str)
    encoder = make_column_transformer(
        (StandardScaler(), numbers),
        (OneHotEncoder(sparse_output=False, min_frequency=50, handle_unknown="ignore"), texts),
    )
    encoded = np.clip(encoder.fit_transform(inputs), -3, 3)
    targets = (rows[table.target].astype(str) == table.positive).to_numpy(np.int64)
    groups, names = pd.factorize(rows[table.group].astype(str), sort=True)
    rest, test = train_test_split(np.arange(len(targets)), test_size=0.2, random_state=seed)
    train, validation = train_test_split(rest, test_size=0.2, random_state=seed)
    parts = [(encoded[each], targets[each], groups[each]) for each in (train, validation, test)]
    return Task(*parts, tuple(names), 0.02, (1, 2, 4, 8), (250, 500, 1000, 2000), (250, 1000), 1e-6)


def read_task(name: str, seed: int) -> Task:
    """Return the task of this name, split by the seed."""
    return read_digits(seed) if name == "digits" else read_table(name, seed)


class Network:
    """Softmax regression, or a network of one hidden layer: losses, norms and weighted sums of gradients."""

    def __init__(self, inputs: int, hidden: int, classes: int, rng: np.random.Generator) -> None:
        sizes = [inputs, hidden, classes] if hidden else [inputs, classes]
        self.layers = [
            np.vstack([rng.normal(0, 1 / math.sqrt(a), (a, b)) * bool(hidden), np.zeros((1, b))])
            for a, b in pairwise(sizes)
        ]

    def probabilities(self, inputs: Floats) -> tuple[list[Floats], Floats]:
        """Return the inputs of each layer, with a column of ones, and the probabilities of the classes."""
        seen, values = [], inputs
        for number, layer in enumerate(self.layers):
            values = np.hstack([values, np.ones((len(values), 1))])
            seen.append(values)
            values = values @ layer
            if number + 1 < len(self.layers):
                values = np.tanh(values)
        values = np.exp(values - values.max(axis=1, keepdims=True))
        return seen, values / values.sum(axis=1, keepdims=True)

    def gradients(self, inputs: Floats, targets: Integers) -> tuple[list[tuple[Floats, Floats]], Floats]:
        """Return (inputs, errors) of each layer, whose outer products are gradients, and their norms."""
        seen, errors = self.probabilities(inputs)
        errors = errors.copy()
        errors[np.arange(len(targets)), targets] -= 1
        found: list[tuple[Floats, Floats]] = []
        for number in reversed(range(len(self.layers))):
            found.append((seen[number], errors))
            if number:
                errors = (errors @ self.layers[number][:-1].T) * (1 - seen[number][:, :-1] ** 2)
        squares = [(a**2).sum(axis=1) * (b**2).sum(axis=1) for a, b in found]
        return found[::-1], np.sqrt(np.sum(squares, axis=0))


@cache
def divergence(order: float, rate: float, noise: float) -> float:
    """Renyi divergence of one step, by dp_accounting; at most infinite."""
    accountant = RdpAccountant(orders=[order])
    accountant.compose(PoissonSampledDpEvent(rate, GaussianDpEvent(noise)))
    return float(accountant._rdp[0])


def budget_at(order: float, target: float, delta: float) -> float:
    """Divergence that gives (target, delta) at this order (Canonne et al. 2020, Proposition 12)."""
    return target - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)


@cache
def plain_noise(target: float, delta: float, rate: float, steps: int) -> float:
    """Least noise multiplier of plain DP-SGD, by privacy loss distributions."""
    return float(
        brentq(lambda noise: epsilon([(StepEvent(rate, noise), steps)], delta) - target, 0.3, 50, xtol=1e-3)
    )


@cache
def filter_noise(target: float, delta: float, rate: float, steps: int) -> tuple[float, float]:
    """Least noise multiplier at which an example that is always clipped lasts these steps, and its order."""
    best = (math.inf, math.nan)
    for order in ORDERS:
        budget = budget_at(order, target, delta)
        if budget <= 0 or divergence(order, rate, 50.0) * steps > budget:
            continue
        least, most = 0.3, 50.0
        while most - least > 1e-3:
            middle = (least + most) / 2
            fits = divergence(order, rate, middle) * steps <= budget
            least, most = (least, middle) if fits else (middle, most)
        best = min(best, (most, order))
    return best


@cache
def charges(order: float, rate: float, noise: float) -> Floats:
    """Divergence of a step at each share of the bound, [CELLS + 1]; that of share 0 is 0."""
    shares = np.arange(1, CELLS + 1) / CELLS
    return np.array([0.0, *(divergence(order, rate, noise / share) for share in shares)])


def train_model(
    task: Task, settings: Settings, target: float, seed: int
) -> tuple[Network, dict[str, object]]:
    """Train, and return the network with facts of the run."""
    inputs, targets, groups = task.train
    rng, rate = np.random.default_rng(seed), task.sample_rate
    network = Network(inputs.shape[1], HIDDEN, int(targets.max()) + 1, rng)
    filtered, steps = settings.longer > 0, settings.steps * max(1, settings.longer)
    if filtered:
        noise, order = filter_noise(target, task.delta, rate, settings.steps)
        table, budget = charges(order, rate, noise), budget_at(order, target, task.delta)
    else:
        noise = plain_noise(target, task.delta, rate, steps)
    every = max(1, round(1 / (rate * PASSES)))
    spent, active = np.zeros(len(inputs)), np.ones(len(inputs), dtype=bool)
    caps = np.full(len(inputs), settings.bound)
    for step in range(steps):
        if filtered:
            if step % every == 0:
                norms = network.gradients(inputs, targets)[1]
                cells = np.ceil(np.minimum(norms / settings.bound, 1) * CELLS).astype(int)
                caps = cells * settings.bound / CELLS
            active &= spent + table[cells] <= budget
            spent[active] += table[cells[active]]
        chosen = np.flatnonzero((rng.random(len(inputs)) < rate) & active)
        found, norms = network.gradients(inputs[chosen], targets[chosen])
        weights = np.minimum(1, caps[chosen] / np.maximum(norms, 1e-10))[:, None]
        pace = settings.rate / settings.bound * min(1.0, 4 * (1 - step / steps))
        for layer, (a, b) in zip(network.layers, found, strict=True):
            total = a.T @ (b * weights) + noise * settings.bound * rng.standard_normal(layer.shape)
            layer -= pace * total / (rate * len(inputs))
    facts: dict[str, object] = {"noise": noise}
    if filtered:
        facts |= {
            "order": order,
            "drawn_to_the_end": float(active.mean()),
            "share_spent": float((spent / budget).mean()),
        }
        facts["drawn_by_group"] = {
            name: float(active[groups == number].mean()) for number, name in enumerate(task.groups)
        }
    return network, facts


def log_loss(network: Network, part: tuple[Floats, Integers, Integers]) -> float:
    """Mean log loss."""
    inputs, targets, _ = part
    found = network.probabilities(inputs)[1][np.arange(len(targets)), targets]
    return float(-np.log(np.maximum(found, 1e-12)).mean())


def accuracies(network: Network, task: Task) -> dict[str, float]:
    """Accuracy on the test rows: of all, and by group of at least 40 rows."""
    inputs, targets, groups = task.test
    right = network.probabilities(inputs)[1].argmax(axis=1) == targets
    found = {"all": float(right.mean())}
    for number, name in enumerate(task.groups):
        if (groups == number).sum() >= 40:
            found[name] = float(right[groups == number].mean())
    return found


def tune_settings(name: str, target: float, longer: Sequence[int], seeds: int) -> Settings:
    """Return the settings of least mean log loss on validation rows."""
    tasks = [read_task(name, 100 + seed) for seed in range(seeds)]
    best: tuple[float, Settings | None] = (math.inf, None)
    steps = tasks[0].full_steps if longer[0] else tasks[0].steps
    for values in product(RATES, tasks[0].bounds, steps, longer):
        settings = Settings(*values)
        losses = [
            log_loss(train_model(task, settings, target, seed)[0], task.validation)
            for seed, task in enumerate(tasks)
        ]
        if np.mean(losses) < best[0]:
            best = float(np.mean(losses)), settings
    assert best[1] is not None
    return best[1]


def measure(name: str, target: float, settings: Settings, seeds: int) -> Iterator[dict[str, object]]:
    """Results on each seed's split."""
    for seed in range(seeds):
        task = read_task(name, seed)
        network, facts = train_model(task, settings, target, 1000 + seed)
        found = accuracies(network, task)
        yield {
            "table": name,
            "epsilon": target,
            "method": "filter" if settings.longer else "dpsgd",
            "seed": seed,
            "settings": asdict(settings),
            "log_loss": log_loss(network, task.test),
            "worst": min(each for group, each in found.items() if group != "all"),
            "accuracy": found,
            **facts,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="+", choices=("digits", *TABLES))
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tuned-on", type=int, default=1)
    parser.add_argument("--at", type=float, nargs=3, metavar=("RATE", "BOUND", "STEPS"), help="not tuned")
    parser.add_argument("--out", type=Path, default=Path("filter.jsonl"))
    given = parser.parse_args()
    for name, target in product(given.names, given.epsilon):
        if given.at:
            rate, bound, steps = given.at
            chosen = iter([Settings(rate, bound, int(steps), longer) for longer in LONGER])
        else:
            chosen = (tune_settings(name, target, each, given.tuned_on) for each in ((0,), LONGER))
        for settings in chosen:
            for row in measure(name, target, settings, given.seeds):
                with given.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")
                print({each: row[each] for each in SHOWN if each in row}, flush=True)


if __name__ == "__main__":
    main()
