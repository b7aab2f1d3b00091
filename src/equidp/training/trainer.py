"""Trainer: wires sampler, engine, policy, mechanism and accounting together."""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from equidp._validate import check_number, unknown_name
from equidp.accounting import EpsilonMeter, calibrate_noise, check_delta
from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.schedule import checked_schedule
from equidp.data.batches import batches, loaded_batches
from equidp.data.dataset import GroupedDataset
from equidp.engines import check_engine, check_model, make_engine
from equidp.errors import SettingError
from equidp.kernel.engine import GradientEngine, LossFunction
from equidp.kernel.ledger import Ledger, MemoryLedger, StepEvent
from equidp.kernel.loop import Batch
from equidp.kernel.noise import Randomness, SeededRandomness, SystemRandomness
from equidp.kernel.policy import Policy
from equidp.kernel.sampling import PoissonSampler
from equidp.kernel.step import PrivateStep, ShareLimits
from equidp.policies.sgd import SGD
from equidp.training.checks import check_groups, check_kinds, check_optimizer, check_scheduler
from equidp.training.run import Run, copied

_TRIED = 16
BEYOND_BUDGET = ("refuse", "stop")


class Trainer:
    """Trains a model privately, one Poisson sample and one private step at a time.

    Args:
        model: any module whose outputs for one example do not depend on others; trained in place.
        optimizer: a torch optimizer over the model's parameters; it sees private gradients only.
        train: the training data: a `GroupedDataset`, or a map-style torch Dataset of (input, target, group).
        policy: the method, such as `equidp.DPSGD(clipping_bound=1.0)`.
        batch_size: b, the expected size of a sample; the sample rate is b / n.
        epochs: passes over the data; steps = floor(epochs * n / b). Give this or `steps`.
        steps: T, the number of private steps.
        target_epsilon: of this plan's steps; the noise multiplier is calibrated to it. Give this or `noise_multiplier`.
        noise_multiplier: sigma; 0 trains without privacy.
        delta: the whole run's delta; below 1 / n.
        loss: (outputs, targets) -> losses [batch], one per example.
        engine: name of the gradient engine.
        accountant: name of the accountant, see `equidp.accounting.ACCOUNTANTS`.
        secure: draw samples and noise from the operating system's entropy. False needs a `seed` and is for research alone.
        seed: of the sampling and the noise, where `secure` is False.
        scheduler: a torch learning-rate scheduler, stepped after each step.
        callbacks: watch the run.
        workers: processes that load a dataset that is not in memory.
        physical_batch_size: the most examples that are in the engine at a time, whatever `batch_size` is; bounds memory.
        ledger: where steps are recorded, such as a `LedgerFile`; steps of this plan that it holds already are not taken again.
        budget: what all runs on this data together may spend.
        beyond_budget: "refuse" a plan that does not fit into the budget; or "stop" at the last step that fits.

    Raises:
        SettingError, DataError, ModelError, BudgetError: before any budget is spent.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        train: GroupedDataset | Dataset[Any],
        *,
        policy: Policy,
        batch_size: int,
        delta: float,
        epochs: float | None = None,
        steps: int | None = None,
        target_epsilon: float | None = None,
        noise_multiplier: float | None = None,
        loss: LossFunction | None = None,
        engine: str = "ghost",
        accountant: str = "pld",
        secure: bool = True,
        seed: int | None = None,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        callbacks: Sequence[Callback] = (),
        workers: int = 0,
        physical_batch_size: int | None = None,
        ledger: Ledger | None = None,
        budget: PrivacyBudget | None = None,
        beyond_budget: str = "refuse",
    ) -> None:
        check_kinds(model, train, policy, ledger, budget)
        if not (isinstance(callbacks, Sequence) and all(isinstance(each, Callback) for each in callbacks)):
            raise SettingError(
                f"callbacks={callbacks!r}; expected a list of equidp.Callback objects, such as [equidp.ProgressBar()]."
            )
        check_groups(policy, train)
        self.num_examples = len(train)  # type: ignore[arg-type]
        self.model, self.optimizer, self.train = model, optimizer, train
        self.policy = policy = copy.deepcopy(
            policy
        )  # what it learns here is of this data, and is paid for here
        self.scheduler, self.callbacks, self.workers = scheduler, tuple(callbacks), workers
        self.sample_rate, self.steps = checked_schedule(
            self.num_examples, batch_size, epochs=epochs, steps=steps
        )
        self.planned_steps = self.steps  # whatever a budget leaves of them
        self.expected_batch_size = float(batch_size)
        self.delta, self.accountant = delta, accountant
        check_delta(delta, self.num_examples)
        self.noise_multiplier = self._noise_multiplier(noise_multiplier, target_epsilon)
        policy.prepare(noise_multiplier=self.noise_multiplier, expected_batch_size=self.expected_batch_size)
        self.event = StepEvent(self.sample_rate, float(self.noise_multiplier), policy.statistics_noise)
        self.ledger = MemoryLedger() if ledger is None else ledger
        if budget is not None:
            self._fit_into(budget, beyond_budget)
        besides = tuple(entry for entry in self.ledger.entries if entry[0] != self.event)
        self.epsilon_so_far = EpsilonMeter(self.event, self.steps, delta, accountant, besides)
        self.randomness = _randomness(secure, seed, self.ledger.steps)
        self.loss = nn.CrossEntropyLoss(reduction="none") if loss is None else loss
        self._parameters = list(model.parameters())
        self.engine = self._checked_engine(engine)
        check_optimizer(optimizer, model)
        check_scheduler(scheduler, optimizer, self.steps - self.steps_done)
        self._stopped: BaseException | None = None
        self._sample: torch.Tensor | None = None
        self.begun = False  # whether the model took steps of this plan, here or before it was restored
        self._trained = [parameter.requires_grad for parameter in self._parameters]
        self._private_step = PrivateStep(
            self.engine,
            policy,
            self._parameters,
            event=self.event,
            expected_batch_size=self.expected_batch_size,
            ledger=self.ledger,
            randomness=self.randomness,
            physical_batch_size=physical_batch_size,
        )
        groups = train.num_groups if isinstance(train, GroupedDataset) else policy.num_groups or 1
        self._private_step.rehearse(torch.arange(groups, device=self._parameters[0].device))

    def _noise_multiplier(self, noise_multiplier: float | None, target_epsilon: float | None) -> float:
        if isinstance(self.policy, SGD):
            if noise_multiplier or target_epsilon is not None:
                raise SettingError(
                    "plain SGD takes no noise and has no epsilon; give noise_multiplier=0, or a private policy."
                )
            return 0.0
        if (noise_multiplier is None) == (target_epsilon is None):
            raise SettingError(
                f"noise_multiplier={noise_multiplier} and target_epsilon={target_epsilon}; expected exactly one of the two."
            )
        if noise_multiplier is not None:
            check_number("[0, inf)", noise_multiplier=noise_multiplier)
            return float(noise_multiplier)
        assert target_epsilon is not None
        return calibrate_noise(
            target_epsilon,
            self.delta,
            self.sample_rate,
            self.steps,
            self.policy.statistics_ratio,
            self.accountant,
        )

    def _fit_into(self, budget: PrivacyBudget, beyond: str) -> None:
        if beyond not in BEYOND_BUDGET:
            raise unknown_name("beyond_budget", beyond, BEYOND_BUDGET)
        left = max(0, self.steps - self.steps_done)
        fitting = budget.steps_that_fit(self.event, left) if beyond == "stop" else 0
        if fitting:
            self.steps = self.steps_done + fitting
        elif left:
            budget.check(self.event, left)
        self.ledger = budget.ledger(self.ledger)

    def _checked_engine(self, name: str) -> GradientEngine:
        """The engine, after model, loss and engine were tried on a few examples."""
        inputs, targets, *_ = self._on_device(next(self._load([_spread(self.num_examples)])))
        class_names = self.train.class_names if isinstance(self.train, GroupedDataset) else ()
        check_model(self.model, self.loss, inputs, targets, class_names)
        engine = make_engine(name, self.model, self.loss)
        check_engine(engine, self.model, self.loss, inputs, targets)
        return engine

    @property
    def steps_done(self) -> int:
        """Private steps spent; the ledger may hold releases besides."""
        return sum(count for event, count in self.ledger.entries if event == self.event)

    @property
    def epoch(self) -> float:
        """Expected number of times that an example was drawn so far."""
        return self.steps_done * self.sample_rate

    def batches(self) -> Iterator[Batch]:
        """Poisson samples for the steps that are left; give each of them to `step` before the next is drawn.

        Raises:
            BudgetError: they do not fit into the budget any more.
        """
        left = max(0, self.steps - self.steps_done)
        self.ledger.expect(self.event, left)
        if not left:
            return iter(())
        sampler = PoissonSampler(self.num_examples, self.sample_rate, left, self.randomness)
        return self._paid(self._load(sampler))

    def _paid(self, loaded: Iterator[Batch]) -> Iterator[Batch]:
        """A sample that cannot be loaded is a step spent: that it failed tells that some example was drawn."""
        while True:
            try:
                batch = next(loaded)
            except StopIteration:
                return
            except KeyboardInterrupt:
                raise
            except BaseException:
                self.ledger.spend(self.event)
                raise
            self._sample = batch.indices
            yield batch

    def _load(self, samples: Any) -> Iterator[Batch]:
        if isinstance(self.train, GroupedDataset):
            return batches(self.train, samples)
        return loaded_batches(self.train, samples, num_groups=self.policy.num_groups, workers=self.workers)

    def _on_device(self, batch: Batch) -> Batch:
        device = next((parameter.device for parameter in self._parameters), batch.inputs.device)
        if all(tensor.device == device for tensor in batch):
            return batch
        return Batch(*(tensor.to(device, non_blocking=True) for tensor in batch))

    def step(self, batch: Batch) -> None:
        """One private step: spends budget, puts the private gradient into p.grad and lets the optimizer take it.

        Args:
            batch: what `batches` gave last, once. Its inputs may be changed example by example, as by augmentation
                (`batch._replace(inputs=...)`).

        Raises:
            SettingError: another batch, no steps left, or other parameters than the Trainer was made with; nothing is spent.
        """
        if self.steps_done >= self.steps:
            raise SettingError(
                f"all {self.steps} planned steps are spent; make a new Trainer to plan, and account for, more."
            )
        if [parameter.requires_grad for parameter in self._parameters] != self._trained:
            raise SettingError(
                "parameters were frozen or unfrozen after the Trainer was made, and the noise covers those that were trained then; "
                "make a new Trainer."
            )
        self._check_sample(batch)
        now = list(self.model.parameters())
        if len(now) != len(self._parameters) or not all(map(operator.is_, now, self._parameters)):
            raise SettingError(
                "parameters were added, taken away or replaced after the Trainer was made, and the noise covers those that were "
                "there then; make a new Trainer."
            )
        self._sample, self.begun = None, True
        try:
            batch = self._on_device(batch)
        except Exception:  # for want of memory, which tells how large the sample is
            self.ledger.spend(self.event)
            raise
        self._private_step(*batch)
        self._drop_other_gradients()
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        for callback in self.callbacks:
            callback.after_step(self)
        done = self.steps_done
        before, after = (math.floor(steps * self.sample_rate + 1e-9) for steps in (done - 1, done))
        if after > before or done == self.steps:
            for callback in self.callbacks:
                callback.after_epoch(self)

    def _check_sample(self, batch: Batch) -> None:
        """Epsilon holds for Poisson samples, each used once, with each example in it once."""
        drawn = self._sample
        if drawn is None or not (
            batch.indices is drawn or torch.equal(batch.indices.to(drawn.device), drawn)
        ):
            raise SettingError(
                "step() was given a batch that is not the last of trainer.batches(), or was taken already: epsilon holds for "
                "Poisson samples, each used once. Write `for batch in trainer.batches(): trainer.step(batch)`."
            )
        if any(len(part) != len(drawn) for part in batch):
            raise SettingError(
                "step() was given inputs, targets or groups of another number of examples than was drawn: each may be in a sample "
                "once. Average augmentations of an example inside the model or the loss."
            )

    def _drop_other_gradients(self) -> None:
        """Whatever else the optimizer holds, such as a frozen layer, may have gradients from before, without noise."""
        private = {id(parameter) for parameter in self._private_step.parameters}
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in private:
                    parameter.grad = None

    def stop(self, reason: BaseException) -> None:
        """Has `fit` raise `reason` once the step under way is complete."""
        self._stopped = reason

    def fit(self) -> Run:
        """Takes the steps that are left. Interrupted, it can be called again: what was spent stays spent."""
        if not self.begun and self.steps_done >= self.steps:
            raise SettingError(
                f"the ledger holds all {self.steps} planned steps, and this Trainer took none of them; restore the model from the "
                "run's checkpoints (Checkpoints.restore), or give a ledger of its own."
            )
        was_training = self.model.training
        self.model.train()
        self._stopped = None
        begun: list[Callback] = []
        try:
            for callback in self.callbacks:
                callback.before_training(self)
                begun.append(callback)
            for batch in self.batches():
                if not self.model.training:  # a callback looked at it in evaluation mode
                    self.model.train()
                self.step(batch)
                if self._stopped is not None:
                    raise self._stopped
        finally:
            self.optimizer.zero_grad(set_to_none=True)
            self.model.train(was_training)
            try:
                self.ledger.settle()
            finally:
                for callback in begun:
                    callback.after_training(self)
        return self.run()

    def limit_shares(self, limits: ShareLimits | None) -> None:
        """Lets `limits` watch each batch's norms, and bound what share of the sensitivity each example may use; None: nobody."""
        taken = self.share_limits
        if limits is not None and taken is not None and limits != taken:
            raise SettingError("two callbacks would limit examples' shares; give the Trainer one of them.")
        self._private_step.share_limits = limits

    @property
    def share_limits(self) -> ShareLimits | None:
        """What `limit_shares` was given last."""
        return self._private_step.share_limits

    def run(self) -> Run:
        """What has been trained and spent so far; with steps left, of a copy of the model, which further ones do not change.

        Raises:
            ModelError: the model cannot be copied.
        """
        model = self.model if self.steps_done >= self.steps else copied(self.model)
        return Run(model, self.ledger.entries, self.delta, self.loss, self.accountant, settings_of(self))


def _spread(num_examples: int) -> torch.Tensor:
    """Up to 16 examples from all over the data, in no order, to try a model on: neighbours in a file are often alike."""
    rows = torch.linspace(0, num_examples - 1, min(_TRIED, num_examples)).long()
    return rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]


def _randomness(secure: bool, seed: int | None, spent: int) -> Randomness:
    """The operating system's, or a stream of its own for each seed and number of steps spent before: noise never repeats."""
    if secure:
        if seed is not None:
            raise SettingError(
                f"seed={seed} with secure=True; noise that a seed determines protects nobody. "
                "For research, say secure=False; for release, leave the seed out."
            )
        return SystemRandomness()
    if seed is None:
        raise SettingError("secure=False without a seed; give seed=..., or leave secure=True.")
    return SeededRandomness(seed, *([spent] if spent else []))


class Callback:
    """Does nothing; override what you need."""

    def before_training(self, trainer: Trainer) -> None:
        """Before the first step of a `fit`."""

    def after_step(self, trainer: Trainer) -> None:
        """After the optimizer took a private step."""

    def after_epoch(self, trainer: Trainer) -> None:
        """After each n / b steps, and after the last step."""

    def after_training(self, trainer: Trainer) -> None:
        """When `fit` ends, however it ends."""


def settings_of(trainer: Trainer) -> dict[str, Any]:
    """How a trainer trains, in a reader's words."""
    policy = {
        name: value
        for name, value in vars(trainer.policy).items()
        if isinstance(value, int | float)
        and name not in (*trainer.policy.state_names, "expected_batch_size")
        and name[0] != "_"
    }
    seeded = isinstance(trainer.randomness, SeededRandomness)
    train = trainer.train
    settings: dict[str, Any] = {
        "method": type(trainer.policy).__name__,
        **policy,
        "training examples": trainer.num_examples,
        "expected batch size": trainer.expected_batch_size,
        "planned steps": trainer.steps,
        "steps of the whole plan": trainer.planned_steps,
        "optimizer": type(trainer.optimizer).__name__,
        "learning rate": trainer.optimizer.param_groups[0]["lr"],
        "gradient engine": type(trainer.engine).__name__,
        "randomness": "a seed: for research alone" if seeded else "the operating system",
    }
    if isinstance(train, GroupedDataset):
        settings |= {"groups": train.group_names, "classes": train.class_names}
    return settings
