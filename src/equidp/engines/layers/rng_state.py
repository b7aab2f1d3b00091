"""Random numbers that a forward pass drew (dropout), so that a second pass can draw them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from equidp.kernel.model_randomness import set_state_on, state_on


class RandomState:
    """The present state of torch's generators, of the processor and of `device`."""

    def __init__(self, device: torch.device) -> None:
        self._device = None if device.type in ("cpu", "meta") else device
        self._states = self._now()

    def _now(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *([state_on(self._device)] if self._device else [])]

    def _set(self, states: list[torch.Tensor]) -> None:
        torch.set_rng_state(states[0])
        if self._device:
            set_state_on(self._device, states[1])

    def moved(self) -> bool:
        """Returns whether numbers were drawn since."""
        return not all(map(torch.equal, self._now(), self._states))

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draws the same numbers again inside; afterwards as if none had been drawn."""
        with self.kept():
            self._set(self._states)
            yield

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Leaves the generators at the end as they are at the beginning."""
        before = self._now()
        try:
            yield
        finally:
            self._set(before)
