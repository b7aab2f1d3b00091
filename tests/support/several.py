"""What tests run in each of several processes."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import Dataset

import equidp
from equidp.distributed.group import processes_here
from equidp.errors import EquidpError
from equidp.kernel.ledger import MemoryLedger, StepEvent
from equidp.kernel.noise import Randomness, SeededRandomness, SystemRandomness
from equidp.kernel.policy import NoState, Policy, Setting, statistics_noise
from equidp.kernel.step import PrivateStep
from equidp.policies.table import METHODS
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
        given = {"secure": False, "seed": 3, "steps": 6, "epochs": None, **noise, **settings}
        trainer = make_trainer(policy=policy, model=_model(), **given)
        run = trainer.fit()
        weights = torch.cat([each.detach().flatten() for each in run.model.parameters()])
        found[name] = weights, tuple(trainer.policy_state), run.entries
    return found


def averaged() -> dict[str, Any]:
    """`trained` with a schedule and an average."""
    return trained(("dpsgd",), scheduler="cosine", average=equidp.WeightAverage("tail", 0.5))


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
    views = equidp.Views(3, "flip-shift")
    trainer = make_trainer(images, model=model, views=views, secure=False, seed=3, steps=6, epochs=None)
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
        event=StepEvent(0.1, sigma, statistics_noise(policy, sigma)),
        expected_batch_size=b,
        num_groups=groups,
        ledger=MemoryLedger(),
        randomness=randomness,
        processes=processes_here(),
    )


def noisy_steps(steps: int = 4) -> Tensor:
    """Private means of empty samples, [steps, WIDTH]: noise alone."""
    step = step_of(equidp.DPSGD(2.0), SystemRandomness(), WIDTH, sigma=3.0)
    found = []
    for _ in range(steps):
        step(torch.empty(0, WIDTH), torch.empty(0), torch.empty(0, dtype=torch.int64))
        found.append(step.parameters[0].grad.clone())
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
            step._update_state = lambda *_: None  # type: ignore[method-assign]  # as if it released the same
            mine = gradients[rank]
            step(mine, torch.zeros(len(mine)), groups[rank])
            found.setdefault(name, []).append((step.parameters[0].grad.clone(), step._sensitivity()))
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
    step(gradients, torch.zeros(len(gradients)), torch.zeros(len(gradients), dtype=torch.int64))
    grad = step.parameters[0].grad
    assert grad is not None
    return grad


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


def failing(where: str) -> tuple[int, str, bool]:
    """(steps that the ledger counts, what was raised, whether gradients are left) where process 1 fails."""
    rank = processes_here().rank
    trainer = make_trainer(secure=True, steps=20, epochs=None)
    engine = trainer._step.engine

    def broken(*batch: Any) -> Any:
        if rank == 1 and trainer.steps_done == 3:
            raise OSError("the disk is gone")
        return engine(*batch)

    def refused(event: StepEvent) -> None:
        if trainer.steps_done == 3:
            raise equidp.BudgetError("no more")
        MemoryLedger.spend(trainer.ledger, event)  # type: ignore[arg-type]

    if where == "engine":
        trainer._step.engine = broken
    elif rank == 0:
        trainer.ledger.spend = refused  # type: ignore[method-assign]
    try:
        for batch in trainer.batches():
            trainer.step(batch)
    except (EquidpError, OSError) as error:
        left = any(parameter.grad is not None for parameter in trainer.model.parameters())
        return trainer.steps_done, f"{type(error).__name__}: {error}", left
    raise AssertionError("nothing failed")


def with_a_wrong_row(rows: list[Any]) -> tuple[int, str]:
    """(steps that the ledger counts, type of error) where rows of a list are not of one form."""
    ledger = MemoryLedger() if processes_here().first else None
    try:
        make_trainer(rows, steps=5, epochs=None, ledger=ledger)
    except EquidpError as error:
        return 0 if ledger is None else ledger.steps, type(error).__name__
    raise AssertionError("nothing failed")


class Rows(Dataset):
    """Rows of the toy data in an order of one's own."""

    def __init__(self, order: Tensor) -> None:
        self.order, self.data = order, toy()

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        at = self.order[index]
        return self.data.one_tensor[at], self.data.targets[at]


def hinge(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.multi_margin_loss(outputs, targets, reduction="none")


def optimised(learning_rate: float) -> dict[str, Any]:
    model = nn.Linear(5, 2)
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=learning_rate)}


def frozen(rank: int) -> nn.Module:
    """Another layer is frozen in each process."""
    model = nn.Sequential(nn.Linear(5, 5), nn.Linear(5, 5), nn.Linear(5, 2))
    model[min(rank, 1)].requires_grad_(False)
    return model


class Float(nn.Module):
    """Numbers of 32 bits."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.float()


def toy_of_16_bits() -> equidp.GroupedDataset:
    data = toy()
    return replace(data, inputs=data.one_tensor.to(torch.bfloat16))


def failing_elsewhere(where: str) -> tuple[str, str]:
    """The error where process 1 fails outside a step and goes on; and that of a Trainer made afterwards."""
    rank = processes_here().rank
    trainer = make_trainer(steps=20, epochs=None)

    class Fails(equidp.Callback):
        def after_step(self, trainer: equidp.Trainer) -> None:
            if where == "callback" and rank == 1 and trainer.steps_done == 3:
                raise OSError("the disk is gone")

    trainer.callbacks = (Fails(),)
    if where == "optimizer" and rank == 1:
        trainer.optimizer.register_step_pre_hook(_interrupted)
    try:
        if where == "skip":
            for batch in trainer.batches():
                if not (rank == 1 and trainer.steps_done == 3):
                    trainer.step(batch)
        else:
            trainer.fit()
        first = ""
    except BaseException as error:
        first = f"{type(error).__name__}: {error}"
    try:
        if rank == 1:
            make_trainer()
    except EquidpError as error:
        return first, f"{type(error).__name__}: {error}"
    return first, ""


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def disagreeing(names: list[str]) -> list[str]:
    """The error, for each name, where processes are given something else; "" where there is none."""
    rank = processes_here().rank
    different: dict[str, dict[str, Any]] = {
        "seed": {"secure": False, "seed": min(rank, 1)},
        "batch size": {"batch_size": 30 + rank},
        "data": {"train": toy(300, seed=rank)},
        "model": {"model": nn.Linear(5, 2, bias=bool(rank))},
        "examples": {"train": toy(2), "batch_size": 1, "noise_multiplier": 5.0, "delta": 0.1},
        "ledger": {"ledger": MemoryLedger()},
        "policy": {"policy": equidp.DPSGD(1.0 + rank)},
        "learning rate": optimised(0.1 + rank),
        "frozen": {"model": frozen(rank)},
        "schedule": {"scheduler": ("linear", "cosine")[min(rank, 1)]},
        "average": {"average": equidp.WeightAverage("ema", (1 + rank) / 8)},
        "loss": {"loss": (hinge, nn.CrossEntropyLoss(reduction="none"))[min(rank, 1)]},
        "order": {"train": Rows(torch.randperm(300, generator=torch.Generator().manual_seed(rank)))},
        "data of 16 bits": {"train": toy_of_16_bits(), "model": nn.Sequential(Float(), nn.Linear(5, 2))},
    }
    found = []
    for name in names:
        try:
            make_trainer(**different[name])
            found.append("")
        except EquidpError as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def attaching_elsewhere() -> str:
    """The error where process 1 gives its Trainer a ledger; "" where there is none."""
    trainer = make_trainer()
    try:
        trainer.attach(MemoryLedger() if processes_here().rank == 1 else None)
    except EquidpError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def attaching_on_first() -> tuple[int, int, bool]:
    """Steps that a ledger holds that process 0 gives later, then after `fit`; whether others are refused."""
    trainer = make_trainer(steps=4, epochs=None)
    held = MemoryLedger(((trainer.event, 2),)) if processes_here().first else None
    trainer.attach(held)
    before = trainer.steps_done
    trainer.fit()
    after = trainer.steps_done
    try:
        trainer.attach(held)
    except EquidpError:
        return before, after, True
    return before, after, False


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
    facts = trainer.fit().facts
    return facts.steps, facts.steps_left


def started_apart() -> tuple[Tensor, Tensor]:
    """The weights of a Trainer's model before and after it was made, where each process has its own."""
    torch.manual_seed(processes_here().rank)
    model = nn.Linear(5, 2)
    before = model.weight.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    equidp.Trainer(
        model,
        optimizer,
        toy(),
        policy=equidp.DPSGD(),
        batch_size=30,
        steps=2,
        noise_multiplier=1.0,
        delta=1e-4,
    )
    return before, model.weight.detach().clone()


def trained_for_two_blocks() -> dict[str, Any]:
    """A run of more steps than samples are drawn for at once, so that noise is drawn between two draws."""
    return trained(("dpsgd-f",), steps=70)
