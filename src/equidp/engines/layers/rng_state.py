"""Random numbers that a forward pass drew (dropout), so that a second pass can draw them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from equidp.kernel.generators import GeneratorStates


class RandomState:
    """The present state of the global generators: torch's, of the processor and of `device`, NumPy's and
    Python's."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._states = device, GeneratorStates(device)

    def has_moved(self) -> bool:
        """Returns True if numbers were drawn since this state was taken."""
        return not GeneratorStates(self._device).same(self._states)

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draws the same numbers again inside the context; restores the generators at its end."""
        before = GeneratorStates(self._device)
        try:
            self._states.restore()
            yield
        finally:
            before.restore()
