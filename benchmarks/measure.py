"""Time and memory, side by side: contenders take turns, and ratios are taken within each turn."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile

Step = Callable[[], object]
_TURN_SECONDS = 0.03


def step_seconds(
    steps: Mapping[str, Step], reference: str, *, rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """Returns median seconds of a step, and the median over rounds of its ratio to the reference."""
    repeats = {name: _repeats(step) for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            seconds[name].append(_timed(steps[name], repeats[name]))
    ratios = {
        name: median(own / base for own, base in zip(each, seconds[reference], strict=True))
        for name, each in seconds.items()
    }
    return {name: median(each) for name, each in seconds.items()}, ratios


def _repeats(step: Step) -> int:
    step()
    return max(1, round(_TURN_SECONDS / _timed(step, 1)))


def _timed(step: Step, repeats: int) -> float:
    _synchronise()
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    _synchronise()
    return (time.perf_counter() - start) / repeats


def _synchronise() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def peak_bytes(step: Step) -> int:
    """Returns the peak bytes of tensors that a step makes, by the allocators' own events."""
    step()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most
