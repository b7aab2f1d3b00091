"""Generators of random numbers that a user's objects own: found, and their states."""

from __future__ import annotations

import functools
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

Owned = torch.Generator | np.random.Generator | np.random.BitGenerator | np.random.RandomState | random.Random

_OWN = (
    *(torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState),
    random.Random,
)
_MOST, _OF_ONE = 100_000, 256
"""How many objects are looked at, and how many elements of one."""


def owned_generators(*roots: object) -> tuple[Owned, ...]:
    """Returns the generators that objects hold: in attributes, containers, closures, defaults, and globals
    that methods name which the user wrote.

    | held | found |
    | --- | --- |
    | by one of these in turn, at any depth | yes, within the first 100,000 objects |
    | among more than 256 elements of one container, after those | no |
    | made anew in each call or at the first, inside compiled code, or a global of an installed library | no |
    | the global generators of torch, NumPy and Python | left out: `from_the_system` has them |

    >>> held = {"rng": np.random.default_rng(0)}
    >>> owned_generators([held, 3]) == (held["rng"],)
    True
    """
    found: list[Owned] = []
    seen: dict[int, object] = {}  # which keeps them alive, so that no id comes again
    waiting = list(roots)
    common = {id(torch.default_generator), id(np.random.mtrand._rand), id(random._inst)}
    while waiting and len(seen) < _MOST:
        each = waiting.pop()
        if id(each) in seen or id(each) in common:
            continue
        seen[id(each)] = each
        if isinstance(each, _OWN):
            if not isinstance(each, random.SystemRandom):
                found.append(each)
            continue
        waiting.extend(islice(_held_by(each), _OF_ONE))
    return tuple(found)


def _held_by(each: object) -> Iterator[object]:
    """Yield the objects that an object refers to; none for plain values, tensors, arrays and modules."""
    if isinstance(
        each, str | bytes | int | float | complex | torch.Tensor | np.ndarray | types.ModuleType | None
    ):
        return
    if isinstance(each, dict):
        yield from each.values()
        yield from each
    elif isinstance(each, list | tuple | set | frozenset | deque):
        yield from each
    elif isinstance(each, functools.partial):
        yield from (each.func, each.args, each.keywords)
    elif isinstance(each, types.MethodType):
        yield from (each.__self__, each.__func__)
    elif isinstance(each, types.BuiltinMethodType):
        yield each.__self__
    elif isinstance(each, types.GeneratorType):
        yield from () if each.gi_frame is None else each.gi_frame.f_locals.values()
    elif isinstance(each, types.FunctionType):
        if not _is_users(each.__module__):
            return
        yield from (cell.cell_contents for cell in each.__closure__ or () if _is_filled(cell))
        yield from (each.__defaults__ or ())
        yield from (each.__kwdefaults__ or {}).values()
        yield from (each.__globals__[name] for name in each.__code__.co_names if name in each.__globals__)
    elif isinstance(each, type):
        yield from (value for kind in each.__mro__[:-1] for value in _of_class(kind))
    else:
        yield from getattr(each, "__dict__", {}).values()
        slots = (name for kind in type(each).__mro__ for name in getattr(kind, "__slots__", ()))
        yield from (getattr(each, name) for name in slots if isinstance(name, str) and hasattr(each, name))
        yield type(each)


def _of_class(kind: type) -> Iterator[object]:
    if not _is_users(kind.__module__):
        return
    for value in list(vars(kind).values()):
        yield getattr(value, "__func__", getattr(value, "fget", value))


@lru_cache(maxsize=4096)
def _is_users(name: str | None) -> bool:
    """True for modules of the user: not Python's, installed or of equidp, which refer to too many objects."""
    if name is None or name.partition(".")[0] in {*sys.stdlib_module_names, "equidp"} - {"__main__"}:
        return False
    file = getattr(sys.modules.get(name), "__file__", None) or ""
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def states_of(generators: Iterable[Owned]) -> list[Any]:
    """Their states, for `restore_states`."""
    return [
        each.get_state()
        if isinstance(each, torch.Generator)
        else each.getstate()
        if isinstance(each, random.Random)
        else each.bit_generator.state
        if isinstance(each, np.random.Generator)
        else each.state
        if isinstance(each, np.random.BitGenerator)
        else each.get_state(legacy=False)
        for each in generators
    ]


def restore_states(generators: Iterable[Owned], states: Iterable[Any]) -> None:
    """Sets generators to earlier states."""
    for each, state in zip(generators, states, strict=True):
        if isinstance(each, random.Random):
            each.setstate(state)
        elif isinstance(each, np.random.Generator):
            each.bit_generator.state = state
        elif isinstance(each, np.random.BitGenerator):
            each.state = state
        else:
            each.set_state(state)
