"""Generators that a user's objects hold are found, and filled where a release is made for others to see."""

from __future__ import annotations

import collections
import functools
import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from equidp.kernel.generators import from_the_system, owned_generators
from equidp.kernel.noise import SystemRandomness
from support.toy import make_trainer

GLOBAL = np.random.default_rng(0)
KINDS = {
    "torch": lambda: torch.Generator().manual_seed(0),
    "NumPy": lambda: np.random.default_rng(0),
    "NumPy's old": lambda: np.random.RandomState(0),
    "Python": lambda: random.Random(0),
}


def drawn(generator: object) -> float:
    if isinstance(generator, torch.Generator):
        return torch.rand(1, generator=generator).item()
    return float(generator.random())  # type: ignore[attr-defined]


class Holding:
    __slots__ = ("rng",)

    def __init__(self, rng: object) -> None:
        self.rng = rng


class Rows(Dataset):
    """Rows that are all zeros, and one number that its generator draws; says which it drew."""

    def __init__(self, generator: object) -> None:
        self.transforms = [Holding(generator)]

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        inputs = torch.zeros(5)
        inputs[0] = drawn(self.transforms[0].rng)
        return inputs, index % 2, 0


class ByGlobal(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * float(GLOBAL.random())


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_is_found_wherever_an_object_holds_it(kind):
    own = KINDS[kind]()
    bound = Rows(own).__getitem__
    for held in (
        Rows(own),
        nn.Sequential(nn.Linear(2, 2), nn.ModuleDict({"a": nn.Identity()})).append(_with(own)),
        lambda: own,
        functools.partial(drawn, own),
        lambda generator=own: generator,
        {"augment": (bound, 3)},
        collections.deque([own]),
        {own: "key"},
        (drawn(own) for _ in range(3)),
        *([own.random] if kind != "torch" else []),
    ):
        assert [each is own for each in owned_generators(held)] == [True]
    assert owned_generators(nn.Linear(2, 2), torch.zeros(3), "text", None, random, np.random) == ()
    assert owned_generators(random.SystemRandom()) == ()


def test_a_bit_generator_is_filled_from_the_system_and_put_back():
    bits = np.random.PCG64(0)
    before = bits.state
    seen = set()
    for _ in range(2):
        with from_the_system(owned=owned_generators([bits])):
            seen.add(bits.random_raw())
        assert bits.state == before
    assert len(seen | {np.random.PCG64(0).random_raw()}) == 3


def _with(generator: object) -> nn.Module:
    module = nn.Identity()
    module.generator = generator
    return module


def test_a_generator_of_a_module_is_found_by_the_name_in_a_method():
    assert owned_generators(ByGlobal()) == (GLOBAL,)
    loop: list[object] = []
    loop.append(loop)
    assert owned_generators(loop) == ()


@pytest.mark.parametrize("kind", KINDS)
def test_an_owned_generator_is_the_systems_inside_and_the_callers_after(kind):
    own, untouched, inside = KINDS[kind](), KINDS[kind](), []
    for _ in range(3):
        assert drawn(own) == drawn(untouched)
        with from_the_system(owned=[own]):
            inside.append(drawn(own))
    assert len(set(inside)) == 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_draws_from_the_system_also_with_a_generator_of_its_own(kind, workers):
    """A known seed deals its numbers out in order of place: one example more, and all after it get others."""
    known = KINDS[kind]()
    of_the_seed = {round(drawn(known), 6) for _ in range(200)}
    trainer = make_trainer(Rows(KINDS[kind]()), workers=workers, steps=3, epochs=None, delta=1e-3)
    assert isinstance(trainer.randomness, SystemRandomness)
    seen = [round(value, 6) for batch in trainer.batches() for value in batch.inputs[:, 0].tolist()]
    assert len(seen) > 30
    assert len({*seen} & of_the_seed) <= 2  # of a million values each


def test_randomness_given_to_a_trainer_fills_generators_of_the_users_code():
    given = SystemRandomness()
    known = KINDS["torch"]()
    of_the_seed = {round(drawn(known), 6) for _ in range(200)}
    rows = Rows(KINDS["torch"]())
    trainer = make_trainer(rows, randomness=given, steps=3, epochs=None, delta=1e-3)
    assert type(trainer.randomness) is SystemRandomness
    seen = [round(value, 6) for batch in trainer.batches() for value in batch.inputs[:, 0].tolist()]
    assert len(seen) > 30
    assert len({*seen} & of_the_seed) <= 2
