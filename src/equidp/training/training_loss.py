"""Mean training loss with noise, for dashboards: released after each epoch, at a privacy cost known before
training.

The loss of a sample follows from examples, so no step releases it. A release reads all training examples
once more, under the weights so far:

1. Each example's loss is clipped to a public bound B, and their sum is released as a Gaussian mechanism of
   noise multiplier sigma, at sample rate 1: one example moves it by at most B.
2. It is divided by n, which is public, and is off by sigma B / n in one standard deviation. All that is done
   with the value, such as stopping early, is post-processing.
3. Each release is in the ledger before an example is read for it (`Ledger.pay`). How many there are, and with
   which noise, follows from the plan: `equidp.accounting.planned.loss_release`.

One more query of a step's Poisson sample, as methods have statistics, would cost about as much for the same
noise, and add the error of sampling. Every step would be charged, and the kernel would have to bound and
release losses; this takes nothing of the kernel but its noisy sum and its payments. The work is a forward
pass over the data for each epoch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import final

import torch
from torch import Tensor, nn

from equidp.accounting.planned import Schedule
from equidp.engines.measurement import Examples
from equidp.engines.model import call_model, device_of
from equidp.engines.units import reader_of
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import count_in, in_parts, moved_to, tensors
from equidp.kernel.ledger import Ledger, ReleaseEvent
from equidp.kernel.loop import Batch
from equidp.kernel.noise import Randomness, to_double
from equidp.kernel.noisy_sum import private_sum
from equidp.kernel.processes import ALONE, Processes

Load = Callable[[Iterable[Tensor]], Iterator[Batch]]
"""Function from the places of examples, [batch], to their batches, as of `assemble`."""

LOSS_BOUND = 5.0
"""Default bound of a loss: that of a class that the model gives a probability of 0.7%."""


def mean_training_loss(
    model: nn.Module,
    loss: LossFunction,
    batches: Iterable[Batch],
    *,
    bound: float,
    noise_multiplier: float,
    num_examples: float,
    randomness: Randomness,
    processes: Processes = ALONE,
    together: bool = True,
) -> float:
    """Return the mean of the clipped losses of examples, with noise; the same in all processes.

    Formal guarantee: for training data that differ in one example, added or removed, this is a Gaussian
    mechanism of noise multiplier `noise_multiplier`, without sampling: an example adds its own loss, clipped
    to [-bound, bound], to the sum (`kernel.noisy_sum.private_sum`), and the divisor is public. That a loss
    follows from its example alone is what the trial of the model and the loss looks at (`engines.trial`),
    and what `together=False` sees to: no operation of the model has another example in reach. They run here
    as in a step, in the mode that the model is in, with random numbers of its own (dropout), and gradients
    can be taken of an example that is alone: no trial has shown that model and loss take none.

    | case | outcome |
    | --- | --- |
    | a loss above the bound, or infinite or NaN | counts as the bound |
    | a loss below minus the bound | counts as that |
    | model or loss fails on an example | it counts as the bound; the others of its batch are taken alone |
    | an example of several rows, such as a person | its loss is the sum of theirs, and clipped as one |
    | no example | noise alone |
    | groups with rates or bounds of their own | all examples count alike, and every group pays the same |
    | lack of memory | the error is raised; the release stays charged |
    | noise_multiplier = 0 | the exact mean: of a training without privacy alone |

    Args:
        model, loss: as trained.
        batches: of all examples, each once.
        bound: B > 0, public.
        noise_multiplier: sigma, as paid for.
        num_examples: n, public.
        randomness: where noise and the model's own random numbers come from.
        processes: that have a shard of the examples each.
        together: whether the model is given a batch; False: each example alone, as a batch of one.

    >>> from equidp.kernel.noise import SeededRandomness
    >>> x = torch.zeros(4, 2)
    >>> batch = Batch(x, torch.tensor([0, 1, 1, 0]), torch.zeros(4, dtype=torch.int64), torch.arange(4))
    >>> cross_entropy = nn.CrossEntropyLoss(reduction="none")
    >>> settings = {"noise_multiplier": 0.0, "num_examples": 4, "randomness": SeededRandomness(0)}
    >>> round(mean_training_loss(nn.Identity(), cross_entropy, [batch], bound=5.0, **settings), 4)
    0.6931
    """
    reader, device = reader_of(model, loss), device_of(model)
    losses = [torch.zeros(0, dtype=torch.float64)]
    with randomness.for_model(device), torch.set_grad_enabled(not together):
        for batch in batches:
            if len(batch.indices):
                examples = moved_to((batch.inputs, batch.targets), device)
                each = _losses_of(reader, loss, examples, together)
                losses.append(each.nan_to_num(nan=bound, posinf=bound, neginf=-bound).cpu())
    total = private_sum(
        torch.cat(losses).unsqueeze(1),
        bound=bound,
        noise_multiplier=noise_multiplier,
        randomness=randomness,
        processes=processes,
    )
    return float(total) / num_examples


def _losses_of(model: nn.Module, loss: LossFunction, examples: Examples, together: bool) -> Tensor:
    """Losses of examples, [batch], in float64; NaN where model or loss fails on an example alone."""
    inputs, targets = examples
    count = count_in(targets)
    if together or count == 1:
        try:
            return to_double(loss(call_model(model, inputs), targets).detach().reshape(count))
        except torch.OutOfMemoryError:
            raise
        except Exception:
            if count == 1:
                return to_double(torch.full((1,), math.nan, device=tensors(targets)[0].device))
    return torch.cat([_losses_of(model, loss, each, together) for each in in_parts(examples, 1)])


@final
class TrainingLoss:
    """Mean training loss of a run: when it is released, at which privacy cost, and what was released so far.

    Args:
        event: of one release.
        times: number of releases in the whole plan.
        bound: of each example's loss.
        schedule: of the plan, whose epochs end with a release each.

    Attributes:
        by_step: step -> the loss that was released after it.
    """

    def __init__(self, event: ReleaseEvent, times: int, bound: float, schedule: Schedule) -> None:
        self.event, self.times, self.bound, self.schedule = event, times, bound, schedule
        self.by_step: dict[int, float] = {}

    def count_left(self, steps_done: int) -> int:
        """Return the number of releases after a step."""
        return self.schedule.count_epochs(steps_done)

    def set_aside(self, ledger: Ledger, steps_done: int) -> None:
        """Announce the releases that are left; a budget sets them aside.

        Raises:
            BudgetError: they do not fit.
        """
        ledger.expect(self.event, self.count_left(steps_done))

    def release(
        self,
        step: int,
        model: nn.Module,
        loss: LossFunction,
        load: Load,
        *,
        private: bool,
        num_examples: int,
        mean_over: float,
        at_a_time: int,
        together: bool,
        ledger: Ledger,
        randomness: Randomness,
        processes: Processes,
    ) -> None:
        """Pay for the release after a step, and draw it; called in each process.

        Args:
            step: number of private steps so far.
            model, loss: as trained.
            load: loads examples.
            private: False for a training without privacy, whose loss is exact.
            num_examples: of the data that `load` reads.
            mean_over: n, public.
            at_a_time: the most examples that are loaded at a time.
            together: whether these are in the model at a time, or each alone.
            ledger: pays, in the first process.
            randomness, processes: of the run.

        Raises:
            BudgetError: the budget cannot pay; nothing is read.
        """

        def pay() -> None:
            ledger.pay(self.event.name, self.event.noise_multiplier).draw()

        if private:
            processes.run_on_first(pay)
        shard = processes.shard(num_examples)
        # As many parts in each process, so that what they draw from a shared stream stays in step.
        parts = math.ceil(math.ceil(num_examples / processes.count) / at_a_time)
        with processes.leave_group_on_failure():
            self.by_step[step] = mean_training_loss(
                model,
                loss,
                load(torch.arange(shard.start, shard.stop).tensor_split(parts)),
                bound=self.bound,
                noise_multiplier=self.event.noise_multiplier if private else 0.0,
                num_examples=mean_over,
                randomness=randomness,
                processes=processes,
                together=together,
            )
