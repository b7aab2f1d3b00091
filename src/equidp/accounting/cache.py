"""Calibrations and epsilons, remembered on disk: they take seconds, and a comparison repeats them.

    with remembered("equidp-runs"):
        calibrate_noise(...)  # read from the folder if any process worked it out before

Each result is an entry of a store. Its key follows from the function's name, all its arguments, and the code
that decides the result: neither a damaged disk nor old code must lead to too little noise.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec

import equidp.kernel.epsilon
from equidp.accounting import rows as rows_of_one_person
from equidp.errors import DataError
from equidp.kernel.epsilon import ACCOUNTANTS, Entries
from equidp.store import Store, key_of

P = ParamSpec("P")

_FOLDER: ContextVar[Path | None] = ContextVar("folder", default=None)
"""Where results are kept; None: nothing is remembered."""


@contextmanager
def remembered(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Make calibrations, epsilons and risks of this package keep their results in a folder, for this thread.

    Several processes may share the folder. A folder that cannot be written is as good as none, and a damaged
    entry is worked out again, with a CacheWarning. Name a folder that only you can write to: entries are
    believed.

    >>> import tempfile
    >>> from equidp.accounting import calibrate_noise
    >>> with tempfile.TemporaryDirectory() as folder, remembered(folder):
    ...     sigma = calibrate_noise(3.0, 1e-5, 0.02, 1000, accountant="rdp")
    """
    before = _FOLDER.set(Path(folder) / "accounting")
    try:
        yield
    finally:
        _FOLDER.reset(before)


def remember(function: Callable[P, float]) -> Callable[P, float]:
    """The function, with results remembered inside `remembered`. It must depend on its arguments alone."""
    signature = inspect.signature(function)

    @wraps(function)
    def remembering(*args: P.args, **kwargs: P.kwargs) -> float:
        folder, given = _FOLDER.get(), signature.bind(*args, **kwargs)
        given.apply_defaults()
        accountant = ACCOUNTANTS.get(given.arguments.get("accountant", "pld"))
        # A user's own accountant may change without its name.
        if folder is None or getattr(accountant, "__module__", "") != equidp.kernel.epsilon.__name__:
            return function(*args, **kwargs)
        key = key_of(function.__name__, _code_digest(), repr(tuple(given.arguments.items())))
        if (entry := Store(folder).get(key)) is not None:
            return float(entry.facts["value"])
        value = function(*args, **kwargs)
        with suppress(DataError):
            Store(folder).put(key, {}, {"value": value})
        return value

    return remembering


@remember
def _epsilon(entries: tuple[Any, ...], delta: float, accountant: str, rows: int) -> float:
    return rows_of_one_person.epsilon(entries, delta, accountant, rows)


def epsilon(entries: Entries, delta: float, accountant: str = "pld", rows: int = 1) -> float:
    """Cached `equidp.accounting.rows.epsilon`; inside `remembered`, on disk too."""
    return _epsilon(equidp.kernel.epsilon.checked_entries(entries), delta, accountant, rows)


@cache
def _code_digest() -> str:
    """A digest of the code that decides an epsilon or a calibration, and dp_accounting's version."""
    kernel, here = Path(equidp.kernel.epsilon.__file__), Path(__file__)
    sources = (
        kernel,
        kernel.with_name("ledger.py"),
        *(here.with_name(name) for name in ("calibration.py", "risk.py", "rows.py", "privacy_losses.py")),
    )
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return f"dp-accounting {version('dp-accounting')}, {digest}"
