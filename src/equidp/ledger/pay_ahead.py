"""How many steps one line of a ledger file pays for: as many as half a second of training takes."""

from __future__ import annotations

from typing import final

from equidp.kernel.ledger import Event

Kind = tuple[Event, str]
"""An event, and the session that it is paid for."""

_SECONDS = 0.5
"""Training that a block should last: what a kill may count too much."""


@final
class PayAhead:
    """Sizes of blocks of equal steps, and what is left of the block in use. Reads no clock and writes
    nothing.

    Guarantee: after `begin(kind, steps)`, `covers(kind)` holds for at most `steps` calls of `take`, and never
    for another event or session. Blocks of steps that were not announced by `expect` have size 1.
    """

    def __init__(self) -> None:
        self._expected: dict[Kind, int] = {}
        self.kind: Kind | None = None
        self.left = self._size = 0
        self._began = 0.0

    def expect(self, kind: Kind, steps: int) -> None:
        """Allows blocks of this kind to reach `steps` steps ahead."""
        self._expected[kind] = steps

    def covers(self, kind: Kind) -> bool:
        """Whether the block in use pays for one more step of this kind."""
        return kind == self.kind and self.left > 0

    def size(self, kind: Kind, seconds: float, previous: Kind | None) -> int:
        """Steps of the next block: doubled after a short block of the same kind, halved after a long one."""
        lasted = seconds - self._began
        if kind != previous:
            self._size = 1
        elif lasted < _SECONDS / 2:
            self._size *= 2
        elif lasted > 2 * _SECONDS:
            self._size = max(1, self._size // 2)
        return max(1, min(self._size, self._expected.get(kind, 0)))

    def begin(self, kind: Kind, steps: int, seconds: float) -> None:
        """Puts a block in use that is on disk."""
        self.kind, self.left, self._began = kind, steps, seconds

    def take(self, kind: Kind) -> None:
        """Spends one step of the block in use."""
        self.left -= 1
        self._expected[kind] = max(0, self._expected.get(kind, 0) - 1)

    def end(self, *, forget: bool = False) -> int:
        """Ends the block in use and returns its unspent steps; `forget`: no more of its kind are expected."""
        left = self.left
        if forget and self.kind is not None:
            self._expected.pop(self.kind, None)
        self.kind, self.left = None, 0
        return left
