"""Trainer: wires sampler, engine, policy, private step and accounting together."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import Dataset

from equidp.accounting.groups import OTHER_GROUPS, LabelBudgets
from equidp.accounting.meter import check_delta, epsilon_so_far
from equidp.accounting.planned import Schedule
from equidp.data.dataset import GroupedDataset
from equidp.engines.model import preserve_modes, set_training_mode
from equidp.errors import BudgetError, PrivacyWarning, SettingError
from equidp.individual.accounts import Accounts
from equidp.individual.settings import Individual
from equidp.kernel.engine import Engine, LossFunction
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import STEP, Event, EventCounts, Label
from equidp.kernel.inputs import Inputs, count_changes
from equidp.kernel.noise import Randomness, SeededRandomness
from equidp.kernel.run import PrivateRun
from equidp.kernel.step import PrivateStep
from equidp.ledger.ledger import Ledger
from equidp.training import assemble, averages, loading, optimizers, trial
from equidp.training.collation import Collate
from equidp.training.initial_weights import Start, copy_model, mark_trained, start_of
from equidp.training.plan import Plan
from equidp.training.processes import processes_here
from equidp.training.release import Release
from equidp.training.resolved import ResolvedPlan
from equidp.training.run import Run, RunFacts, entries_left, merge_entries

if TYPE_CHECKING:
    from equidp.individual.report import IndividualReport


class Callback:
    """Hooks into a run. The methods do nothing by default; override what you need.

    Callbacks begin with the first step. They end with the last step, with an error, or when a custom loop is
    left. Then they can close what they opened, such as signal handlers. A callback can end training by
    `trainer.stop()`.

    Example:
        >>> import equidp
        >>> class Count(equidp.Callback):
        ...     steps = 0
        ...     def after_step(self, trainer):
        ...         self.steps += 1
    """

    def before_training(self, trainer: Trainer) -> None:
        """Called before the first step."""

    def after_step(self, trainer: Trainer) -> None:
        """Called after the optimizer took a private step."""

    def after_epoch(self, trainer: Trainer) -> None:
        """Called after each n / b steps, and after the last step of the plan."""

    def after_training(self, trainer: Trainer) -> None:
        """Called once no step will follow, also after an error, and if another callback fails here."""

    def after_release(self, trainer: Trainer, release: Release, drawn: Any) -> None:
        """Called once a release of the plan was paid for and drawn, in the first process only."""

    def state_dict(self) -> Mapping[str, Any]:
        """Return tensors and plain values for the checkpoint, with nothing about single training examples."""
        return {}

    def sensitive_state_dict(self) -> Mapping[str, npt.NDArray[Any]]:
        """Return arrays about single examples, stored next to the checkpoints until the run is complete."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of `state_dict`, and the arrays of `sensitive_state_dict` if still stored."""


@dataclass(frozen=True)
class Step:
    """A step that was taken.

    Attributes:
        number: number of the step, from 1.
        epoch: number of its epoch, from 1.
    """

    number: int
    epoch: int
    _epsilon_so_far: Callable[[int], float] = field(repr=False, compare=False)

    @property
    def epsilon(self) -> float:
        """Upper bound of epsilon so far. It holds of results that did not decide when to stop."""
        return self._epsilon_so_far(self.number)


class Trainer:
    """Trains a model privately by DP-SGD steps on Poisson samples.

    Args:
        model: module whose outputs for one example do not depend on other examples. It is trained in place.
        optimizer: torch optimizer over the model's parameters. It sees only private gradients.
        data: a `GroupedDataset`, or a map-style torch Dataset of (input, target), or of (input, target,
            group) with public `group_names` as an attribute. A mapping of tensors [n, ...] with "labels" also
            works, and the model receives the others by name. With `collate`, a dataset of any rows that it
            accepts. A person with rows in groups of several rates counts as one of the group with the largest
            rate.
        plan: settings of the run, or a plan resolved for this data. None: made from `options`.
        loss: (outputs, targets) -> losses [batch], one per example. If outputs are a mapping, the loss
            receives its `logits`. None: the plan's loss.
        engine: name in `equidp.engines.ENGINES`, which is tried on made-up rows, or an engine object of this
            model and loss, which is used without a trial.
        callbacks: callbacks of the run.
        ledger: ledger of all runs on this data, with their common limit, or (ledger, name) of a run to
            continue. None: a new one in memory.
        individual: whether to record the share of the sensitivity that each example uses, for
            `individual_report`.
        scheduler: torch scheduler of the learning rate, called after each step. None: the plan's schedule.
        collate: list of rows from a torch Dataset -> one batch (inputs, targets) or (inputs, targets,
            groups), tensors [rows, ...]. It may pad rows to the longest. A trial before training checks that
            each row has the same result in a batch as by itself, and that the model ignores padding.
        augment: inputs of one example, without a batch dimension -> augmented inputs, such as a crop, a flip
            or noise. Called for each example of each sample. It may draw random numbers, and cannot mix
            examples.
        examples: (inputs, targets) of a few public rows, in the data's form, for the trial before training.
            Use it for models that require more of a row than made-up rows have, such as an end token. With
            `collate`, a list of rows in the dataset's form. Never use rows of the training data.
        seed: None: samples and noise come from the operating system. A number, only for research: they follow
            from it. Or a `Randomness`, which draws them.
        options: fields of `Plan` instead of a plan, such as `epsilon=3, epochs=10, batch_size=256`.

    Attributes:
        policy: policy of the method for the data's groups.
        resolved: plan resolved for the data.
        plan: the same, if `equidp.training.build.build` made model and optimizer from it. None: they were
            made by hand.
        steps: number of steps T.
        event: cost of each step, with `sample_rate` q (the largest rate of a group) and `noise_multiplier`
            sigma.
        ledger, randomness, engine, loss, scheduler: as given, or made by the Trainer.
        run_id: random name of the run in the ledger.
        num_examples, num_groups, expected_batch_size: n, K (None: groups are not needed) and b.
        released: results of the plan's releases by name, as plain values, or a list of them for several
            draws.
        averaging: average of the weights so far.
        start: origin of the initial weights.
        steps_at_start: number of steps before this Trainer, by its ledger.
        individual: record of each example's share (`individual.accounts`). None: not requested.
        processes: processes that train together, usually one.

    Raises:
        SettingError, DataError, ModelError, PolicyError, BudgetError: before any budget is spent.

    Example:
        >>> import torch, equidp
        >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
        >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Linear(3, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> trainer = equidp.Trainer(model, optimizer, data, batch_size=16,
        ...                          steps=4, noise_multiplier=2.0, delta=1e-3)
        >>> trainer.fit().facts.steps
        4
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        data: GroupedDataset | Dataset[Any] | Mapping[str, torch.Tensor],
        plan: Plan | ResolvedPlan | None = None,
        *,
        loss: LossFunction | None = None,
        engine: str | Engine = "auto",
        callbacks: Sequence[Callback] = (),
        ledger: Ledger | tuple[Ledger, str] | None = None,
        individual: Individual | None = None,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None = None,
        collate: Collate | None = None,
        augment: loading.Augment | None = None,
        examples: tuple[Inputs, Inputs] | Sequence[Any] | None = None,
        seed: int | Randomness | None = None,
        **options: Any,
    ) -> None:
        plan = assemble.chosen_plan(plan, options)
        ledger, run_id = ledger if isinstance(ledger, tuple) else (ledger, None)
        train = assemble.checked_data(data)
        assemble.check_kinds(model, ledger, callbacks, seed)
        assemble.warn_of_repeats(train)
        self.model, self.optimizer, self.callbacks = model, optimizer, tuple(callbacks)
        self.plan: ResolvedPlan | None = None
        self.processes, self.num_examples = processes_here(), len(train)
        self.resolved = resolved = assemble.resolved_plan(plan, train, self.processes)
        self.policy = policy = assemble.policy_for(resolved, train)
        self.num_groups = num_groups = assemble.checked_groups(policy, train)
        self.sample_rate, self.steps = resolved.sample_rate, resolved.steps
        self.delta, self.accountant = resolved.delta, resolved.plan.accountant
        check_delta(self.delta, self.num_examples)
        assemble.check_own_policy(policy, num_groups or 1, resolved.noise_multiplier)
        self.train = train = assemble.in_groups_of_event(train, resolved.event)
        self.views = views = resolved.plan.image_views
        self.noise_multiplier = resolved.noise_multiplier
        self.expected_batch_size = float(resolved.plan.batch_size)
        if self.processes.count > 1:  # all begin with the weights of the first
            weights = {name: value.cpu() for name, value in model.state_dict().items()}
            model.load_state_dict(self.processes.from_first(lambda: weights))
        self.loss = assemble.chosen_loss(loss, resolved.plan, train)
        self._seeded = isinstance(seed, int)
        self._open_ledger(ledger, run_id, isinstance(seed, int | SeededRandomness))
        self.randomness = randomness = assemble.chosen_randomness(
            seed, sum(count for _, count in self.entries)
        )
        rows = loading.Loading.of(
            train,
            model,
            randomness,
            views=views,
            augment=augment,
            collate=collate,
            num_groups=num_groups,
            workers=resolved.plan.workers,
        )
        self._physical_batch_size = trial.chosen_physical_batch_size(
            resolved.plan.physical_batch_size, train, model, self.event
        )
        self.engine, public = trial.chosen_engine(
            engine, policy, model, self.loss, rows, train, examples, self._physical_batch_size
        )
        optimizers.check_optimizer(optimizer, model)
        self._make_run(rows.load, rows.draws, scheduler)
        self._keep_budgets()
        self.individual: Accounts | None = None
        asked = (each.individual for each in resolved.plan.releases)
        individual = individual or next((each for each in asked if each is not None), None)
        if individual is not None:
            views.refuse("individual accounting needs")
            self.individual = Accounts(
                individual,
                self._step,
                train,
                steps=self.steps,
                sample_rate=self.sample_rate,
                augmented=augment is not None,
            )
        trial.try_objective(self.engine, policy, self._step.state, public)
        self.released: dict[str, Any] = {}
        self._changes = self._count_changes()
        self._has_stepped = False  # whether the model took steps of this plan, here or before it was restored
        self._begun: list[Callback] | None = None  # callbacks whose training has begun; None: no loop is open
        self._modes = ExitStack()

    def _keep_budgets(self) -> None:
        """Let the ledger reject charges, in addition to the plan, that exceed a group's budget."""
        given = self.resolved.plan.groups.budgets
        if given:
            others = given.get(OTHER_GROUPS, math.inf)
            budgets: dict[Label | None, float] = {
                label: given.get(label.name, others) for label in self.event.labels
            } or {None: max(given.values())}
            check = LabelBudgets(budgets, self.planned, self.delta, self.accountant)
            self.ledger.refuse_by(self.run_id, check)

    def _open_ledger(self, ledger: Ledger | None, run_id: str | None, seeded: bool) -> None:
        """Open the first process' ledger; in others, one in memory that follows it."""
        opened: list[Ledger] = []

        def open_first() -> tuple[str, str, Event]:
            found = assemble.open_ledger(ledger, run_id, seeded, self.train, self.resolved)
            opened.append(found[0])
            return found[0].unit, *found[1:]

        unit, self.run_id, self.event = self.processes.from_first(open_first)
        self.ledger = opened[0] if opened else Ledger(unit=unit)
        self._follow_first(self.run_id)

    def _follow_first(self, run_id: str) -> None:
        """Let this process's ledger count what the first one's does of a run."""
        for event, count in self.processes.from_first(lambda: self.ledger.entries(run_id)):
            for _ in range(0 if self.processes.first else count):
                self.ledger.charge(run_id, event)

    def _make_run(
        self,
        load: loading.Load,
        load_draws: bool,
        scheduler: torch.optim.lr_scheduler.LRScheduler | None,
    ) -> None:
        """Make the private run and what depends on its number of steps; spend nothing."""
        model, optimizer, steps = self.model, self.optimizer, self.steps
        self.steps_at_start = done = self.ledger.count(self.run_id, self.event)
        step = PrivateStep(
            self.engine,
            self.policy,
            list(model.parameters()),
            event=self.event,
            expected_batch_size=self.expected_batch_size,
            num_groups=self.num_groups or 1,
            randomness=self.randomness,
            physical_batch_size=self._physical_batch_size,
            processes=self.processes,
        )
        self.averaging = averages.RunningAverage(
            self.resolved.plan.average, self.resolved.plan.average_share, model, steps
        )
        self.start = start_of(model, optimizer, self._has_steps(), private=self.policy.private)
        self.scheduler = optimizers.chosen_scheduler(
            self.resolved.plan.schedule if scheduler is None else scheduler, optimizer, steps, done
        )
        optimizers.connect_noise(optimizer, step)
        self._run = PrivateRun(
            step,
            model,
            optimizer,
            self.ledger,
            num_examples=self.num_examples,
            steps=steps,
            load=load,
            load_draws=load_draws,
            groups=self.train.groups if isinstance(self.train, GroupedDataset) else None,
            run=self.run_id,
            check=trial.row_check(self.engine, self.policy, model, self.loss, self._physical_batch_size),
        )
        self._step = step

    def __getstate__(self) -> Any:
        raise SettingError(
            "a Trainer cannot be copied or pickled: the steps of a copy would be in no ledger that the "
            "original knows. Save it by equidp.Checkpoints, and keep what was trained by run().",
            field="trainer",
        )

    def _note_start(self) -> None:
        """Record the origin of the weights, which may have been set since the Trainer was made."""
        if not self._has_stepped:
            private, begun = self.policy.private, self._has_steps()
            self.start = start_of(self.model, self.optimizer, begun, private=private, known=self.start)

    def _count_changes(self) -> int:
        return sum(map(count_changes, self._step.parameters))

    def _note_changes(self) -> None:
        """Warn once if the weights changed outside of the steps, for example in a loop that was left in."""
        if self.start.between_steps or self._changes == self._count_changes():
            return
        self.start = replace(self.start, between_steps=True)
        if self.policy.private:
            warnings.warn(
                "the weights changed outside of the private steps. If a loop with loss.backward() and "
                "optimizer.step() is left in the program, epsilon does not hold: take it out.",
                PrivacyWarning,
                stacklevel=3,
            )

    def _has_steps(self) -> bool:
        """Return whether the run has steps already, perhaps with other noise."""
        return any(event.name == STEP for event, _ in self.entries)

    def epsilon_so_far(self, steps: int) -> float:
        """Upper bound of epsilon after `steps` of the planned steps, with the run's releases.

        It holds only if no result decides when to stop. `Run.epsilon` is for the whole plan.
        """
        others = [entry for entry in self.entries if entry[0] != self.event]
        return epsilon_so_far(steps, self.event, self.steps, self.delta, self.accountant, others)

    def epsilons(self) -> dict[str, float]:
        """Return values to log by name: epsilon of the whole plan, and epsilon_of_steps_taken so far."""
        planned = epsilon(self.planned, self.delta, self.accountant)
        return {"epsilon": planned, "epsilon_of_steps_taken": self.epsilon_so_far(self.steps_done)}

    @property
    def entries(self) -> EventCounts:
        """(event, count) pairs that the run has spent so far, releases included."""
        return self.ledger.entries(self.run_id)

    @property
    def steps_done(self) -> int:
        """Number of private steps spent."""
        return self._run.steps_done

    @property
    def epoch(self) -> float:
        """Expected number of times that an example was drawn so far."""
        return self.steps_done * self.sample_rate

    @property
    def released_model(self) -> nn.Module:
        """Model that a run ending now would release: `model`, or one with its average weights so far."""
        return self.averaging.averaged_model(self.model)

    @property
    def policy_state(self) -> Any:
        """State that the policy has learned from releases, a NamedTuple of tensors."""
        return self._step.state

    @property
    def weights_state(self) -> Any:
        """State that determined the weights of the last step.

        It differs from `policy_state` if the policy has learned from that step's gradient.
        """
        return self._step.weights_state

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`: marks of the run, and what its method has learned from releases."""
        return {
            "run": self.run_id,
            "steps": self.steps_done,
            "settings": self._settings(),
            "policy": self.policy_state._asdict(),
            "released": self.released,
            "start": asdict(self.start),
        }

    def _settings(self) -> dict[str, Any]:
        """Settings that a saved run and its continuation have in common, as plain values."""
        return {
            "event": asdict(self.event),
            "steps": self.steps,
            "policy": repr(self.policy),
            "batch_size": self.expected_batch_size,
            "average": [self.averaging.kind, self.averaging.share],
            "scheduler": None if self.scheduler is None else type(self.scheduler).__name__,
        }

    def count_lost(self, state: Mapping[str, Any]) -> int:
        """Return the number of steps that the ledger has for a saved run after its `state`.

        Raises:
            SettingError: the state comes from a run with other settings.
            BudgetError: the ledger has fewer steps of that run than the state.
        """
        for name, own in self._settings().items():
            if (saved := state["settings"][name]) != own:
                raise SettingError(
                    f"the checkpoint is of a run with {name} {saved}, and this trainer has {own}; make the "
                    "trainer with the settings of that run.",
                    field=name,
                )
        run = state["run"]
        spent = self.processes.from_first(lambda: self.ledger.count(run, self.event))
        lost: int = spent - state["steps"]
        if lost < 0:
            raise BudgetError(
                f"the checkpoint was saved after {state['steps']} steps of run {run}, and the ledger has "
                f"{spent} of them; give the ledger that the run began with.",
                field="steps",
            )
        return lost

    def restore(self, state: Mapping[str, Any]) -> int:
        """Continue from a saved `state` of this run once the model has its weights; return `count_lost`.

        Raises:
            SettingError, BudgetError: as `count_lost`, or the state is for another policy or number of
                groups.
        """
        lost = self.count_lost(state)
        self._go_on_as(state["run"])
        self._step.restore(state["policy"])
        self.released = {**state["released"], **self.released}
        self._has_stepped = True
        self.start, self._changes = Start(**state["start"]), self._count_changes()
        return lost

    def _go_on_as(self, run_id: str) -> None:
        """Use the name of a run in the ledger, instead of a new one."""
        if run_id == self.run_id:
            return
        if self.steps_done > self.steps_at_start:
            raise SettingError(
                f"the trainer has taken steps of a run of its own, {self.run_id}; make another Trainer.",
                field="run_id",
            )
        self.run_id = self._run.run = run_id
        self._follow_first(run_id)
        self.steps_at_start = self.steps_done
        self._keep_budgets()
        if self._seeded and isinstance(self.randomness, SeededRandomness):
            self.randomness.go_on_after(sum(count for _, count in self.entries))

    def step(self) -> bool:
        """Take one private step: pay for a sample, read it, add noise and call the optimizer.

        `while trainer.step(): ...` takes the remaining steps. Callbacks begin with the first step. They end
        when False is returned, with an error, or by `run`.

        Returns:
            False if no step is left or the run was stopped.

        Raises:
            BudgetError: the ledger cannot record the step, so it was not taken.
            SettingError, ModelError: as in `PrivateRun`. Other errors come from data, model or loss. The step
                is charged even if it fails.

        Example:
            >>> import torch, equidp
            >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
            >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
            >>> model = torch.nn.Linear(3, 2)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = equidp.Trainer(model, optimizer, data, batch_size=16,
            ...                          steps=4, noise_multiplier=2.0, delta=1e-3)
            >>> while trainer.step():
            ...     if trainer.steps_done == 3:
            ...         break
            >>> trainer.run().facts.steps
            3
        """
        try:
            if self._has_stepped:
                self._note_changes()
            self._begin()
            set_training_mode(self.model)
            if self.individual is not None and self.steps_done < self.steps:
                self.individual.before_step(self.steps_done)
            taken = self._run.step()
            if taken:
                self._after_step()
        except BaseException:
            self._end()
            raise
        finally:
            self._changes = self._count_changes()
        if not taken:
            self._end()
        return taken

    def epochs(self) -> Iterator[Iterator[Step]]:
        """Yield epochs of n / b steps each. Each epoch yields its steps once they are taken.

        Callbacks begin with the first step and end with the loop. Leaving the loop spends nothing more. The
        next loop continues an epoch that was left early.

        Example:
            >>> import torch, equidp
            >>> x, targets, groups = torch.randn(64, 3), torch.arange(64) // 32, torch.arange(64) % 2
            >>> data = equidp.GroupedDataset(x, targets, groups, ("a", "b"), ("no", "yes"))
            >>> model = torch.nn.Linear(3, 2)
            >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            >>> trainer = equidp.Trainer(model, optimizer, data, batch_size=32,
            ...                          steps=4, noise_multiplier=2.0, delta=1e-3)
            >>> for epoch in trainer.epochs():
            ...     print([step.number for step in epoch])
            [1, 2]
            [3, 4]
        """
        schedule = Schedule(self.sample_rate, self.steps)
        ends = (number for number in range(1, self.steps + 1) if schedule.ends_epoch(number))
        more = True

        def steps_of(number: int, last: int) -> Iterator[Step]:
            nonlocal more
            while more and self.steps_done < last:
                if more := self.step():
                    yield Step(self.steps_done, number, self.epsilon_so_far)

        try:
            for number, last in enumerate(ends, 1):
                if more and self.steps_done < last:
                    yield steps_of(number, last)
        finally:
            self._end()

    def _begin(self) -> None:
        """Begin callbacks and training mode, unless they have begun."""
        if self._begun is not None:
            return
        if not self.steps_done:
            assemble.check_drawn(self.resolved.plan, self.entries)
        self._begun = []
        self._modes.enter_context(preserve_modes(self.model))
        self._note_start()
        for callback in self.callbacks:
            callback.before_training(self)
            self._begun.append(callback)
        if not self.steps_done:
            for release in self.resolved.plan.releases:
                release.before(self)

    def _end(self) -> None:
        """End callbacks that have begun, in their order, and give back what was paid ahead."""
        begun, self._begun = self._begun, None
        if begun is None:
            return
        with ExitStack() as ends:
            for callback in reversed(begun):
                ends.callback(callback.after_training, self)
            self.optimizer.zero_grad(set_to_none=True)
            self._modes.close()
            self.ledger.settle()

    def _after_step(self) -> None:
        done = self.steps_done
        self.averaging.add(self.model, done)
        if self.scheduler is not None:
            self.scheduler.step()
        self._has_stepped = True
        if self.individual is not None:
            self.individual.after_step()
        for callback in self.callbacks:
            callback.after_step(self)
        if Schedule(self.sample_rate, self.steps).ends_epoch(done):
            for release in self.resolved.plan.releases:
                release.after_epoch(self)
            for callback in self.callbacks:
                callback.after_epoch(self)

    def release(self, release: Release, draw: Callable[[float], Any]) -> Any:
        """Pay for a draw of a release of the plan, and draw it, unless all its draws were made.

        Releases call it in every process. Only the first process pays and draws.

        Args:
            release: one of `plan.releases`.
            draw: noise multiplier -> plain JSON values.

        Returns:
            The result, or all results so far for a release of several draws.

        Raises:
            BudgetError: the ledger rejects the payment, so nothing was drawn.
        """

        def draw_first() -> Any:
            name, noise = release.name, self.resolved.noise_of(release)
            if not self.draws_left(release):
                return self.released[name]
            drawn = self.ledger.release(self.run_id, name, noise, draw)
            if self.resolved.draws_of(release) > 1:
                drawn = [*self.released.get(name, ()), drawn]
            self.released[name] = drawn
            for callback in self.callbacks:
                callback.after_release(self, release, drawn)
            return drawn

        return self.processes.from_first(draw_first)

    def draws_left(self, release: Release) -> int:
        """Return the number of draws that a release of the plan has left."""
        most, name = self.resolved.draws_of(release), release.name
        made = int(name in self.released) if most == 1 else len(self.released.get(name, ()))
        return max(0, most - made)

    def _draw_last(self) -> None:
        """Ask the releases after the last step, once."""
        for release in self.resolved.plan.releases:
            release.after(self)

    def stop(self, reason: BaseException | None = None) -> None:
        """End training once the step in progress is complete, unless it is the last one.

        With several processes, the first decides. The run reports the epsilon of its whole plan, because
        results such as the accuracy of released weights may have decided when to stop
        (`Run.epsilon_of_steps_taken`).

        Args:
            reason: exception to raise instead of the next step. None: loops end as after the last step.

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
            >>> run = equidp.Trainer(model, optimizer, data, batch_size=16, steps=8,
            ...                      noise_multiplier=2.0, delta=1e-3, callbacks=[Enough()]).fit()
            >>> run.facts.steps, run.epsilon_of_steps_taken() < run.epsilon()
            (3, True)
        """
        self._run.stop(reason)

    def fit(self) -> Run:
        """Take the remaining steps. After an interruption, call it again. Spent budget stays spent."""
        if not self._has_stepped and self.steps_done >= self.steps:
            raise SettingError(
                f"the ledger holds all {self.steps} planned steps, and this Trainer took none. Restore the "
                "model from the run's checkpoints (Checkpoints.restore), or give a ledger of its own.",
                field="ledger",
            )
        try:
            while self.step():
                pass
        finally:  # also where an interrupt comes between two steps
            self._end()
        self._draw_last()
        return self.run()

    def run(self) -> Run:
        """Return the run so far, which reports the cost of its whole plan. This ends a custom loop.

        If steps are left, the run has a copy of the model.

        Raises:
            ModelError: the model cannot be copied.
        """
        if not self._has_stepped:  # later, the best weights so far may have been loaded
            self._note_changes()
        self._end()
        self._note_start()
        if self.steps_done >= self.steps:
            self._draw_last()
        model = self.released_model
        if self.steps_done < self.steps:
            model = copy_model(model, "a Run before the last step")
        mark_trained(model, self.train)
        facts, left = RunFacts.of(self), self.not_taken
        return Run(model, self.planned, self.delta, self.loss, self.accountant, facts, left)

    @property
    def planned(self) -> EventCounts:
        """(event, count) pairs of the whole plan, both spent and not taken."""
        return merge_entries((*self.entries, *self.not_taken))

    @property
    def not_taken(self) -> EventCounts:
        """(event, count) pairs of the plan that were not spent: steps and releases."""
        return entries_left(self.resolved, self.event, self.entries)

    def individual_report(self, delta: float | None = None, accountant: str = "pld") -> IndividualReport:
        """Return the epsilon of each example and each group over the steps so far. The report is private.

        Other entries of this run in the ledger, such as private preprocessing, count in full for every
        example.

        Args:
            delta: delta of the epsilons. Default: the run's delta.
            accountant: "pld" (privacy loss distributions): tight. "rdp" (Renyi): faster and looser, used in
                papers.

        Raises:
            SettingError: the run has no `individual` or has taken no step, or this is not the first of
                several processes.
        """
        if self.individual is None or not self.steps_done:
            raise SettingError(
                "no step was counted for single examples; give the Trainer individual="
                "equidp.Individual(per_epoch=3), and take a step.",
                field="individual",
            )
        if not self.processes.first:
            raise SettingError(
                f"individual_report in process {self.processes.rank}; only process 0 counts. "
                "Call it if torch.distributed.get_rank() == 0.",
                field="individual",
            )
        from equidp.individual.report import make_report

        self.individual.count_in_full(self.steps_done - self.individual.steps)
        self.individual.settle()
        chosen = self.delta if delta is None else delta
        own = self.ledger, self.run_id
        return make_report(self.individual, *own, self.planned, chosen, accountant)
