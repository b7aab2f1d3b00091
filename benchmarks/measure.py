"""Time and memory, side by side: contenders take turns, and ratios are taken within each turn."""

from __future__ import annotations

import gc
import math
import random
import time
from collections.abc import Callable, Mapping
from statistics import median

import torch
from torch.profiler import ProfilerActivity, profile, supported_activities

from equidp.training.device import CPU, wait_for

Step = Callable[[], object]
Clock = Callable[[], float]
_TURN_SECONDS = 0.03


def step_seconds(
    steps: Mapping[str, Step],
    reference: str,
    *,
    rounds: int,
    device: torch.device = CPU,
    clock: Clock = time.perf_counter,
) -> tuple[dict[str, float], dict[str, float]]:
    """Return median seconds of a step, and the median over rounds of its ratio to the reference."""
    repeats = {name: _repeats(step, device) for name, step in steps.items()}
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    order = list(steps)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            seconds[name].append(_timed(steps[name], repeats[name], device, clock))
    ratios = {
        name: median(own / base for own, base in zip(each, seconds[reference], strict=True))
        for name, each in seconds.items()
    }
    return {name: median(each) for name, each in seconds.items()}, ratios


def _repeats(step: Step, device: torch.device) -> int:
    step()
    return max(1, round(_TURN_SECONDS / _timed(step, 1, device)))


def _timed(step: Step, repeats: int, device: torch.device, clock: Clock = time.perf_counter) -> float:
    wait_for(device)
    start = clock()
    for _ in range(repeats):
        step()
    wait_for(device)
    return (clock() - start) / repeats


def peak_bytes(step: Step, device: torch.device = CPU) -> float:
    """Return the peak bytes of tensors that a step makes, by the allocators' own events.

    NaN on a device that is neither the CPU nor CUDA.
    """
    step()
    gc.collect()
    if device.type == "cuda":
        wait_for(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        wait_for(device)
        return torch.cuda.max_memory_allocated(device) - before
    if device.type != "cpu":
        return math.nan
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == "[memory]"]
    live = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def where_time_goes(step: Step, device: torch.device = CPU, rows: int = 20) -> str:
    """Return a table of the operations that ten steps spend most time in, longest first."""
    step()
    with profile(activities=list(supported_activities())) as profiled:
        for _ in range(10):
            step()
        wait_for(device)
    by = "self_cpu_time_total" if device.type == "cpu" else "self_device_time_total"
    table: str = profiled.key_averages().table(sort_by=by, row_limit=rows, max_name_column_width=60)
    return table
