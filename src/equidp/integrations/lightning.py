"""PrivateStrategy: the strategy of Lightning by which its Trainer takes private steps of equidp.

Lightning keeps its loop: module, optimizer, schedules, validation, callbacks, loggers and checkpoints. The
strategy replaces what the guarantee depends on. The training rows of a DataLoader become Poisson samples, the
loss of `training_step` is computed for each row by itself, and a step of the optimizer is a private step.
Epsilon is logged for training.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.data import DataLoader, Dataset, RandomSampler, SequentialSampler

from equidp._extras import require_extra
from equidp.accounting.planned import Schedule
from equidp.engines.model import in_evaluation_mode
from equidp.errors import CheckpointError, DataError, SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import Inputs, map_tensors
from equidp.ledger.ledger import Ledger
from equidp.training.assemble import has_repeats
from equidp.training.collation import as_tuples
from equidp.training.plan import Plan
from equidp.training.run import Run
from equidp.training.trainer import Trainer

with require_extra("lightning"):
    try:
        from lightning import pytorch as lightning
    except ModuleNotFoundError:
        import pytorch_lightning as lightning

LEDGER = "_ledger"
"""Name of the ledger in `default_root_dir`."""
STATE = "equidp"
"""Key of a checkpoint with the run's marks, the policy's state and the losses that were released."""


class PrivateStrategy(lightning.strategies.SingleDeviceStrategy):  # type: ignore[misc]  # not followed
    """Private steps for `Trainer(strategy=...)` of Lightning, on one device.

    A step draws a Poisson sample whose expected size is the `batch_size` of the training DataLoader. Its
    order and batches are not used. An epoch has n / b steps, rounded. `max_epochs` or `max_steps` is the
    plan, which is known before the first step. Each row goes through `collate_fn` and `training_step` by
    itself, as a batch of one, and the functional engine differentiates its loss. With `loss`, the module's
    `forward` and that loss are used instead, by an engine for batches, which is faster for most models.

    Two values are logged. `epsilon` is for the whole plan, and also holds if Lightning's `EarlyStopping` ends
    the run. `epsilon_of_steps_taken` is for the steps so far, and holds only if no result decides when to
    stop. Hooks and callbacks receive the number of a sample, from 1, instead of its rows.

    Args:
        plan: method, epsilon or noise, delta and more. Batch size and steps come from the DataLoader and the
            Trainer. None: made from `options`.
        loss: (outputs of `forward`, targets) -> losses [batch], of rows (inputs, target). None: the loss that
            `training_step` gives.
        engine: name of an engine, if `loss` is given.
        group_names, group: groups, and a function from an item of the dataset to the number of its group.
        seed, augment, examples: see `equidp.Trainer`.
        ledger: ledger of the steps. None: the file `_ledger` in the Trainer's `default_root_dir`.
        device: device for training. None: the Trainer's accelerator.
        options: fields of `equidp.Plan`, instead of a plan.

    Attributes:
        private_trainer: the `equidp.Trainer` of the run, once `fit` was called.

    Raises:
        SettingError, DataError, ModelError, BudgetError: by `fit`, before a step is spent.

    Example:
        >>> import tempfile, torch, equidp
        >>> from torch.utils.data import DataLoader, TensorDataset
        >>> class Classifier(lightning.LightningModule):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.layer = torch.nn.Linear(3, 2)
        ...     def training_step(self, batch):
        ...         inputs, targets = batch
        ...         return torch.nn.functional.cross_entropy(self.layer(inputs), targets)
        ...     def configure_optimizers(self):
        ...         return torch.optim.SGD(self.parameters(), lr=0.1)
        >>> rows = TensorDataset(torch.randn(64, 3), torch.arange(64) % 2)
        >>> strategy = PrivateStrategy(noise_multiplier=2.0, delta=1e-3)
        >>> trainer = lightning.Trainer(
        ...     strategy=strategy, max_epochs=1, default_root_dir=tempfile.mkdtemp(), accelerator="cpu",
        ...     logger=False, enable_progress_bar=False, enable_model_summary=False,
        ...     enable_checkpointing=False)
        >>> trainer.fit(Classifier(), DataLoader(rows, batch_size=16))
        >>> strategy.run().facts.steps, strategy.run().epsilon() < 3
        (4, True)
    """

    strategy_name = "equidp"

    def __init__(
        self,
        plan: Plan | None = None,
        *,
        loss: LossFunction | None = None,
        engine: str = "auto",
        group_names: tuple[str, ...] = (),
        group: Callable[[Any], int] | None = None,
        seed: int | None = None,
        augment: Callable[[Inputs], Inputs] | None = None,
        examples: tuple[Inputs, Tensor] | None = None,
        ledger: Ledger | None = None,
        device: str | torch.device | None = None,
        **options: Any,
    ) -> None:
        super().__init__()
        self._plan = Plan(**options) if plan is None else plan.with_changes(options)
        self._device = None if device is None else torch.device(device)
        self._loss, self._ledger, self._group, self._group_names = loss, ledger, group, group_names
        self._settings: dict[str, Any] = {
            "engine": "functional" if loss is None else engine,
            "seed": seed,
            "augment": augment,
            "examples": examples,
        }
        self.private_trainer: Trainer | None = None
        self._samples: Samples | None = None
        self._own: OwnStep | None = None
        self._opened: Ledger | None = None
        self._hook: Any = None
        self._fits = False
        self._loaded: Mapping[str, Any] | None = None

    def run(self) -> Run:
        """Return the private run so far: the module and what it spent.

        Raises:
            SettingError: `fit` was not called.
        """
        if self.private_trainer is None:
            raise SettingError("there is no run yet; call fit() of the Trainer first.", field="fit")
        run = self.private_trainer.run()
        return replace(run, model=run.model.module) if isinstance(run.model, OwnStep) else run

    @property
    def root_device(self) -> torch.device:
        """Device to train on."""
        if self._device is not None:
            return self._device
        kinds = {"CUDAAccelerator": "cuda:0", "MPSAccelerator": "mps:0"}
        return torch.device(kinds.get(type(self.accelerator).__name__, "cpu"))

    def setup(self, trainer: Any) -> None:
        """Reject what breaks the guarantee, before anything is spent."""
        self._fits = trainer.state.fn == "fit"
        if self._fits:
            check_trainer(trainer)
            check_hooks(trainer)
            self._samples = None
        super().setup(trainer)

    def process_dataloader(self, dataloader: object) -> object:
        """Return numbers of Poisson samples instead of training rows; other loaders stay as they are."""
        trainer = self.lightning_module.trainer
        if not (self._fits and trainer.training):
            return dataloader
        if self._samples is not None:
            raise _more_than_a_loader()
        checked = checked_loader(dataloader)
        self.private_trainer = private = self._make_private_trainer(trainer, checked)
        self._samples = Samples(private, steps_of_epoch(checked), trainer)
        return self._samples

    def on_train_start(self) -> None:
        """Reject several DataLoaders, and call hooks before the optimizer steps."""
        assert self.private_trainer is not None
        if self.lightning_module.trainer.train_dataloader is not self._samples:
            raise _more_than_a_loader()
        module, optimizer = self.lightning_module, self.private_trainer.optimizer

        def before_optimizer(*_: Any) -> None:
            with logging_allowed(module):  # gradients have their noise by then
                for callback in module.trainer.callbacks:
                    callback.on_before_optimizer_step(module.trainer, module, optimizer)
                module.on_before_optimizer_step(optimizer)

        self._hook = optimizer.register_step_pre_hook(before_optimizer)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Take one private step, including the optimizer's, and log what is released."""
        private = self.private_trainer
        assert private is not None
        _, *place = (*args, *kwargs.values())
        if self._own is not None:
            self._own.batch_idx = place[0] if place else 0
        with self.precision_plugin.train_step_context(), logging_refused(self.lightning_module):
            private.step()
        done, module = private.steps_done, self.lightning_module
        shown = {"on_step": True, "on_epoch": False, "prog_bar": True, "batch_size": 1}
        if not done % module.trainer.log_every_n_steps or Schedule(
            private.sample_rate, private.steps
        ).ends_epoch(done):
            for name, value in private.epsilons().items():
                module.log(name, value, **shown)
        return torch.tensor(float("nan"), device=self.root_device)

    def backward(self, closure_loss: Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> Tensor:
        """Return the loss: the private step has taken its gradients."""
        return closure_loss

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **_: Any) -> Any:
        """Take the step that `training_step` takes."""
        return closure()

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save a checkpoint of Lightning, with the marks of the private run."""
        if self.private_trainer is not None:
            checkpoint[STATE] = self.private_trainer.state()
        super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Load a checkpoint; `fit` continues from it."""
        loaded: dict[str, Any] = super().load_checkpoint(checkpoint_path, *args, **kwargs)
        self._loaded = loaded
        return loaded

    def on_train_end(self) -> None:
        """Give back what the ledger paid ahead."""
        assert self.private_trainer is not None
        self.private_trainer.ledger.settle()

    def teardown(self) -> None:
        """Close what `fit` opened, also after an error."""
        if self._hook is not None:
            self._hook.remove()
        self._loaded = None
        if self._opened is not None:
            self._opened.close()
        super().teardown()

    def _make_private_trainer(self, trainer: Any, loader: DataLoader[Any]) -> Trainer:
        """Make the Trainer of the run; at the step of a checkpoint, if one was loaded."""
        module, (optimizer,) = self.lightning_module, self.optimizers
        rows: Dataset[Any]
        if self._loss is None:
            rows = items = Items(loader, self._group, self._group_names)
            self._own = OwnStep(module, items.spec)
            check_training_step(self._own, items.zeros)
        else:
            rows, self._own = Pairs(loader, self._group, self._group_names), None
        held = optimizer.state_dict() if self._loaded is not None else None
        optimizer.state.clear()  # that of a checkpoint is of private steps, and comes back
        with logging_refused(module):  # the trial runs forward and loss
            private = Trainer(
                module if self._own is None else self._own,
                optimizer,
                rows,
                self._plan.with_changes(
                    batch_size=loader.batch_size,
                    steps=planned_steps(trainer, loader),
                    workers=loader.num_workers,
                ),
                loss=own_losses if self._loss is None else self._loss,
                ledger=self._open_ledger(trainer),
                **self._settings,
            )
        if held is not None:
            optimizer.load_state_dict(held)
            self._restore(private)
        return private

    def _open_ledger(self, trainer: Any) -> Ledger:
        if self._ledger is not None:
            return self._ledger
        folder = Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        self._opened = Ledger(folder / LEDGER)
        return self._opened

    def _restore(self, private: Trainer) -> None:
        """Go on from the loaded checkpoint, whose weights Lightning restored. Its lost steps stay spent."""
        state = None if self._loaded is None else self._loaded.get(STATE)
        if state is None:
            raise CheckpointError(
                "the checkpoint is of a training without privacy, whose epsilon is infinite. Give one of a "
                "Trainer with a PrivateStrategy, or load its weights before fit, if they are of other data.",
                field="ckpt_path",
            )
        lost = private.restore(state)
        for config in self.lr_scheduler_configs:
            if config.interval == "step" and not config.reduce_on_plateau:
                for _ in range(lost // config.frequency):
                    config.scheduler.step()


@final
class OwnStep(nn.Module):
    """Loss of each row by a module's own `training_step`, which sees one row at a time, as a batch of one.

    Args:
        module: a LightningModule.
        spec: form of a batch that `training_step` reads.

    Attributes:
        batch_idx: that `training_step` gets.
    """

    batch_idx = 0

    def __init__(self, module: Any, spec: TreeSpec) -> None:
        super().__init__()
        self.module, self._spec = module, spec
        self._reads_place = len(inspect.signature(module.training_step).parameters) > 1

    def forward(self, *rows: Tensor) -> Tensor:
        """Losses, [batch], of the tensors of rows, [batch, ...] each."""
        if len(rows[0]) == 1:
            return self._loss_of(rows).reshape(1)

        def loss_of(*row: Tensor) -> Tensor:
            return self._loss_of(tuple(each.unsqueeze(0) for each in row)).reshape(())

        return torch.vmap(loss_of, randomness="different")(*rows)

    def _loss_of(self, row: tuple[Tensor, ...]) -> Tensor:
        batch = tree_unflatten(list(row), self._spec)
        place = (self.batch_idx,) if self._reads_place else ()
        given = self.module.training_step(batch, *place)
        loss = given.get("loss") if isinstance(given, Mapping) else given
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise SettingError(
                f"training_step gives {type(given).__name__} for a batch of one row; expected its loss, one "
                "number, or a mapping with 'loss'. A step that is left out by what is in it would show in "
                "the model.",
                field="training_step",
            )
        return loss


def own_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the losses that an `OwnStep` gives, [batch]."""
    return outputs


@contextmanager
def logging_refused(module: Any) -> Iterator[None]:
    """Reject `self.log` of a module, whose values of training rows are private."""

    def refuse(name: str, *_: Any, **__: Any) -> None:
        raise SettingError(
            f"a training step logs {name!r}, an exact value of training rows, which epsilon does not cover. "
            "Take self.log and metrics out of training_step, forward and the loss.",
            field="log",
        )

    module.log = refuse
    try:
        yield
    finally:
        del module.log


@contextmanager
def logging_allowed(module: Any) -> Iterator[None]:
    """Allow `self.log`, also within `logging_refused`."""
    refuse = vars(module).pop("log", None)
    try:
        yield
    finally:
        if refuse is not None:
            module.log = refuse


def check_training_step(own: OwnStep, row: tuple[Tensor, ...]) -> None:
    """Reject a training_step that logs, or gives no loss, on a made-up row of zeros.

    Whether model and loss can be taken row by row is the trial's to say.

    Raises:
        SettingError: says what it did.
    """
    try:
        with in_evaluation_mode(own), torch.no_grad(), logging_refused(own.module):
            own(*row)
    except SettingError:
        raise
    except Exception:
        return


class _Rows(Dataset[Any]):
    """Rows of a DataLoader's dataset, each through its `collate_fn` by itself."""

    def __init__(
        self, loader: DataLoader[Any], group: Callable[[Any], int] | None, group_names: tuple[str, ...]
    ) -> None:
        if group_names:
            self.group_names = group_names
        self._items: Any = loader.dataset
        self.repeats_rows = has_repeats(loader.dataset)
        self._collate, self._group = loader.collate_fn, group
        self._check()

    def _check(self) -> None:
        raise NotImplementedError

    def _row(self, item: Any) -> tuple[Any, Any]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, place: int) -> tuple[Any, ...]:
        item = self._items[place]
        row = self._row(item)
        return row if self._group is None else (*row, self._group(item))

    def _collate_alone(self, item: Any) -> Any:
        """A batch of one item: tensors [1, ...] in the form that the module reads."""
        try:
            return self._collate([item])
        except Exception as error:
            raise DataError(
                f"a single training row cannot be collated ({error}); expected tensors, arrays or numbers, "
                "or a collate_fn that takes one row.",
                field="collate_fn",
            ) from error


@final
class Items(_Rows):
    """Rows as `OwnStep` reads them: the tensors of a batch of one, without its first dimension.

    Attributes:
        spec: form of a batch.
        zeros: made-up batch of one.
    """

    spec: TreeSpec
    zeros: tuple[Tensor, ...]

    def _check(self) -> None:
        batch = self._collate_alone(self._items[0])
        _, self.spec = tree_flatten(batch)
        self.zeros = tuple(torch.zeros_like(each) for each in self._tensors_of(batch))

    def _row(self, item: Any) -> tuple[Any, Any]:
        return tuple(each[0] for each in self._tensors_of(self._collate_alone(item))), 0

    def _tensors_of(self, batch: Any) -> list[Tensor]:
        """Tensors of a batch of one, in the order of the first row's; a mapping's go by name."""
        try:
            found = self.spec.flatten_up_to(batch)
        except ValueError as error:
            raise DataError(
                f"collate_fn gives a training row another form than the first ({error}); expected the same "
                "names, and as many tensors, in every row.",
                field="collate_fn",
            ) from error
        odd = [type(each).__name__ for each in found if not isinstance(each, Tensor) or not each.dim()]
        if odd or not found or any(len(each) != 1 for each in found):
            raise DataError(
                f"collate_fn gives {odd or [list(each.shape) for each in found]} for one row; expected "
                "tensors whose first dimension is the batch's. Leave out names and texts.",
                field="collate_fn",
            )
        return found


@final
class Pairs(_Rows):
    """Rows as `forward` and a loss read them: (inputs, target)."""

    def _check(self) -> None:
        self._row(self._items[0])

    def _row(self, item: Any) -> tuple[Any, Any]:
        batch = as_tuples(self._collate_alone(item))
        if not (isinstance(batch, tuple) and len(batch) == 2 and isinstance(batch[1], Tensor)):
            raise DataError(
                f"the DataLoader gives {type(batch).__name__} for a batch; expected (inputs, targets), of "
                "which `loss` reads the targets. Leave `loss` out for other forms.",
                field="train_dataloaders",
            )
        inputs, target = map_tensors(lambda each: each[0], batch)
        return inputs, target


@final
class Samples:
    """Numbers of Poisson samples, from 1, instead of the batches of a DataLoader, because hooks and
    callbacks, which may log, receive what the loop receives.

    Args:
        private: takes their steps.
        per_epoch: samples of an epoch.
        trainer: Lightning's trainer, which is asked to stop if no step is left.
    """

    def __init__(self, private: Trainer, per_epoch: int, trainer: Any) -> None:
        self._private, self._per_epoch, self._trainer = private, per_epoch, trainer

    def __len__(self) -> int:
        return self._per_epoch

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(self._per_epoch):
            if self._private.steps_done >= self._private.steps:
                self._trainer.should_stop = True
                return
            yield torch.tensor(self._private.steps_done + 1)


def steps_of_epoch(loader: DataLoader[Any]) -> int:
    """Return the number of private steps in an epoch, n / b, rounded."""
    assert loader.batch_size is not None
    return max(1, round(len(loader.dataset) / loader.batch_size))  # type: ignore[arg-type]


def planned_steps(trainer: Any, loader: DataLoader[Any]) -> int:
    """Return T, of `max_steps` or `max_epochs`, whichever ends first.

    Raises:
        SettingError: neither ends training.
    """
    steps = [trainer.max_steps] if trainer.max_steps != -1 else []
    if trainer.max_epochs not in (None, -1):
        steps.append(trainer.max_epochs * steps_of_epoch(loader))
    if not steps:
        raise SettingError(
            f"max_steps={trainer.max_steps} and max_epochs={trainer.max_epochs} never end training; expected "
            "a number of one of them: epsilon is of a plan.",
            field="max_epochs",
        )
    return int(min(steps))


def checked_loader(loader: object) -> DataLoader[Any]:
    """Return a DataLoader whose rows are trained on; reject one with its own order or batches.

    Raises:
        DataError, SettingError: names the argument of the DataLoader, and what to do.
    """
    if not isinstance(loader, DataLoader) or not hasattr(loader.dataset, "__getitem__"):
        raise DataError(
            f"training data of type {type(loader).__name__}; expected a DataLoader of a dataset with __len__ "
            "and __getitem__: a Poisson sample takes rows by index.",
            field="train_dataloaders",
        )
    if loader.batch_size is None:
        raise SettingError(
            "the training DataLoader has batches of its own (batch_sampler, or batch_size=None); expected "
            "batch_size=b, the expected size of a Poisson sample.",
            field="batch_size",
        )
    plain = type(loader.sampler) is SequentialSampler or (
        type(loader.sampler) is RandomSampler
        and not loader.sampler.replacement
        and loader.sampler.num_samples == len(loader.dataset)  # type: ignore[arg-type]
    )
    if not plain:
        raise SettingError(
            f"the training DataLoader has a sampler of its own, {type(loader.sampler).__name__}; expected "
            "none: samples are Poisson samples, drawn by no other rule.",
            field="sampler",
        )
    if loader.drop_last:
        raise SettingError(
            "drop_last=True of the training DataLoader; expected False: a sample is used whole, also a small "
            "one.",
            field="drop_last",
        )
    return loader


def _more_than_a_loader() -> DataError:
    return DataError(
        "the training data are several DataLoaders, or one in a list or a mapping; expected one DataLoader, "
        "because all rows are sampled together. Put them into one dataset, and pass its DataLoader.",
        field="train_dataloaders",
    )


_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "accumulate_grad_batches": (
        (1,),
        "a sample is one step. Raise batch_size of the DataLoader, and give "
        "PrivateStrategy(physical_batch_size=...) to bound memory",
    ),
    "gradient_clip_val": ((None, 0), "the gradient of each row is clipped: set the policy's clipping bound"),
    "limit_train_batches": ((1.0,), "an epoch is n / b samples; set max_steps"),
    "overfit_batches": ((0.0,), "samples are Poisson samples; set max_steps"),
    "fast_dev_run": ((False, 0), "its steps spend privacy like others; set max_steps=1"),
    "reload_dataloaders_every_n_epochs": ((0,), "rows stay as they are while they are trained on"),
    "min_steps": ((None,), "a run may end earlier, if steps were lost or a limit is reached"),
    "precision": (
        ("32-true", "bf16-mixed", "64-true"),
        "sums are too coarse in it; use bf16-mixed",
    ),
    "world_size": ((1,), "one process on one device trains; several: torchrun with equidp.Trainer"),
}
"""Argument of Lightning's Trainer -> values that private steps support, and the reason why others are
rejected."""
_REFUSED_CALLBACKS = {
    "GradientAccumulationScheduler": "a sample is one step; raise batch_size of the DataLoader",
    "LearningRateFinder": "it chooses by exact training losses; choose by public data",
    "BatchSizeFinder": "the batch size is part of the plan; give physical_batch_size",
}
_HOOKS = {
    "backward": "private steps take the gradient of each row themselves",
    "optimizer_step": "private steps step the optimizer themselves",
    "optimizer_zero_grad": "private steps set gradients themselves",
    "configure_gradient_clipping": "the gradient of each row is clipped: set the policy's clipping bound",
    "on_before_batch_transfer": "what changes a batch may mix its rows; give PrivateStrategy(augment=...)",
    "on_after_batch_transfer": "what changes a batch may mix its rows; give PrivateStrategy(augment=...)",
    "transfer_batch_to_device": "what changes a batch may mix its rows; give PrivateStrategy(augment=...)",
}
"""Hook of a module or a data module that would not be called, or could mix rows -> the reason."""


def check_trainer(trainer: Any) -> None:
    """Reject arguments of Lightning's Trainer that break the guarantee, or that no private step carries out.

    Raises:
        SettingError: names the argument, what was expected, and what to do.
    """
    for name, (allowed, reason) in _REFUSED.items():
        value = getattr(trainer, name)
        if value not in allowed:
            raise SettingError(
                f"{name}={value!r} of the Trainer; expected {allowed[0]!r}: {reason}.", field=name
            )
    for callback in trainer.callbacks:
        for kind in type(callback).__mro__:
            if kind.__name__ in _REFUSED_CALLBACKS:
                raise SettingError(
                    f"the callback {kind.__name__} does not go with private steps: "
                    f"{_REFUSED_CALLBACKS[kind.__name__]}.",
                    field="callbacks",
                )


def check_hooks(trainer: Any) -> None:
    """Reject a module that cannot train row by row, because of manual optimization or its own hooks.

    Raises:
        SettingError: names the hook, and what to do.
    """
    module = trainer.lightning_module
    if not module.automatic_optimization:
        raise SettingError(
            "automatic_optimization=False: the module takes steps itself, which have no privacy. Expected "
            "automatic optimization, or equidp.Trainer in a loop of your own (docs/loops.md).",
            field="automatic_optimization",
        )
    bases = ((module, lightning.LightningModule), (trainer.datamodule, lightning.LightningDataModule))
    for owner, base in bases:
        for hook, reason in _HOOKS.items():
            own = getattr(type(owner), hook, None)
            if own is not None and own is not getattr(base, hook, None):
                raise SettingError(f"{type(owner).__name__} has a {hook} of its own: {reason}.", field=hook)
