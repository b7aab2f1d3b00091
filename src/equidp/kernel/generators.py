"""The global random generators of torch, NumPy and Python, which user code draws from."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.random import MT19937
from torch import Tensor

_TWISTER = slice(3, 627)
"""64-bit words in the state of torch's CPU generator that contain the 624 words of the Mersenne Twister."""
_spares: list[MT19937] = []
"""Generators for `_numpy_apart`. Making one, or copying its state, takes as long as a small step."""
States = list[tuple[Callable[[], Any], Callable[[Any], None]]]
"""Functions that read and write the state of a generator."""
_turn = threading.RLock()
"""Lock of the thread that has replaced the state of the global generators."""
os.register_at_fork(after_in_child=lambda: globals().update(_turn=threading.RLock()))


@contextmanager
def from_the_system(*devices: torch.device) -> Iterator[None]:
    """Context in which the global generators have fresh entropy of the operating system; restored afterwards.

    Formal guarantee: everything drawn inside (for example dropout masks) is a function of os.urandom only. It
    is therefore independent of the data and of everything drawn outside. A generator with a known seed
    assigns its numbers by position. One more example in a batch would change the masks of all examples after
    it, and no clipping bound covers that.

    | generator | entropy |
    | --- | --- |
    | torch, on the CPU | its whole state, 19,937 bits |
    | torch, on a CUDA, MPS or other device in `devices` | a seed of 64 bits |
    | NumPy and Python (`np.random.rand`, `random.random`) | seeds of 512 bits |
    | in a worker process of a DataLoader | the same, from the worker's start (`fill_from_the_system`) |
    | another generator object, or one that is seeded inside | not covered |
    | a `np.random.Generator` of `np.random.get_bit_generator()` | not covered |

    Only one thread is inside at a time, and it may enter again. Others wait. The caller's states are restored
    even if the code inside raises an error. The exception is the normal number that NumPy stores after an odd
    number of `np.random.randn`. It is dropped, because reading it takes as long as a small step.

    Args:
        devices: devices that draw inside, such as the model's. The CPU is always included.
    """
    with _turn, _numpy_apart(), _restored(_copied(*devices)):
        fill_from_the_system(*devices)
        yield


def fill_from_the_system(*devices: torch.device) -> None:
    """Give this process's global generators fresh entropy, as in `from_the_system`, for good."""
    torch.set_rng_state(_fresh_state())
    np.random.seed(np.frombuffer(os.urandom(64), dtype=np.uint32))  # noqa: NPY002
    random.seed(os.urandom(64))
    for device in _accelerators(devices):
        seeded = torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8), "little"))
        _set_state_on(device, seeded.get_state())


def generator_from_the_system() -> torch.Generator:
    """Return a CPU generator whose whole state is fresh entropy of the operating system."""
    generator = torch.Generator()
    generator.set_state(_fresh_state())
    return generator


@contextmanager
def restore_generators(*devices: torch.device) -> Iterator[None]:
    """Restore the global generators at the end; inside, only this thread may seed them."""
    with _turn, _restored(generators(*devices)):
        yield


@contextmanager
def _restored(states: States) -> Iterator[None]:
    before = [(write, read()) for read, write in states]
    try:
        yield
    finally:
        for write, state in before:
            write(state)


@contextmanager
def _numpy_apart() -> Iterator[None]:
    """Replace the generator of `np.random` inside. The caller's generator stays as it is."""
    read, write = np.random.get_bit_generator, np.random.set_bit_generator  # type: ignore[attr-defined]
    before, spare = read(), _spares.pop() if _spares else MT19937()
    with before.lock:  # nobody draws from it at this moment
        write(spare)
    try:
        yield
    finally:
        with spare.lock:
            write(before)
        _spares.append(spare)


def generators(*devices: torch.device) -> States:
    """Return functions that read and write the state of each global generator, on the CPU and on devices."""
    return [(np.random.get_state, np.random.set_state), *_copied(*devices)]


def _copied(*devices: torch.device) -> States:
    return [
        (torch.get_rng_state, torch.set_rng_state),
        (random.getstate, random.setstate),
        *((partial(_state_on, each), partial(_set_state_on, each)) for each in _accelerators(devices)),
    ]


def _accelerators(devices: tuple[torch.device, ...]) -> list[torch.device]:
    """Return the devices with their own generator, each once."""
    return [device for device in dict.fromkeys(devices) if device.type not in ("cpu", "meta")]


def _state_on(device: torch.device) -> Tensor:
    module = torch.get_device_module(device)
    state: Tensor = module.get_rng_state(*([] if device.type == "mps" else [device]))
    return state


def _set_state_on(device: torch.device, state: Tensor) -> None:
    torch.get_device_module(device).set_rng_state(state, *([] if device.type == "mps" else [device]))


def _fresh_state() -> Tensor:
    """Return a state of the CPU generator from random words of the system. A seed would have 32 bits."""
    words = _seeded_words().copy()
    words[_TWISTER] = np.frombuffer(os.urandom(4 * 624), dtype=np.uint32)
    return torch.from_numpy(words.view(np.uint8))


@lru_cache(maxsize=1)
def _seeded_words() -> npt.NDArray[np.uint64]:
    """Return a seeded generator's state in 64-bit words; NumPy seeds the same twister in the same way."""
    words = torch.Generator().manual_seed(5489).get_state().numpy().view(np.uint64)
    expected = np.random.RandomState(5489).get_state(legacy=False)["state"]["key"]
    assert (words[_TWISTER] == expected).all(), f"PyTorch {torch.__version__} has another form of generator"
    return words
