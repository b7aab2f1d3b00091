"""Random generators that a user's own code draws from: the global ones, and ones that its objects own."""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import random
import sys
import threading
import types
import warnings
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch import Tensor

from equidp.errors import PrivacyWarning

Owned = torch.Generator | np.random.Generator | np.random.BitGenerator | np.random.RandomState | random.Random

_OWN = (
    *(torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState),
    random.Random,
)
_MOST, _OF_ONE = 100_000, 256
"""Largest number of objects that are searched, and of elements of one object."""

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
def from_the_system(*devices: torch.device, owned: Sequence[Owned] = ()) -> Iterator[None]:
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
    | objects that are given as `owned`, which a dataset holds, say | the whole state of torch's of the
      CPU; others 64 bits (torch's of another device) to 512 |
    | another generator object, or one that is seeded inside | not covered |

    One thread is inside at a time, others wait; a thread may enter again. So no thread restores or seeds the
    generators while another one draws from them, unless its code does so itself.
    The caller's states come back also if an error ends what runs inside.

    Args:
        devices: that draw inside, such as the one of the model; the CPU always counts.
        owned: generator objects that draw inside (`owned_generators`).
    """
    with _turn:
        places = [device for device in dict.fromkeys(devices) if device.type not in ("cpu", "meta")]
        before, of_python = torch.get_rng_state(), random.getstate()
        before_there = [state_on(place) for place in places]
        of_numpy, of_owned = _NumpyState(), states_of(owned)
        try:
            fill_from_the_system(*places, owned=owned)
            yield
        finally:
            of_numpy.restore()
            restore_states(owned, of_owned)
            random.setstate(of_python)
            torch.set_rng_state(before)
            for place, state in zip(places, before_there, strict=True):
                set_state_on(place, state)


def fill_from_the_system(*devices: torch.device, owned: Sequence[Owned] = ()) -> None:
    """Give the global generators of this process, and owned ones, fresh entropy of the operating system.

    Guarantee: as `from_the_system` has it; nothing is restored. NumPy's is a Mersenne Twister then.
    """
    torch.set_rng_state(_fresh_state())
    if not isinstance(get_bit_generator(), np.random.MT19937):
        set_bit_generator(np.random.MT19937())
    np.random.seed(np.frombuffer(os.urandom(_SEED_BYTES), dtype=np.uint32))  # noqa: NPY002
    random.seed(os.urandom(_SEED_BYTES))
    for device in devices:
        seeded = torch.Generator(device).manual_seed(int.from_bytes(os.urandom(8), "little"))
        set_state_on(device, seeded.get_state())
    for each in owned:
        if isinstance(each, torch.Generator):
            each.manual_seed(int.from_bytes(os.urandom(8), "little"))
            if each.device.type == "cpu":
                each.set_state(_fresh_state())
        elif isinstance(each, random.Random):
            each.seed(os.urandom(_SEED_BYTES))
        else:
            bits: Any = getattr(each, "_bit_generator", getattr(each, "bit_generator", each))
            bits.state = type(bits)(int.from_bytes(os.urandom(_SEED_BYTES), "little")).state


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
        self._devices = [device for device in dict.fromkeys(devices) if device.type not in ("cpu", "meta")]
        self._torch = [torch.get_rng_state(), *map(state_on, self._devices)]
        self._numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002
        self._python = random.getstate()

    def restore(self) -> None:
        """Set the generators to these states."""
        torch.set_rng_state(self._torch[0])
        for device, state in zip(self._devices, self._torch[1:], strict=True):
            set_state_on(device, state)
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


def owned_generators(*roots: object) -> tuple[Owned, ...]:
    """Return the generators that objects hold: in attributes, containers, closures, defaults, and globals
    that methods name which the user wrote.

    | held | found |
    | --- | --- |
    | by one of these in turn, at any depth | yes, within the first 100,000 objects |
    | among more than 256 elements of one container, after those | no |
    | made in each call or at the first, inside compiled code, or a global of an installed library | no |
    | the global generators of torch, NumPy and Python | left out: `from_the_system` has them |

    >>> held = {"rng": np.random.default_rng(0)}
    >>> owned_generators([held, 3]) == (held["rng"],)
    True
    """
    common = {id(torch.default_generator), id(np.random.mtrand._rand), id(random._inst)}
    return tuple(
        each
        for each in reached_objects(*roots, ends=_OWN)
        if isinstance(each, _OWN) and not isinstance(each, random.SystemRandom) and id(each) not in common
    )


def reached_objects(*roots: object, ends: tuple[type, ...] = ()) -> Iterable[object]:
    """Return the objects that are reached from some, these included; see `owned_generators` for which.

    Args:
        ends: types of objects behind which nothing is searched.

    >>> len(list(reached_objects([(1, 2), 2])))
    4
    """
    seen: dict[int, object] = {}  # which keeps them alive, so that no id comes again
    waiting = list(roots)
    while waiting and len(seen) < _MOST:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if not isinstance(each, ends):
            waiting.extend(islice(_held_by(each), _OF_ONE))
    return seen.values()


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
    """Set generators to earlier states."""
    for each, state in zip(generators, states, strict=True):
        if isinstance(each, random.Random):
            each.setstate(state)
        elif isinstance(each, np.random.Generator):
            each.bit_generator.state = state
        elif isinstance(each, np.random.BitGenerator):
            each.state = state
        else:
            each.set_state(state)


@final
class _NumpyState:
    """NumPy's global generator, exchanged for another one: copying its state takes many times as long.

    NumPy also stores every other normal number that it draws (`np.random.randn`), and drops it when
    generators are exchanged. Only a whole state shows it, which is copied where the generator moved since it
    was put back.
    """

    _spare: ClassVar[list[np.random.MT19937]] = []
    _left: ClassVar[tuple[Any, bytes] | None] = None

    def __init__(self) -> None:
        self._caller: Any = get_bit_generator()
        left = _NumpyState._left
        moved = left is None or left[0] is not self._caller or left[1] != _content(self._caller)
        self._whole: Any = np.random.get_state(legacy=False) if moved else None  # noqa: NPY002
        self._standing_in = self._spare.pop() if self._spare else np.random.MT19937()
        _exchange(self._standing_in)

    def restore(self) -> None:
        """Put the caller's generator back, as it was."""
        _exchange(self._caller)
        self._spare.append(self._standing_in)
        if self._whole is not None and self._whole["has_gauss"]:
            np.random.set_state(self._whole)  # noqa: NPY002
            _NumpyState._left = None
        elif (content := _content(self._caller)) is not None:
            _NumpyState._left = self._caller, content


def _content(generator: Any) -> bytes | None:
    """The memory of a Mersenne Twister, its words and place; None for another generator."""
    if type(generator) is not np.random.MT19937:
        return None
    return ctypes.string_at(generator.ctypes.state_address, 4 * _WORDS + 4)


def state_on(device: torch.device) -> Tensor:
    """The state of torch's generator of an accelerator."""
    module = torch.get_device_module(device)
    state: Tensor = module.get_rng_state() if device.type == "mps" else module.get_rng_state(device)
    return state


def set_state_on(device: torch.device, state: Tensor) -> None:
    """Set the state of torch's generator of an accelerator."""
    module = torch.get_device_module(device)
    module.set_rng_state(state) if device.type == "mps" else module.set_rng_state(state, device)


def _exchange(standing_in: Any) -> None:
    """Put another generator in the place of NumPy's global one, while nobody draws from that one."""
    with get_bit_generator().lock:
        set_bit_generator(standing_in)


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
