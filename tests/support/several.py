"""What tests run in each of several processes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import equidp
from equidp.errors import EquidpError
from equidp.kernel.event import Event
from equidp.kernel.noise import Randomness, SeededRandomness, SystemRandomness
from equidp.kernel.policy import NoState, Policy, Setting, statistics_noise
from equidp.kernel.step import PrivateStep
from equidp.ledger.ledger import Ledger
from equidp.policies.table import METHODS
from equidp.training.processes import processes_here
from support.given_gradients import GivenGradients
from support.policies import POLICIES
from support.toy import make_trainer, toy

WIDTH = 50_000
"""Numbers that `noisy_steps` releases in a step."""


def trained(methods: tuple[str, ...] = tuple(METHODS), **settings: Any) -> dict[str, Any]:
    """Method -> (weights, state, ledger's entries) of a small seeded run."""
    found = {}
    for name in methods:
        policy = METHODS[name].policy()
        noise = {"noise_multiplier": 0.7 if policy.private else 0.0}
        given = {"seed": 3, "steps": 6, "epochs": None, **noise, **settings}
        trainer = make_trainer(method=policy, model=_model(), **given)
        run = trainer.fit()
        weights = torch.cat([each.detach().flatten() for each in run.model.parameters()])
        found[name] = weights, tuple(trainer.policy_state), run.entries
    return found


def of_people() -> dict[str, Any]:
    """`trained` on a hundred people of three rows."""
    people = equidp.by_person(toy(), [number // 3 for number in range(300)], most_rows=4)
    return trained(("dpsgd", "dpsgd-f"), train=people, batch_size=20)


def in_views() -> Tensor:
    """Weights that were trained on random views, whose random numbers follow from the seed."""
    rows = toy()
    images = equidp.GroupedDataset(
        rows.inputs.reshape(300, 1, 1, 5).expand(300, 1, 8, 5), rows.targets, rows.groups, *_NAMES
    )
    model = nn.Sequential(nn.Flatten(), nn.Linear(40, 2))
    nn.init.zeros_(model[1].weight)
    trainer = make_trainer(
        images, model=model, views=3, augmentation="flip-shift", seed=3, steps=6, epochs=None
    )
    return trainer.fit().model[1].weight.detach()


_NAMES = ("a", "b"), ("no", "yes")


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 2))


def step_of(
    policy: Policy, randomness: Randomness, width: int, sigma: float = 1.0, b: float = 5.0, groups: int = 3
) -> PrivateStep:
    """A step of the processes here, whose engine's gradients are given."""
    parameter = nn.Parameter(torch.zeros(width))
    return PrivateStep(
        GivenGradients(parameter),
        policy,
        [parameter],
        event=Event(0.1, sigma, statistics_noise(policy, sigma)),
        expected_batch_size=b,
        num_groups=groups,
        randomness=randomness,
        processes=processes_here(),
    )


def noisy_steps(steps: int = 4) -> Tensor:
    """Private means of empty samples, [steps, WIDTH]: noise alone."""
    step = step_of(equidp.DPSGD(2.0), SystemRandomness(), WIDTH, sigma=3.0)
    found = []
    for _ in range(steps):
        found += step(torch.empty(0, WIDTH), torch.empty(0), torch.empty(0, dtype=torch.int64))
    return torch.stack(found)


class _NoNoise(SeededRandomness):
    """What remains is the sum whose sensitivity is at stake."""

    def normal(self, count: int, device: Any = "cpu", deviation: float = 1.0) -> Tensor:
        return torch.zeros(count, dtype=torch.float64)


def moved(batches: list[tuple[list[Tensor], list[Tensor]]]) -> dict[str, list[tuple[Tensor, float]]]:
    """Policy -> (sum, sensitivity) of each batch; a batch is gradients and groups of each process.

    Each is the first step of a policy: from the same state, and released statistics without noise.
    """
    rank = processes_here().rank
    found: dict[str, list[tuple[Tensor, float]]] = {}
    for name, policy in POLICIES.items():
        for gradients, groups in batches:
            step = step_of(policy, _NoNoise(0), 4, sigma=1e-9, b=1.0)
            step._release_statistics = lambda parts, _: [None] * len(parts)  # type: ignore[method-assign]
            mine = gradients[rank]  # as if it released the same
            (total,) = step(mine, torch.zeros(len(mine)), groups[rank])
            found.setdefault(name, []).append((total, step._sensitivity()))
    return found


@dataclass(frozen=True)
class Disagreeing(Policy):
    """Claims another sensitivity in each process."""

    def init(self, setting: Setting) -> NoState:
        return NoState()

    def weight(self, state: Any, norm: Tensor, group: Tensor) -> Tensor:
        return torch.full_like(norm, math.inf).nan_to_num(posinf=1e30)

    def sensitivity(self, state: Any) -> float:
        return (1.0, 1000.0)[dist.get_rank()]


def moved_by_a_stranger() -> Tensor:
    """The sum where one process has one example of norm 1e9 and claims a thousand times the sensitivity."""
    step = step_of(Disagreeing(), _NoNoise(0), 4, sigma=1e-9, b=1.0)
    gradients = 1e9 * torch.ones(processes_here().rank, 4)
    (total,) = step(gradients, torch.zeros(len(gradients)), torch.zeros(len(gradients), dtype=torch.int64))
    return total


def sent_sizes(sizes: list[list[int]]) -> list[list[int]]:
    """Bytes of each message of a step with so many examples in each process; for each of `sizes`."""
    found: list[list[int]] = []

    def watching(send: Any) -> Any:
        def watched(tensor: Tensor, *rest: Any) -> None:
            found[-1].append(tensor.numel() * tensor.element_size())
            send(tensor, *rest)

        return watched

    reduce, broadcast = dist.reduce, dist.broadcast
    try:
        dist.reduce, dist.broadcast = watching(reduce), watching(broadcast)  # type: ignore[assignment]
        for counts in sizes:
            step = step_of(equidp.DPSGDF(1.0), SeededRandomness(0), 7)
            mine = counts[processes_here().rank]
            found.append([])
            step(torch.ones(mine, 7), torch.zeros(mine), torch.zeros(mine, dtype=torch.int64))
    finally:
        dist.reduce, dist.broadcast = reduce, broadcast
    return found


def failing() -> tuple[int, str]:
    """(steps that the ledger counts, what was raised) where process 0 cannot pay for the fourth step."""
    trainer = make_trainer(steps=20, epochs=None)

    def refused(*charged: Any) -> None:
        if trainer.steps_done == 3:
            raise equidp.BudgetError("no more")
        Ledger.charge(trainer.ledger, *charged)

    if processes_here().first:
        trainer.ledger.charge = refused  # type: ignore[method-assign]
    try:
        trainer.fit()
    except EquidpError as error:
        return trainer.steps_done, f"{type(error).__name__}: {error}"
    raise AssertionError("nothing failed")


def resolved() -> tuple[Any, Tensor]:
    """(event, steps done) and first weights of Trainers that are given other plans, ledgers and weights."""
    rank = processes_here().rank
    torch.manual_seed(rank)
    model, event = nn.Linear(5, 2), make_trainer(noise_multiplier=1.0).event
    ledger = Ledger()
    for _ in range(2 + rank):
        ledger.charge("a", event)
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        toy(),
        method=equidp.DPSGD(),
        batch_size=30,
        steps=20,
        noise_multiplier=1.0 + rank,
        delta=1e-4,
        ledger=(ledger, "a"),
    )
    return (trainer.event, trainer.steps_done), model.weight.detach().clone()


def stopped(at: tuple[int, int]) -> tuple[int, str]:
    """Steps done and the error where each process is asked to stop, after so many steps."""
    rank = processes_here().rank
    trainer = make_trainer(steps=50, epochs=None)

    class Stop(equidp.Callback):
        def after_step(self, trainer: equidp.Trainer) -> None:
            if trainer.steps_done == at[rank]:
                trainer.stop(equidp.errors.TrainingStopped("stopped by SIGTERM.", 15))

    trainer.callbacks = (Stop(),)
    try:
        trainer.fit()
    except BaseException as error:
        return trainer.steps_done, type(error).__name__
    return trainer.steps_done, ""


def ended(rank: int) -> tuple[int, int]:
    """Steps taken, and left, of a run that one process ends after four steps without a reason."""
    here = processes_here().rank
    trainer = make_trainer(steps=8, epochs=None)

    class Stop(equidp.Callback):
        def after_step(self, trainer: equidp.Trainer) -> None:
            if here == rank and trainer.steps_done == 4:
                trainer.stop()

    trainer.callbacks = (Stop(),)
    run = trainer.fit()
    return run.facts.steps, sum(count for _, count in run.not_taken)


def trained_for_two_blocks() -> dict[str, Any]:
    """A run of more steps than samples are drawn for at once, so that noise is drawn between two draws."""
    return trained(("dpsgd-f",), steps=70)


def everything(batches: list[tuple[list[Tensor], list[Tensor]]], sizes: list[list[int]]) -> dict[str, Any]:
    """Return what each function here gives, by its name; processes part in the last one."""
    found = {
        "moved": moved(batches),
        "sent_sizes": sent_sizes(sizes),
        "ended": [ended(0), ended(1)],
        "stopped": stopped((9, 40)),
    }
    for function in (
        noisy_steps,
        moved_by_a_stranger,
        of_people,
        in_views,
        trained_for_two_blocks,
        resolved,
        failing,
    ):
        found[function.__name__] = function()
    return found
