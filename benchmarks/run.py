"""Times equidp beside plain SGD, Opacus and, if asked, an earlier commit; prints tables and saves them.

    python benchmarks/run.py [--rounds 9] [--only lenet] [--out benchmarks/results.md]
    python benchmarks/run.py --device cuda --only ResNet [--batch-size 1024] [--profile] --out cuda.md
    python benchmarks/run.py --before CHECKOUT [--processes 3] --out before.md

CHECKOUT is a folder that `git worktree add` made of another commit, with its `src` and `benchmarks`.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import time
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import geometric_mean

import before
import torch
from contenders import steps_for
from epochs import epochs
from measure import peak_bytes, step_seconds, where_time_goes
from subjects import SUBJECTS

from equidp.cli.messages import keep_freed_memory
from equidp.training.device import chosen_device

OURS, PLAIN = "equidp ghost, dpsgd", "plain SGD"


def main() -> None:
    chosen = _arguments()
    device = chosen_device(chosen.device)
    torch.set_num_threads(chosen.threads)
    if not chosen.returning_memory:
        keep_freed_memory()
    os.environ.setdefault("KINETO_LOG_LEVEL", "5")  # silences the profiler, which counts memory
    warnings.simplefilter("ignore")
    lines = [_heading(device, chosen.returning_memory)]

    def add(text: str) -> None:
        lines.append(text)
        print(text, flush=True)

    earlier, advantages = {}, []
    for subject in SUBJECTS:
        if chosen.only.lower() not in subject.name.lower():
            continue
        subject = replace(subject, batch_size=chosen.batch_size or subject.batch_size)
        steps, refused = steps_for(subject, device)
        clock = time.process_time if chosen.cpu_time else time.perf_counter
        seconds, ratios = step_seconds(steps, PLAIN, rounds=chosen.rounds, device=device, clock=clock)
        memory = {name: subject.resting_bytes() + peak_bytes(step, device) for name, step in steps.items()}
        fastest = min(
            (name for name in seconds if name.startswith("Opacus")), key=seconds.__getitem__, default=None
        )
        if fastest is not None and OURS in seconds:
            advantages.append(seconds[fastest] / seconds[OURS])
        add(_steps_table(subject.name, subject.batch_size, seconds, ratios, memory, refused))
        if chosen.profile and OURS in steps:
            add(f"\n```text\n{where_time_goes(steps[OURS], device)}\n```")
        del steps
        gc.collect()
        if chosen.before:
            earlier[subject.name] = before.beside(
                chosen.before.resolve(),
                subject.name,
                rounds=chosen.rounds,
                processes=chosen.processes,
                threads=chosen.threads,
            )
            add(before.table(earlier[subject.name]))
        _save(chosen.out, lines)
    if advantages:
        add(
            f"\nOpacus' fastest mode takes {geometric_mean(advantages):.2f} times as long as {OURS}, in "
            f"geometric mean over {len(advantages)} models (least: {min(advantages):.2f}).\n"
        )
    if chosen.before:
        add(before.verdict(earlier))
    elif not chosen.only:
        contenders, source = epochs(device)
        rounds = max(3, chosen.rounds // 2)
        seconds, ratios = step_seconds(contenders, "plain SGD, rows by index", rounds=rounds, device=device)
        add(_epochs_table(source, seconds, ratios))
    _save(chosen.out, lines)
    print(f"\nSaved as {chosen.out}.")


def _arguments() -> argparse.Namespace:
    """Read the command line; end with a message where options contradict each other."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="turns of each contender")
    parser.add_argument("--only", default="", help="models whose name contains this; no epochs")
    parser.add_argument("--before", type=Path, help="a checkout of an earlier commit; no epochs")
    parser.add_argument("--processes", type=int, default=3, help="pairs of processes, with --before")
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps or auto")
    parser.add_argument("--batch-size", type=int, help="examples in a step; default: the subject's")
    parser.add_argument("--profile", action="store_true", help="say where the time of our steps goes")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument(
        "--cpu-time",
        action="store_true",
        help="measure CPU time, on a machine that others use too; with --threads 1",
    )
    parser.add_argument(
        "--returning-memory",
        action="store_true",
        help="let the C library return freed memory to the operating system; the equidp command keeps it",
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results.md"))
    chosen = parser.parse_args()
    if chosen.before and not all((chosen.before / folder).is_dir() for folder in ("src", "benchmarks")):
        parser.error(f"{chosen.before} has no src and benchmarks; expected a checkout of equidp")
    if chosen.before and chosen_device(chosen.device).type != "cpu":
        parser.error("--before measures on the CPU; leave out --device")
    return chosen


def _heading(device: torch.device, returning: bool) -> str:
    where = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else platform.processor() or platform.machine()
    )
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "opacus", "equidp"))
    return (
        "# Benchmarks\n\n"
        f"`python benchmarks/run.py` on {device.type} ({where}), {torch.get_num_threads()} threads; "
        f"{packages}. Whole steps on one batch, noise and optimizer included; contenders take turns; "
        "medians, and medians of ratios within a turn. Freed memory "
        f"{'goes back to the operating system' if returning else 'is kept for the next step'} "
        "(`equidp.cli.messages`). Memory is the "
        "most that tensors take during a step, model and batch included."
    )


def _steps_table(
    name: str,
    batch_size: int,
    seconds: dict[str, float],
    ratios: dict[str, float],
    memory: dict[str, float],
    refused: dict[str, str],
) -> str:
    rows = [
        f"| {who} | {1000 * seconds[who]:.2f} | {ratios[who]:.2f} | {memory[who] / 2**20:.1f} | "
        f"{memory[who] / memory[PLAIN]:.2f} |"
        for who in seconds
    ]
    rows += [f"| {who} | refused: {why} | | | |" for who, why in refused.items()]
    return "\n".join(
        [
            f"\n## {name}, batch {batch_size}\n",
            "| | ms a step | times plain SGD | peak MiB | times plain SGD |",
            "| --- | ---: | ---: | ---: | ---: |",
            *rows,
        ]
    )


def _epochs_table(source: str, seconds: dict[str, float], ratios: dict[str, float]) -> str:
    rows = [f"| {who} | {seconds[who]:.3f} | {ratios[who]:.2f} |" for who in seconds]
    ours = seconds["equidp Trainer, dpsgd"]
    fastest = min(value for who, value in seconds.items() if who.startswith("Opacus"))
    return "\n".join(
        [
            f"\n## One epoch of logistic regression, sampling and loading included ({source})\n",
            "| | seconds | times plain SGD |",
            "| --- | ---: | ---: |",
            *rows,
            f"\nOpacus with its DPDataLoader takes {fastest / ours:.1f} times as long as equidp at its "
            "fastest.",
        ]
    )


def _save(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
