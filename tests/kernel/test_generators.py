"""Random numbers of models and datasets come from the operating system where noise does."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from equidp.engines import make_engine
from equidp.kernel.event import Event
from equidp.kernel.generators import (
    from_the_system,
    generator_from_the_system,
    restore_generators,
)
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.kernel.step import PrivateStep
from equidp.policies import DPSGD
from support.toy import make_trainer, note_samples

CPU = torch.device("cpu")


class WithoutNoise(SystemRandomness):
    """The operating system's for the model; no noise, to see the sum."""

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)


class SeededWithoutNoise(SeededRandomness):
    """The caller's generator for the model; no noise, to see the sum."""

    def normal(self, count: int, device: torch.device | str = "cpu", deviation: float = 1.0) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)


def summed(randomness: SystemRandomness | SeededRandomness, engine: str, *, physical: int | None) -> Tensor:
    """The sum of 64 clipped gradients of a model with dropout, right after torch.manual_seed(0)."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 2))
        inputs = torch.randn(64, 10)
    step = PrivateStep(
        make_engine(engine, model, nn.CrossEntropyLoss(reduction="none")),
        DPSGD(0.1),
        list(model.parameters()),
        event=Event(1.0, 1e-9),
        expected_batch_size=1.0,
        num_groups=1,
        randomness=randomness,
        physical_batch_size=physical,
    )
    torch.manual_seed(0)
    nobody = torch.zeros(64, dtype=torch.int64)
    return torch.cat([mean.flatten() for mean in step(inputs, nobody, nobody)])


@pytest.mark.parametrize(("engine", "physical"), [("ghost", None), ("functional", 16)])
def test_a_known_seed_does_not_determine_dropouts_masks(engine, physical):
    """With masks of a known seed, one more example gives all others after it other masks: 22.8 times the
    sensitivity for 512 examples."""
    first, again = (summed(WithoutNoise(), engine, physical=physical) for _ in range(2))
    assert torch.linalg.vector_norm(first - again) > 0.1


@pytest.mark.parametrize("engine", ["ghost", "functional"])
def test_seeded_research_takes_the_masks_of_the_callers_seed(engine):
    first, again = (summed(SeededWithoutNoise(0), engine, physical=None) for _ in range(2))
    assert torch.equal(first, again)


def twister(state: Tensor) -> np.ndarray:
    """The 624 words of torch's generator; NumPy seeds the same twister in the same way, which tells where."""
    words = state.numpy().view(np.uint64)[3:627]
    seeded = torch.Generator().manual_seed(5489).get_state().numpy().view(np.uint64)[3:627]
    assert (seeded == np.random.RandomState(5489).get_state(legacy=False)["state"]["key"]).all()
    return words


def inside() -> Tensor:
    with from_the_system(CPU):
        return torch.get_rng_state()


@pytest.mark.parametrize("state", [inside, lambda: generator_from_the_system().get_state()])
def test_the_whole_state_is_the_systems(state):
    """A seed of 32 bits could be tried through: all 624 words must differ from those that a seed gives, which
    is the first of them."""
    words, others = (twister(state()) for _ in range(2))
    seeded = twister(torch.Generator().manual_seed(int(words[0])).get_state())
    assert (words < 2**32).all()
    assert len(set(words.tolist())) > 620
    assert (words != others).mean() > 0.99
    assert (words != seeded).mean() > 0.99


SOURCES = {
    "torch": lambda: torch.rand(3).tolist(),
    "NumPy": lambda: np.random.rand(3).tolist(),  # noqa: NPY002
    "NumPy's normal numbers, in pairs": lambda: np.random.randn(4).tolist(),  # noqa: NPY002
    "Python": lambda: [random.random() for _ in range(3)],
    "Python's normal numbers, of which it stores one": lambda: [random.gauss(0, 1)],
}


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    random.seed(seed)


@pytest.mark.parametrize("name", SOURCES)
def test_each_global_generator_is_the_systems_inside_and_the_callers_after(name):
    draw, inside = SOURCES[name], []
    seed_all(5)
    expected = [draw() for _ in range(4)]
    seed_all(5)
    found = []
    for _ in range(4):
        found.append(draw())
        with from_the_system(CPU):
            seed_all(6)  # as a dataset may, for an example of its own
        with from_the_system(CPU), from_the_system(CPU):
            inside.append(draw())
    assert found == expected
    assert len({tuple(each) for each in (*inside, *expected)}) == 8


def test_generators_of_the_system_draw_afresh_and_leave_the_callers():
    before = torch.get_rng_state()
    drawn = [torch.rand(3, generator=SystemRandomness().generator()) for _ in range(2)]
    assert not torch.equal(*drawn)
    assert torch.equal(before, torch.get_rng_state())


def test_no_other_thread_seeds_what_is_drawn_inside():
    """A fit in one thread, and the trial of another model in another: the trial seeds torch."""
    seeded, drawn, begun = threading.Event(), [], threading.Event()

    def trial() -> None:
        begun.set()
        with restore_generators(CPU):
            torch.manual_seed(0)
            seeded.set()
            torch.rand(1)

    with from_the_system(CPU):
        other = threading.Thread(target=trial)
        other.start()
        begun.wait()
        assert not seeded.wait(0.1)  # it waits for its turn
        drawn.append(torch.rand(3))
    other.join()
    torch.manual_seed(0)
    assert not torch.equal(drawn[0], torch.rand(3))


class Rows(Dataset):
    """Rows that are all zeros, and one number that a global generator draws; says which it drew."""

    def __init__(self, draw: Callable[[], float]) -> None:
        self.draw = draw

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> tuple[Tensor, int, int]:
        inputs = torch.zeros(5)
        inputs[0] = self.draw()
        return inputs, index % 2, 0


DRAWS = {
    "torch": lambda: torch.rand(1).item(),
    "NumPy": lambda: float(np.random.rand()),  # noqa: NPY002
    "Python": random.random,
}


@pytest.mark.parametrize(("name", "workers"), [("torch", 0), ("torch", 2), ("NumPy", 2), ("Python", 2)])
def test_a_dataset_draws_from_the_system(name, workers):
    """A known seed deals its numbers out in order of place: one example more, and all after it get others."""
    draw = DRAWS[name]
    seed_all(0)
    of_the_seed = {round(draw(), 6) for _ in range(200)}
    seed_all(0)
    trainer = make_trainer(Rows(draw), workers=workers, steps=3, epochs=None, delta=1e-3)
    assert isinstance(trainer.randomness, SystemRandomness)
    samples = note_samples(trainer)
    trainer.fit()
    seen = [round(value, 6) for batch in samples for value in batch.inputs[:, 0].tolist()]
    assert len(seen) > 30
    assert len({*seen} & of_the_seed) <= 2  # of a million values each
