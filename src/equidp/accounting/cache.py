"""Calibrations and epsilons, remembered on disk: they take seconds, and a comparison asks for the same ones
each time.

    with remembered("equidp-runs"):
        calibrate_noise(...)  # read from the folder if any process worked it out before

Results are kept by joblib. The key is the function's name, all its arguments, and the code that they follow
from.
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec

from joblib import Memory

import equidp.kernel.epsilon
from equidp.kernel.epsilon import ACCOUNTANTS
from equidp.kernel.events import Entries

P = ParamSpec("P")

_STORE: ContextVar[Any] = ContextVar("store", default=None)
"""joblib's memorized function of the folder in use; None: nothing is remembered."""


@contextmanager
def remembered(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Makes `calibrate_noise` and `epsilon` of this package keep their results in a folder, for this thread.

    Several processes may share the folder. A folder that cannot be written or read is as good as none, and a
    damaged entry is worked out again. Entries are pickles: name a folder that only you can write to.

    >>> import tempfile
    >>> from equidp.accounting import calibrate_noise
    >>> with tempfile.TemporaryDirectory() as folder, remembered(folder):
    ...     sigma = calibrate_noise(3.0, 1e-5, 0.02, 1000, accountant="rdp")
    """

    # Defined here because joblib checks the code of each function object once, for the first folder alone.
    def stored(key: str, compute: Callable[[], float]) -> str:
        return _sealed(key, compute())

    try:
        store = Memory(Path(folder) / "accounting", verbose=0).cache(stored, ignore=["compute"])
    except OSError:
        store = None
    before = _STORE.set(store)
    try:
        yield
    finally:
        _STORE.reset(before)


def remember(function: Callable[P, float]) -> Callable[P, float]:
    """The function, with results remembered inside `remembered`. It must depend on its arguments alone."""
    signature = inspect.signature(function)

    @wraps(function)
    def remembering(*args: P.args, **kwargs: P.kwargs) -> float:
        store, given = _STORE.get(), signature.bind(*args, **kwargs)
        given.apply_defaults()
        # A user's own accountant may change without its name.
        known = (
            getattr(ACCOUNTANTS.get(given.arguments["accountant"]), "__module__", "")
            == equidp.kernel.epsilon.__name__
        )
        if store is None or not known:
            return function(*args, **kwargs)
        key = repr((function.__name__, _code(), tuple(given.arguments.items())))
        try:
            value = _opened(key, store(key, lambda: function(*args, **kwargs)))
            if value is None:  # damaged in a way that joblib does not notice
                store.call_and_shelve(key, lambda: function(*args, **kwargs)).clear()
                value = _opened(key, store(key, lambda: function(*args, **kwargs)))
        except OSError:
            value = None
        return function(*args, **kwargs) if value is None else value

    return remembering


@remember
def _epsilon(entries: tuple[Any, ...], delta: float, accountant: str) -> float:
    return equidp.kernel.epsilon.epsilon(entries, delta, accountant)


def epsilon(entries: Entries, delta: float, accountant: str = "pld") -> float:
    """As `equidp.kernel.epsilon.epsilon`, remembered on disk inside `remembered`."""
    return _epsilon(tuple(entries), delta, accountant)


def _sealed(key: str, value: float) -> str:
    """Returns the value's exact text with a checksum: a damaged disk must not lead to too little noise."""
    text = float(value).hex()
    return f"{text} {hashlib.sha256(f'{key} {text}'.encode()).hexdigest()}"


def _opened(key: str, sealed: Any) -> float | None:
    """The value; None: the text is not what was written for this key."""
    try:
        value = float.fromhex(str(sealed).split(" ")[0])
    except (ValueError, OverflowError):
        return None
    return value if sealed == _sealed(key, value) else None


@cache
def _code() -> str:
    """A digest of the code that decides an epsilon or a calibration, and dp_accounting's version."""
    kernel = Path(equidp.kernel.epsilon.__file__)
    sources = (kernel, kernel.with_name("events.py"), Path(__file__).with_name("calibration.py"))
    digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
    return f"dp-accounting {version('dp-accounting')}, {digest}"
