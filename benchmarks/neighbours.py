"""Searches for two neighbouring batches whose computed sums are further apart than the sensitivity.

    python benchmarks/neighbours.py [--pairs 20000] [--seed 0] [--large 200] [--device cuda] [--out FILE]
    python benchmarks/neighbours.py --alike [--device cuda]

Each pair is a batch and the same batch with one example removed, through the whole private step without
noise: models of every kind of layer rule, both engines, float32 and float64, one part or many, labels that
may use the whole sensitivity or a share of it, batches of 1 to 10^6 examples in random order, values that are
normal, equal, of very different sizes, cancelling, infinite, or made so that sums in float32 round
differently on the two sides. Prints the largest move over the sensitivity by kind of model, and exits with 1
if one is above 1 + ROUNDING (`equidp.kernel.bounding`), which noise is scaled for.

With --alike: how far the clipped gradients of a batch move when another example leaves it, which is 0 if the
library that multiplies matrices computes a row alike whatever rows are beside it; for the models of
benchmarks/subjects.py, also under bfloat16.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from subjects import OWN
from torch import Tensor, nn

from equidp import DPSGD, PSAC, Automatic
from equidp.engines import make_engine
from equidp.kernel import step as step_module
from equidp.kernel.bounding import ROUNDING
from equidp.kernel.event import SMALLEST_SHARE, Event, Share
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.step import PrivateStep
from equidp.policies.weights import sensitivity_of
from equidp.training.device import chosen_device

FEATURES = 8


class Sequence(nn.Module):
    """Reads [batch, 8] as 4 positions of 2 numbers, by layers of every kind."""

    def __init__(self, body: nn.Module, head: nn.Module, *, channels_first: bool = False) -> None:
        super().__init__()
        self.body, self.head, self.channels_first = body, head, channels_first

    def forward(self, inputs: Tensor) -> Tensor:
        values = (
            inputs.reshape(len(inputs), 2, 4) if self.channels_first else inputs.reshape(len(inputs), 4, 2)
        )
        outputs = self.body(values)
        outputs = outputs[0] if isinstance(outputs, tuple) else outputs
        result: Tensor = self.head(outputs.flatten(1))
        return result


class Table(nn.Module):
    """Reads the sizes of numbers as tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        tokens = inputs.nan_to_num(0.0, 0.0, 0.0).abs().clamp(max=4).long()
        result: Tensor = self.out(self.table(tokens).sum(dim=1))
        return result


class Own(nn.Module):
    """Parameters that no layer owns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.scale = nn.Parameter(torch.randn(2, FEATURES) / 3), nn.Parameter(torch.ones(()))

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs @ self.weight.T * self.scale


class Twice(nn.Module):
    """One layer that is used twice, whose gradients are added."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.out = nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, 2)

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.out(self.shared(self.shared(inputs).tanh()))
        return result


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(FEATURES, 2, bias=False),
    "perceptron": lambda: nn.Sequential(nn.Linear(FEATURES, 6), nn.Tanh(), nn.Linear(6, 2)),
    "positions": lambda: Sequence(nn.Linear(2, 3), nn.Linear(12, 2)),
    "wide positions": lambda: Sequence(nn.Linear(2, 64), nn.Linear(256, 2)),
    "convolution": lambda: Sequence(nn.Conv1d(2, 3, 3, padding=1), nn.Linear(12, 2), channels_first=True),
    "wide convolution": lambda: Sequence(nn.Conv1d(2, 64, 3), nn.Linear(128, 2), channels_first=True),
    "group norm": lambda: Sequence(nn.GroupNorm(1, 2), nn.Linear(8, 2), channels_first=True),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(FEATURES), nn.Linear(FEATURES, 2)),
    "recurrent": lambda: Sequence(nn.GRU(2, 3, batch_first=True), nn.Linear(12, 2)),
    "embedding": Table,
    "own parameters": Own,
    "used twice": Twice,
}
POLICIES = {"dpsgd": DPSGD(0.7), "automatic": Automatic(0.7), "psac": PSAC(0.7)}


def normal(size: int, generator: np.random.Generator) -> np.ndarray:
    return generator.standard_normal((size, FEATURES))


def heavy(size: int, generator: np.random.Generator) -> np.ndarray:
    """Sizes from 1e-12 to 1e12."""
    return normal(size, generator) * 10.0 ** generator.uniform(-12, 12, (size, 1))


def equal(size: int, generator: np.random.Generator) -> np.ndarray:
    return np.full((size, FEATURES), generator.uniform(0.5, 2.0))


def cancelling(size: int, generator: np.random.Generator) -> np.ndarray:
    """Long rows of which half are the negative of the others, next to short ones."""
    rows = normal(size, generator) * generator.choice([1.0, 1e-6], (size, 1))
    rows[1::2] = -rows[: size // 2 * 2 : 2]
    return rows


def broken(size: int, generator: np.random.Generator) -> np.ndarray:
    rows = normal(size, generator)
    rows[generator.random(size) < 0.2, 0] = generator.choice([np.inf, -np.inf, np.nan, 3e38])
    return rows


def stuck(size: int, generator: np.random.Generator) -> np.ndarray:
    """One coordinate, whose sum in float32 rounds one way below a power of two and the other way above."""
    power = max(1, int(math.log2(max(2, size))) - 1)
    unit = 2.0 ** (power - 23)
    steps = math.floor(0.19 / unit) if unit < 0.19 else 1
    values = [1.0] * (2**power - 1) + [0.5]
    while len(values) < size:
        values += [(2 * steps + 0.6) * unit, -(steps + 0.3) * unit, -(steps + 0.3) * unit]
    rows = np.zeros((size, FEATURES))
    rows[:, 0] = values[:size]
    return rows


VALUES = (normal, heavy, equal, cancelling, broken, stuck)


def total(step: PrivateStep, inputs: Tensor, targets: Tensor, groups: Tensor) -> Tensor:
    """The sum before noise, in float64."""
    seen: list[Tensor] = []

    def noting(totals: list[Tensor], *rest: object) -> None:
        seen.extend(each.flatten().clone() for each in totals)

    with mock.patch.object(step_module, "release", noting):
        step(inputs, targets, groups)
    return torch.cat(seen)


def move(generator: np.random.Generator, model_name: str, size: int, device: torch.device) -> float:
    """Return the distance that one example moves the sum of a random batch, over its label's share of the
    sensitivity."""
    torch.manual_seed(int(generator.integers(2**31)))
    dtype = torch.float64 if generator.random() < 0.2 else torch.float32
    model = MODELS[model_name]().to(device, dtype)
    engine = "functional" if generator.random() < 0.4 and size < 50_000 else "ghost"
    policy = POLICIES[str(generator.choice(list(POLICIES)))]
    # Many examples go in few parts, so that a batch of 10^6 is done within seconds.
    smallest = max(1, size // 20)
    part = None if generator.random() < 0.5 else int(generator.integers(smallest, max(2, size) + 1))
    shares = [1.0, 1.0] if generator.random() < 0.5 else generator.uniform(SMALLEST_SHARE, 1, 2).tolist()
    labels = tuple(Share(name, 0.5, share) for name, share in zip("ab", shares, strict=True))
    event = Event(rate=0.5, noise=1.0, shares=() if min(shares) == 1 else labels)
    step = PrivateStep(
        make_engine(engine, model, nn.CrossEntropyLoss(reduction="none")),
        policy,
        list(model.parameters()),
        event=event,
        expected_batch_size=float(size),
        num_groups=2,
        randomness=SeededRandomness(0),
        physical_batch_size=part,
    )
    values = generator.choice(np.array(VALUES, dtype=object))(size, generator)
    if generator.random() < 0.5:
        values = values[generator.permutation(size)]
    inputs = torch.from_numpy(values).to(device, dtype)
    targets = torch.from_numpy((values[:, 0] < 0).astype(np.int64)).to(device)
    groups = torch.from_numpy(generator.integers(0, 2, size)).to(device)
    place = 0 if generator.random() < 0.5 else int(generator.integers(size))
    others = torch.arange(size, device=device) != place
    with_one = total(step, inputs, targets, groups)
    without = total(step, inputs[others], targets[others], groups[others])
    allowed = shares[int(groups[place])] * sensitivity_of(policy, step.state, step.num_groups)
    return float((with_one - without).norm()) / allowed


def size_of(generator: np.random.Generator, large: bool) -> int:
    """Sizes are uniform in their logarithm: 1 to 1,000, or 10^4 to 10^6."""
    low, high = (4.0, 6.0) if large else (0.0, 3.0)
    return round(10 ** generator.uniform(low, high))


def print_alike(device: torch.device) -> int:
    """Print how far the other examples of a batch move when one leaves it, over the sensitivity."""
    loss = nn.CrossEntropyLoss(reduction="none")
    for subject in OWN:
        inputs, targets, _ = (each.to(device) for each in subject.batch())
        for coarse in (False, True):
            moves = []
            for place in (0, len(targets) // 2):
                torch.manual_seed(place)
                engine = make_engine("ghost", subject.make().to(device), loss)
                others = torch.arange(len(targets), device=device) != place
                with torch.autocast(device.type, torch.bfloat16, enabled=coarse):
                    whole = engine(inputs, targets)
                    weights = torch.where(others, 1 / whole.norms.detach(), 0.0)
                    beside = whole.sums(weights)
                    alone = engine(inputs[others], targets[others])
                    without = alone.sums(1 / alone.norms.detach())
                moves.append(math.hypot(*(float((beside[each] - without[each]).norm()) for each in beside)))
            kind = "bfloat16" if coarse else "float32"
            print(f"{subject.name}, {kind}: {max(moves):.1e} S", flush=True)
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20_000)
    parser.add_argument("--large", type=int, default=200, help="pairs of 10^4 to 10^6 examples among them")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 or auto")
    parser.add_argument("--out", type=Path, help="also written here")
    parser.add_argument("--alike", action="store_true", help="of the others when one leaves")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    device = chosen_device(chosen.device)
    if chosen.alike:
        return print_alike(device)
    start, bound = time.perf_counter(), 1 + ROUNDING
    largest: dict[str, list[float]] = {name: [0, 0.0, 0.0] for name in MODELS}
    for number in range(chosen.pairs):
        generator = np.random.default_rng([chosen.seed, number])
        large = number < chosen.large
        name = list(MODELS)[number % len(MODELS)]
        size = size_of(generator, large)
        # A recurrent model's pass keeps every step; others are as large as memory has room for.
        size = min(size, 100_000) if name == "recurrent" else size
        moved = move(generator, name, size, device)
        row = largest[name]
        row[0] += 1
        row[1] = max(row[1], moved)
        row[2] = max(row[2], moved if large else 0.0)
        if not moved <= bound:
            print(f"pair {number} of seed {chosen.seed}: {name}, {size} examples: {moved:.6f} S", flush=True)
    lines = [
        f"{chosen.pairs:,} pairs, seed {chosen.seed}; bound {bound:.6f}; {time.perf_counter() - start:.0f} s",
        "",
        "| model | pairs | largest move / S | of 10^4 to 10^6 examples |",
        "| --- | ---: | ---: | ---: |",
        *(
            f"| {name} | {count:,} | {most:.6f} | {at_most:.6f} |"
            for name, (count, most, at_most) in largest.items()
        ),
    ]
    print("\n".join(lines))
    if chosen.out:
        chosen.out.write_text("\n".join(lines) + "\n")
    return int(not all(most <= bound for _, most, _ in largest.values()))


if __name__ == "__main__":
    sys.exit(main())
