"""States of the global generators, to see whether a model draws, and to draw the same again."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from equidp.kernel.generators import generators, restore_generators


class GeneratorStates:
    """Present states of the global generators: torch's, of the CPU and of devices, NumPy's and Python's."""

    def __init__(self, *devices: torch.device) -> None:
        self._devices, self._states = devices, [read() for read, _ in generators(*devices)]

    def have_moved(self) -> bool:
        """Return whether numbers were drawn since these states were taken."""
        return not all(map(_are_equal, self._states, GeneratorStates(*self._devices)._states))

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draw the same numbers again inside the context; restore the generators at its end."""
        with restore_generators(*self._devices):
            for (_, write), state in zip(generators(*self._devices), self._states, strict=True):
                write(state)
            yield


def _are_equal(one: Any, other: Any) -> bool:
    return torch.equal(one, other) if isinstance(one, Tensor) else pickle.dumps(one) == pickle.dumps(other)
