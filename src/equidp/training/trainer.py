"""Trainer: wires sampler, engine, policy, private step and accounting together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from equidp.accounting.budget import PrivacyBudget
from equidp.accounting.groups import ByGroup, GroupSettings
from equidp.accounting.meter import EpsilonMeter, check_delta
from equidp.accounting.planned import Schedule, checked_schedule
from equidp.data.collation import Collate, Collation
from equidp.data.dataset import GroupedDataset
from equidp.data.views import Views
from equidp.distributed.group import processes_here
from equidp.errors import BudgetError, SettingError
from equidp.kernel.engine import Engine, LossFunction
from equidp.kernel.epsilon import checked_accountant
from equidp.kernel.inputs import Inputs
from equidp.kernel.ledger import Ledger, StepEvent
from equidp.kernel.loop import Batch, PrivateLoop
from equidp.kernel.noise import Randomness
from equidp.kernel.policy import Policy
from equidp.kernel.step import PrivateStep, ShareLimits
from equidp.training import agreement, assemble, averages, optimizers
from equidp.training.initial_weights import copy_model, mark_trained, start_of
from equidp.training.plan import ResolvedPlan
from equidp.training.run import Run, RunFacts


class Callback:
    """Watches a run. Does nothing; override what you need.

    `Trainer.batches` calls `before_sample`, and `Trainer.step` calls `after_step` and `after_epoch`, in `fit`
    and in a loop of your own. `fit` calls `before_training` and `after_training` too, and so does
    `with trainer.open_loop():` around a loop of your own: what a callback opens, such as handlers of signals,
    must be closed. A callback ends training by `trainer.stop()`.

    Example:
        >>> import equidp
        >>> class Count(equidp.Callback):
        ...     steps = 0
        ...     def after_step(self, trainer):
        ...         self.steps += 1
    """

    def before_training(self, trainer: Trainer) -> None:
        """Called before the first step of a `fit` or of an `open_loop`."""

    def before_sample(self, trainer: Trainer) -> None:
        """Called before a sample is drawn and paid for: raise here where its step could not be watched."""

    def after_step(self, trainer: Trainer) -> None:
        """Called after the optimizer took a private step."""

    def after_epoch(self, trainer: Trainer) -> None:
        """Called after each n / b steps, and after the last step of the plan."""

    def after_training(self, trainer: Trainer) -> None:
        """Called when `fit` or `open_loop` ends, also by an error, and where another callback fails here."""


@dataclass(frozen=True)
class _StepArguments:
    """Arguments of a Trainer that `attach` needs again, when it makes the private step again."""

    secure: bool
    seed: int | None
    randomness: Randomness | None
    workers: int
    scheduler: torch.optim.lr_scheduler.LRScheduler | str | None
    average: averages.WeightAverage
    augment: Callable[[Inputs], Inputs] | None


class Trainer:
    """Trains a model privately, one Poisson sample and one private step at a time.

    Args:
        model: any module whose outputs for one example do not depend on others; trained in place.
        optimizer: a torch optimizer over the model's parameters; it sees private gradients only.
        train: a `GroupedDataset`, or a map-style torch Dataset of (input, target, group) or (input, target);
            with `collate`, of anything that it takes.
            A person with rows in groups of several rates is trained on in that of the largest.
        policy: the method, such as `equidp.DPSGD(clipping_bound=1.0)`.
        batch_size: b, the expected size of a sample; the sample rate is b / n.
        epochs, steps: passes over the data, or T = floor(epochs * n / b) private steps; one of the two.
        target_epsilon, noise_multiplier: what the noise is calibrated to, or sigma (0: no privacy); one.
        delta: the whole run's delta; below 1 / n.
        num_groups: K, public; for a torch Dataset with a policy that needs groups.
        loss: (outputs, targets) -> losses [batch], one per example; of a mapping it gets the `logits`.
        engine: a name in `equidp.engines.ENGINES`, which is tried on made-up rows; or an engine of this model
            and loss as an object, which is used without a trial.
        accountant: a name in `equidp.accounting.ACCOUNTANTS`.
        secure, seed: draw samples and noise from the operating system; or, for research alone, from a seed.
        randomness: draws samples and noise in place of the operating system; `secure=False` or a seed
            beside it is refused.
        sample_rate: q, where n is not public; None: b / n.
        rates: public multiples of q by name of a group, `{"rare": 2.0, "*": 1.0}`; "*": all other groups;
            left out: 1. Sums are divided by b all the same: sizes of groups are private.
        bound_shares: public shares of the bound, in [1/16, 1], in the same form: an example of the group adds
            at most this share of the sensitivity to a gradient, and of the norm to statistics. With rates or
            shares, each group has an epsilon of its own, the run has the largest (`Run.epsilon_by_group`).
        epsilon_by_group: budgets in the same form, `{"rare": 1.0, "*": 3.0}`; left out: `target_epsilon`,
            which is the largest budget where it is not given. Rates or shares follow from them, at most 1.
        protect_by: "sampling": rates follow from the budgets; "scaling": shares of the bound do, for rates
            that are given, and without budgets from one epsilon for all.
        scheduler: of the learning rate, stepped after each step: a torch scheduler, or a name in `SCHEDULES`.
        average: of the weights, which the run releases in place of the last ones.
        callbacks: watch the run.
        views, workers: augmentation of images; processes that load a dataset that is not in memory.
        physical_batch_size: the most examples in the engine at a time; bounds memory. None: 128 for large
            samples of images on a CPU, unless the policy releases statistics; else the whole sample.
        examples: (inputs, targets) of a few public rows, in the form of the data's, that the model is tried
            on before training: for models that demand more of a row than made-up ones have, such as an end
            mark. With `collate`, a list of such rows, as the dataset gives its own. Never rows of the
            training data.
        augment: inputs of one example, without a dimension for the batch -> such inputs, for each example of
            each sample: a crop, a flip, noise. It may draw random numbers, and cannot mix examples.
        collate: list of rows, as a torch Dataset gives them -> one batch (inputs, targets) or (inputs,
            targets, groups), tensors [rows, ...]. It may pad rows to the longest. Each row is tried before
            training: it must give the row what it gives it alone, and the model must read no padding.
        ledger: where steps are recorded, such as a `LedgerFile`. Steps that it holds are not taken again.
        budget: what all runs on this data together may spend; charged at once what the ledger holds already.
        beyond_budget: "refuse" a plan that does not fit the budget, or "stop" at the last step that fits.

    Attributes:
        plan: that `equidp.training.build.build` made it from; None: it was made by hand.
        steps: T, as many as the budget holds; `planned_steps`: T before a budget cut it short.
        event: what each step costs, with `sample_rate` q (the largest of the groups' rates) and
            `noise_multiplier` sigma.
        ledger, randomness, engine, loss, scheduler: as given, or what the Trainer made in their place.
        num_examples, num_groups, expected_batch_size: n, K (None: no groups are needed) and b.
        averaging: the average of the weights so far.
        start: where the initial weights come from.
        steps_at_start: steps that were done before this Trainer, by its ledger.
        processes: that train together; usually one.
        collation: `collate`, and the form of its batches; None: rows are tensors already.

    Raises:
        SettingError, DataError, ModelError, PolicyError, BudgetError: before any budget is spent.

    Example:
        >>> import torch, equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, data, policy=equidp.DPSGD(), batch_size=16,
        ...                          steps=4, noise_multiplier=2.0, delta=1e-3)
        >>> trainer.fit().facts.steps
        4
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
        num_groups: int | None = None,
        loss: LossFunction | None = None,
        engine: str | Engine = "ghost",
        accountant: str = "pld",
        secure: bool = True,
        seed: int | None = None,
        scheduler: torch.optim.lr_scheduler.LRScheduler | str | None = None,
        average: averages.WeightAverage | None = None,
        callbacks: Sequence[Callback] = (),
        views: Views | None = None,
        workers: int = 0,
        physical_batch_size: int | None = None,
        ledger: Ledger | None = None,
        budget: PrivacyBudget | None = None,
        beyond_budget: str = "refuse",
        examples: tuple[Inputs, Inputs] | Sequence[Any] | None = None,
        augment: Callable[[Inputs], Inputs] | None = None,
        collate: Collate | None = None,
        randomness: Randomness | None = None,
        sample_rate: float | None = None,
        rates: ByGroup = None,
        bound_shares: ByGroup = None,
        epsilon_by_group: ByGroup = None,
        protect_by: str = "sampling",
    ) -> None:
        assemble.check_kinds(model, train, policy, ledger, budget, callbacks)
        assemble.check_loading(workers, physical_batch_size, views, randomness)
        assemble.warn_of_repeats(train)
        num_groups = assemble.checked_groups(policy, train, num_groups)
        self.model, self.optimizer, self.train, self.policy = model, optimizer, train, policy
        self.plan: ResolvedPlan | None = None
        self.num_examples, self.num_groups = len(train), num_groups  # type: ignore[arg-type]
        self.callbacks, average = tuple(callbacks), averages.average_of(average)
        self.views = views = Views() if views is None else views
        planned = checked_schedule(
            self.num_examples, batch_size, epochs=epochs, steps=steps, sample_rate=sample_rate
        )
        self.sample_rate, self.planned_steps = planned
        self.delta, self.accountant = delta, checked_accountant(accountant)
        check_delta(delta, self.num_examples)
        noise = noise_multiplier, target_epsilon
        groups = GroupSettings.of(rates, bound_shares, epsilon_by_group, protect_by)
        names = assemble.checked_group_settings(train, groups)
        self.event: StepEvent = assemble.chosen_event(
            policy, *noise, delta, planned, self.accountant, num_groups, groups, names
        )
        self.train = train = assemble.in_groups_of_event(train, self.event)
        self.noise_multiplier = self.event.noise_multiplier
        self.expected_batch_size = float(batch_size)
        self.processes = processes_here()
        assemble.check_randomness(randomness, secure, seed)
        self._arguments = _StepArguments(secure, seed, randomness, workers, scheduler, average, augment)
        with self.processes.leave_group_on_failure():  # from here on, processes wait for each other
            agreement.check_ledger_holder(self.processes, ledger, budget)
            settings = {
                "event": self.event,
                "steps": self.planned_steps,
                "policy": policy,
                "engine": engine if isinstance(engine, str) else type(engine).__name__,
                "seed": (secure, seed),
                "randomness": None if randomness is None else type(randomness).__name__,
                "delta": delta,
                "groups": num_groups,
                "workers": workers,
                "average": average,
                "views": views,
                "augment": agreement.name_of(augment),
                "collate": agreement.name_of(collate),
            }
            agreement.synchronize_run(self.processes, model, optimizer, scheduler, loss, train, settings)
            self.loss = assemble.chosen_loss(loss, train, views)
            ledger, steps = self._open_ledger(ledger, budget, beyond_budget)
            randomness = self._open_randomness(ledger)
            with randomness.for_model(*(parameter.device for parameter in model.parameters())):
                self.collation: Collation | None = assemble.tried_collator(
                    collate, train, augment, workers, randomness, num_groups
                )
                load = self._make_loader(randomness)
                example = assemble.load_example(
                    train,
                    load,
                    batch_size,
                    self.processes.shard(self.num_examples),
                    augmented=augment is not None,
                    collation=self.collation,
                )
            self._physical_batch_size = assemble.chosen_physical_batch_size(
                physical_batch_size, train, model, self.event
            )
            self.engine = assemble.chosen_engine(
                engine,
                policy,
                model,
                self.loss,
                example,
                train,
                examples,
                batch_size,
                self._physical_batch_size,
                self.collation,
            )
            optimizers.check_optimizer(optimizer, model)
            self.scheduler: torch.optim.lr_scheduler.LRScheduler | None = None
            self._make_step(ledger, steps, randomness, load)
            assemble.try_objective(self.engine, policy, self._step.state)

    def attach(
        self,
        ledger: Ledger | None,
        budget: PrivacyBudget | None = None,
        *,
        beyond_budget: str = "refuse",
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """Put another ledger, budget and callbacks in the place of those that the Trainer was made with.

        So a Trainer that was made to check a run, with a ledger in memory, trains it. Each process calls it.
        The Trainer is as before where it raises.

        Raises:
            SettingError: the Trainer has drawn a sample or taken a step, or the ledger lacks what the one in
                its place holds; or another process than the first has a ledger or budget.
            BudgetError: the plan does not fit into the budget.
        """
        assemble.check_kinds(self.model, self.train, self.policy, ledger, budget, callbacks)
        with self.processes.leave_group_on_failure():
            agreement.check_ledger_holder(self.processes, ledger, budget)
            ledger, steps = self._open_ledger(ledger, budget, beyond_budget, replaces=True)
            replaced = self._loop
            randomness = self._open_randomness(ledger)
            self._make_step(ledger, steps, randomness, self._make_loader(randomness))
            replaced.close()
        self.callbacks = tuple(callbacks)

    def _open_ledger(
        self,
        ledger: Ledger | None,
        budget: PrivacyBudget | None,
        beyond_budget: str,
        *,
        replaces: bool = False,
    ) -> tuple[Ledger, int]:
        """Open the ledger, which may replace the present one; return it and the number of steps."""

        def open_ledger() -> tuple[Ledger, int]:
            if replaces:
                self._check_replaces(ledger)
            return assemble.open_ledger(
                ledger, budget, self.train, self.event, self.planned_steps, beyond_budget
            )

        return agreement.share_ledger(self.processes, open_ledger)

    def _check_replaces(self, ledger: Ledger | None) -> None:
        """Refuse a ledger in the place of the present one if epsilon would count less than was spent."""
        spent = self.steps_done - self.steps_at_start
        if self._loop.has_stepped or spent:
            raise SettingError(
                f"the trainer has begun with a ledger of its own ({spent} steps charged since it was "
                "made); expected one that took no step and drew no sample. Make another Trainer.",
                field="ledger",
            )
        for event, count in self.ledger.entries:
            held = 0 if ledger is None else ledger.count_of(event)
            if held < count:
                raise SettingError(
                    f"the ledger holds {held} of {event}, and the present one {count}; expected no less. "
                    "Give a ledger that holds them too, or make another Trainer.",
                    field="ledger",
                )

    def _open_randomness(self, ledger: Ledger) -> Randomness:
        """Open the randomness of the steps that a ledger has left."""
        given = self._arguments
        return given.randomness or assemble.chosen_randomness(given.secure, given.seed, ledger.steps)

    def _make_loader(self, randomness: Randomness) -> assemble.Load:
        return assemble.loader(
            self.train,
            self.num_groups,
            self._arguments.workers,
            self.model,
            self.views,
            randomness,
            self._arguments.augment,
            self.collation,
        )

    def _make_step(self, ledger: Ledger, steps: int, randomness: Randomness, load: assemble.Load) -> None:
        """Make the private step, its loop and what follows the number of steps; spend nothing.

        What can fail comes before what changes the Trainer, so that a failed `attach` changes nothing.
        """
        model, optimizer, groups = self.model, self.optimizer, self.num_groups or 1
        done, scheduler = ledger.count_of(self.event), self._arguments.scheduler
        if not isinstance(scheduler, str):
            optimizers.check_scheduler(scheduler, optimizer, steps - done)
        step = PrivateStep(
            self.engine,
            self.policy,
            list(model.parameters()),
            event=self.event,
            expected_batch_size=self.expected_batch_size,
            num_groups=groups,
            ledger=ledger,
            randomness=randomness,
            physical_batch_size=self._physical_batch_size,
            processes=self.processes,
        )
        averaging = averages.RunningAverage(self._arguments.average, model, steps)
        start = start_of(model, optimizer, ledger, private=self.policy.private)
        every_group = torch.arange(groups, device=step.parameters[0].device)
        step.rehearse(every_group)  # the policy's rules, on a made-up example of each group
        if isinstance(scheduler, str) and self.scheduler is not None:  # a named schedule, which starts again
            for group, rate in zip(optimizer.param_groups, self.scheduler.base_lrs, strict=True):
                group["lr"] = rate
        self.scheduler = optimizers.chosen_scheduler(scheduler, optimizer, steps, done)
        self.processes.check_equal({})  # a barrier: raises where another process failed on the way here
        optimizers.connect_noise(optimizer, step)
        self._loop = PrivateLoop(
            step,
            model,
            optimizer,
            num_examples=self.num_examples,
            steps=steps,
            load=load,
            load_draws=self._arguments.augment is not None or not isinstance(self.train, GroupedDataset),
            labels=self.train.groups if isinstance(self.train, GroupedDataset) else None,
        )
        self.ledger, self.steps, self.randomness, self._step = ledger, steps, randomness, step
        self.averaging, self.start, self.steps_at_start = averaging, start, done

    def __getstate__(self) -> Any:
        raise SettingError(
            "a Trainer cannot be copied or pickled: the steps of a copy would be in no ledger that the "
            "original knows. Save it by equidp.Checkpoints, and keep what was trained by run().",
            field="trainer",
        )

    def _note_start(self) -> None:
        """Note where the weights come from, which others may have set since the Trainer was made."""
        if self.steps_done == self.steps_at_start:
            private = self.policy.private
            self.start = start_of(self.model, self.optimizer, self.ledger, private=private, known=self.start)

    def epsilon_so_far(self, steps: int) -> float:
        """Upper bound of epsilon after `steps` of the planned steps, with all else that the ledger holds."""
        others = [entry for entry in self.ledger.entries if entry[0] != self.event]
        return EpsilonMeter(self.event, self.steps, self.delta, self.accountant, others)(steps)

    @property
    def steps_done(self) -> int:
        """Private steps spent; the ledger may hold releases too."""
        return self._loop.steps_done

    @property
    def epoch(self) -> float:
        """Expected number of times that an example was drawn so far."""
        return self.steps_done * self.sample_rate

    @property
    def released_model(self) -> nn.Module:
        """Model that a run ending now would release: `model`, or the average of its weights so far."""
        return self.averaging.averaged_model(self.model)

    @property
    def policy_state(self) -> Any:
        """State that the policy has learnt from releases: a NamedTuple of tensors."""
        return self._step.state

    @property
    def weights_state(self) -> Any:
        """State that the weights of the last step followed from.

        It differs from `policy_state` where the policy learnt from the gradient of that step.
        """
        return self._step.weights_state

    def state(self) -> dict[str, Any]:
        """Return what `restore` reads: marks of the run, and what its method learnt from releases."""
        return {
            "run": self.ledger.run_id,
            "steps": self.steps_done,
            "event": asdict(self.event),
            "policy": self.policy_state._asdict(),
        }

    def count_lost(self, state: Mapping[str, Any]) -> int:
        """Return the number of steps that the ledger holds after a saved `state`.

        Raises:
            SettingError: the state is of a run with another event.
            BudgetError: the ledger is another run's, or has fewer steps than the state.
        """
        if state["event"] != asdict(self.event):
            raise SettingError(
                f"the checkpoint is of a run with steps {state['event']}, this trainer's are "
                f"{asdict(self.event)}; make the trainer with the settings of that run.",
                field="event",
            )
        if state["run"] != self.ledger.run_id:
            raise BudgetError(
                f"the checkpoint is of run {state['run']}, and the ledger of run {self.ledger.run_id}: it "
                "does not count what this model cost. Give the ledger that the run began with, or the "
                "checkpoints of this run's own folder.",
                field="run",
            )
        lost: int = self.steps_done - state["steps"]
        if lost < 0:
            raise BudgetError(
                f"the checkpoint was saved after {state['steps']} steps, and the ledger has "
                f"{self.steps_done}; give the ledger of that run.",
                field="steps",
            )
        return lost

    def restore(self, state: Mapping[str, Any]) -> int:
        """Go on from a saved `state` of this run, once the model has its weights; return `count_lost`.

        Raises:
            SettingError, BudgetError: as `count_lost`; or the state is of another policy, or for another
                number of groups.
        """
        lost = self.count_lost(state)
        self._step.restore(state["policy"])
        self._loop.mark_stepped()
        return lost

    def batches(self) -> Iterator[Batch]:
        """Poisson samples for the steps that are left; give each of them to `step` before the next is drawn.

        Draw them inside `with trainer.open_loop():` where callbacks begin and end with the loop.

        Raises:
            BudgetError: the steps do not fit into the budget any more.
        """
        self._note_start()
        agreement.check_models(self.processes, self.model, self.share_limits)
        return self._watched_samples(self._loop.batches())

    def _watched_samples(self, samples: Iterator[Batch]) -> Iterator[Batch]:
        """Yield samples; before each of them, callbacks may refuse to watch its step."""
        while True:
            if self.steps_done < self.steps:
                with self.processes.leave_group_on_failure():
                    for callback in self.callbacks:
                        callback.before_sample(self)
            batch = next(samples, None)
            if batch is None:
                return
            yield batch

    def step(self, batch: Batch) -> None:
        """One private step: puts the private gradient into p.grad and steps the optimizer.

        Args:
            batch: the last one that `batches` gave, used once, as it was drawn. Rows may be cut at their ends
                (`batch._replace(inputs=batch.inputs[:, :longest])`), where a model reads no more of them.

        Raises:
            SettingError: another batch, no steps left, or other parameters; nothing is spent.
        """
        if self.steps_done >= self.steps and not self._loop.has_unused_sample:
            raise SettingError(
                f"all {self.steps} planned steps are spent; make a new Trainer to plan and account for more.",
                field="steps",
            )
        self._loop.take(batch)
        with self.processes.leave_group_on_failure():
            done = self.steps_done
            assemble.check_engine_again(self.engine, self.policy, done)
            self.averaging.add(self.model, done)
            if self.scheduler is not None:
                self.scheduler.step()
            for callback in self.callbacks:
                callback.after_step(self)
            if Schedule(self.sample_rate, self.steps).ends_epoch(done):
                for callback in self.callbacks:
                    callback.after_epoch(self)

    def stop(self, reason: BaseException | None = None) -> None:
        """End training once the step in progress is complete, unless it is the last one.

        Of several processes, the first decides. What is promised of a run that ended by results, such as the
        accuracy of released weights, is the epsilon of its whole plan (`Run.planned_epsilon`).

        Args:
            reason: raised by `fit`, or by `batches`; None: they end as after the last step.

        Example:
            >>> import torch, equidp
            >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
            >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
            >>> class Enough(equidp.Callback):
            ...     def after_step(self, trainer):
            ...         if trainer.steps_done == 3:
            ...             trainer.stop()
            >>> model = torch.nn.Linear(3, 2)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> run = equidp.Trainer(model, optimizer, data, policy=equidp.DPSGD(), batch_size=16, steps=8,
            ...                      noise_multiplier=2.0, delta=1e-3, callbacks=[Enough()]).fit()
            >>> run.facts.steps, run.epsilon() < run.planned_epsilon()
            (3, True)
        """
        self._loop.stop(reason)

    @contextmanager
    def open_loop(self) -> Iterator[None]:
        """Surround a loop of your own with what `fit` does around its own.

        Before it, callbacks begin (`Checkpoints` saves, and catches Ctrl-C and SIGTERM) and the model is put
        into training mode. After it, also by an error, gradients are dropped, the ledger takes back steps
        that it recorded ahead, and callbacks end (`Checkpoints` saves).

        Example:
            >>> import torch, equidp
            >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
            >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
            >>> model = torch.nn.Linear(3, 2)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = equidp.Trainer(model, optimizer, data, policy=equidp.DPSGD(), batch_size=16,
            ...                          steps=4, noise_multiplier=2.0, delta=1e-3)
            >>> with trainer.open_loop():
            ...     for batch in trainer.batches():
            ...         trainer.step(batch)
            >>> trainer.run().facts.steps
            4
        """
        was_training = self.model.training
        self.model.train()
        begun: list[Callback] = []
        try:
            with self.processes.leave_group_on_failure():
                for callback in self.callbacks:
                    callback.before_training(self)
                    begun.append(callback)
            yield
        finally:
            with ExitStack() as ends:  # all are called, in their order, whatever fails before
                for callback in reversed(begun):
                    ends.callback(callback.after_training, self)
                self.optimizer.zero_grad(set_to_none=True)
                self.model.train(was_training)
                self.ledger.settle()

    def fit(self) -> Run:
        """Take the steps that are left. Interrupted, it can be called again: what was spent stays spent.

        If one of several processes fails, it cannot be called again: start all of them again.
        """
        if not self._loop.has_stepped and self.steps_done >= self.steps:
            raise SettingError(
                f"the ledger holds all {self.steps} planned steps, and this Trainer took none. Restore the "
                "model from the run's checkpoints (Checkpoints.restore), or give a ledger of its own.",
                field="ledger",
            )
        with self.open_loop():
            for batch in self.batches():
                if not self.model.training:  # a callback left it in evaluation mode
                    self.model.train()
                self.step(batch)
            agreement.warn_of_models(self.processes, self.model)
        return self.run()

    def limit_shares(self, limits: ShareLimits | None) -> None:
        """Set the limits, by norm, of each example's share of the sensitivity; None: no limits."""
        taken = self._step.share_limits
        if limits is not None and taken is not None and limits != taken:
            raise SettingError(
                "two callbacks would limit examples' shares; give the Trainer one of them.", field="callbacks"
            )
        self._step.share_limits = limits

    @property
    def share_limits(self) -> ShareLimits | None:
        """Limits that `limit_shares` set last."""
        return self._step.share_limits

    def run(self) -> Run:
        """Run so far: what was trained and spent; with steps left, it holds a copy of the model.

        Raises:
            ModelError: the model cannot be copied.
        """
        self._note_start()
        done = self.steps_done >= self.steps and not self._loop.has_unused_sample
        model = self.released_model
        if not done:
            model = copy_model(model, "a Run before the last step")
        mark_trained(model, self.train)
        return Run(model, self.ledger.entries, self.delta, self.loss, self.accountant, RunFacts.of(self))
