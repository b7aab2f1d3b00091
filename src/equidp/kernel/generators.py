"""The process' random generators, that a user's own code draws from: torch's, NumPy's and Python's."""

from __future__ import annotations

import os
import pickle
import random
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch import Tensor

from equidp.errors import PrivacyWarning

_WORDS = 624  # of the Mersenne Twister, which the CPU generators of torch, NumPy and Python are

_turn = threading.RLock()
"""Held by the thread that has the process' generators in a state of its own."""
_SEED_BYTES = 64


def _start_anew() -> None:
    """Free a child process from a lock that another thread of its parent held."""
    global _turn
    _turn = threading.RLock()


os.register_at_fork(after_in_child=_start_anew)


@contextmanager
def from_the_system(*devices: torch.device) -> Iterator[None]:
    """The global generators hold fresh entropy of the operating system inside, and are restored after.

    Formal guarantee: what is drawn inside (the masks of dropout, say) follows from os.urandom alone, and so
    is independent of the data and of everything drawn outside. A generator of known seed deals its numbers
    out in order of place: one example more in a batch would give all examples after it other masks, which no
    clipping bound covers.

    | generator | entropy |
    | --- | --- |
    | torch's of the CPU | its whole state, 19,937 bits; in a PyTorch that keeps it in another form 32,
      with a PrivacyWarning |
    | torch's of a CUDA, MPS or other device that is named | a seed of 64 bits |
    | NumPy's and Python's (`np.random.rand`, `random.random`) | seeds of 512 bits |
    | of a worker process of a DataLoader | the same, from the worker's start (`fill_from_the_system`) |
    | another generator object, or one that is seeded inside | not covered |

    One thread is inside at a time, others wait; a thread may enter again. So no thread restores or seeds the
    generators while another one draws from them, unless its code does so itself.
    The caller's states come back also if an error ends what runs inside.

    Args:
        devices: that draw inside, such as the one of the model; the CPU always counts.
    """
    with restore_generators(*devices):
        fill_from_the_system(*devices)
        yield


def fill_from_the_system(*devices: torch.device) -> None:
    """Give the global generators of this process fresh entropy of the operating system.

    Guarantee: as `from_the_system` has it; nothing is restored. NumPy's is a Mersenne Twister then.
    """
    torch.set_rng_state(_fresh_state())
    if not isinstance(get_bit_generator(), np.random.MT19937):
        set_bit_generator(np.random.MT19937())
    np.random.seed(np.frombuffer(os.urandom(_SEED_BYTES), dtype=np.uint32))  # noqa: NPY002
    random.seed(os.urandom(_SEED_BYTES))
    for device in _accelerators(devices):
        seeded = torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8), "little"))
        set_state_on(device, seeded.get_state())


def generator_from_the_system() -> torch.Generator:
    """Return a generator of the CPU whose whole state is fresh entropy of the operating system."""
    generator = torch.Generator()
    generator.set_state(_fresh_state())
    return generator


@contextmanager
def restore_generators(*devices: torch.device) -> Iterator[None]:
    """Restore the global generators at the end; inside, this thread alone may seed them."""
    with _turn:
        before = GeneratorStates(*devices)
        try:
            yield
        finally:
            before.restore()


class GeneratorStates:
    """Present states of the process' global generators: torch's, of the CPU and of devices, NumPy's
    and Python's."""

    def __init__(self, *devices: torch.device) -> None:
        self._devices = _accelerators(devices)
        self._torch = [torch.get_rng_state(), *map(state_on, self._devices)]
        self._bits: Any = get_bit_generator()
        self._numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002
        self._python = random.getstate()

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self._torch[0])
        for device, state in zip(self._devices, self._torch[1:], strict=True):
            set_state_on(device, state)
        if get_bit_generator() is not self._bits:
            set_bit_generator(self._bits)
        np.random.set_state(self._numpy)  # noqa: NPY002
        random.setstate(self._python)

    def has_moved(self) -> bool:
        """Return True if numbers were drawn since these states were taken."""
        now = GeneratorStates(*self._devices)
        same = (
            all(map(torch.equal, self._torch, now._torch))
            and self._python == now._python
            and pickle.dumps(self._numpy) == pickle.dumps(now._numpy)
        )
        return not same

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same numbers again inside the context; restore the generators at its end."""
        before = GeneratorStates(*self._devices)
        try:
            self.restore()
            yield
        finally:
            before.restore()


def _accelerators(devices: Iterable[torch.device]) -> list[torch.device]:
    """Return the devices that have a generator of their own, each once."""
    return [device for device in dict.fromkeys(devices) if device.type not in ("cpu", "meta")]


def state_on(device: torch.device) -> Tensor:
    """The state of torch's generator of an accelerator."""
    module = torch.get_device_module(device)
    state: Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state


def set_state_on(device: torch.device, state: Tensor) -> None:
    """Set the state of torch's generator of an accelerator."""
    module = torch.get_device_module(device)
    module.set_rng_state(state) if device.type == "mps" else module.set_rng_state(state, device)


def _fresh_state() -> Tensor:
    """A state of the CPU's generator whose words are the operating system's."""
    template, start = _layout()
    if start < 0:
        warnings.warn(
            f"PyTorch {torch.__version__} keeps the state of its generator in a form that equidp does not "
            "know, so that the random numbers of a model (dropout) have 32 bits of entropy. Use a model "
            "without, or a PyTorch that equidp names.",
            PrivacyWarning,
            stacklevel=2,
        )
        return torch.Generator().manual_seed(int.from_bytes(os.urandom(8), "little")).get_state()
    words = np.frombuffer(os.urandom(4 * _WORDS), dtype=np.uint32)
    state = template.clone()
    state.numpy().view(np.uint64)[start : start + _WORDS] = words
    return state


@lru_cache(maxsize=1)
def _layout() -> tuple[Tensor, int]:
    """The state of a seeded generator, and where its 64-bit words hold the twister's; -1 if they do not.

    NumPy seeds the same twister in the same way, which tells where to look.
    """
    template = torch.Generator().manual_seed(5489).get_state()
    expected = np.random.RandomState(5489).get_state(legacy=False)["state"]["key"]
    words = template.numpy()[: template.numel() // 8 * 8].view(np.uint64)
    starts = np.flatnonzero(words[: len(words) - _WORDS + 1] == expected[0])
    found = [int(at) for at in starts if (words[at : at + _WORDS] == expected).all()]
    return template, found[0] if len(found) == 1 else -1
