"""Random numbers that a forward pass drew (dropout), so that a second pass can draw them again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


class RandomState:
    """The present state of torch's generators, of the processor and of `device`."""

    def __init__(self, device: torch.device) -> None:
        self._devices = [device] if device.type == "cuda" else []
        self._states = self._now()

    def _now(self) -> list[torch.Tensor]:
        return [torch.get_rng_state(), *map(torch.cuda.get_rng_state, self._devices)]

    def moved(self) -> bool:
        """Returns whether numbers were drawn since."""
        return not all(map(torch.equal, self._now(), self._states))

    @contextmanager
    def again(self) -> Iterator[None]:
        """Draws the same numbers again inside; afterwards as if none had been drawn."""
        with torch.random.fork_rng(devices=self._devices):
            torch.set_rng_state(self._states[0])
            for device, state in zip(self._devices, self._states[1:], strict=True):
                torch.cuda.set_rng_state(state, device)
            yield
