"""PrivateTrainer: the Trainer of `transformers` with private steps of equidp instead of its own.

Arguments, callbacks, evaluation, checkpoints and uploads work as in the base class. It replaces what the
guarantee depends on: sampling, the step, logs about the training data, and the spending of a resumed run.
"""

from __future__ import annotations

import math
import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from equidp._extras import require_extra
from equidp._provenance import weights_digest
from equidp.accounting.planned import Schedule
from equidp.engines.model import device_of, preserve_modes
from equidp.errors import CheckpointError, DataError, ModelError, SettingError, TrainingWarning
from equidp.kernel.engine import LossFunction
from equidp.kernel.inputs import moved_to
from equidp.ledger.ledger import Ledger
from equidp.training.assemble import has_repeats
from equidp.training.optimizers import restore_scheduler
from equidp.training.plan import Plan
from equidp.training.run import Run
from equidp.training.trainer import Trainer

with require_extra("hf"):
    import transformers
    from transformers.loss.loss_utils import ForCausalLMLoss

STATE = "equidp.pt"
"""Name of the file in a checkpoint with the run's marks and the policy's state."""
LEDGER = "_ledger"
"""Name of the ledger in `output_dir`; uploads to a hub leave out files whose names begin so."""
_LOSSES_DIFFER = 1e-3
"""Difference beyond rounding between two losses of a row."""
_IGNORED = -100
"""Target of a token that has no loss, as `transformers` marks it."""


@final
@dataclass(frozen=True)
class Privacy:
    """Settings of a `PrivateTrainer` that `TrainingArguments` have no place for, as of `equidp.Trainer`.

    Attributes:
        plan: method, epsilon or noise, delta and accountant. Batch size, epochs or steps come from
            `TrainingArguments`.
        loss: (logits, labels) -> losses [batch]. None: the loss of the model's task (`task_loss`).
        engine: name of an engine.
        seed: None: samples and noise come from the operating system; a number, for research: from it.
        group_names, group_column: groups, and the column of a row that says its group, from 0. None: no
            groups.
        ledger: ledger of the steps. None: the file `_ledger` in `output_dir`.
        examples: a few public rows to try the model on, in the form of `train_dataset`'s.
    """

    plan: Plan
    loss: LossFunction | None = None
    engine: str = "auto"
    seed: int | None = None
    group_names: tuple[str, ...] = ()
    group_column: str | None = None
    ledger: Ledger | None = None
    examples: list[Any] | None = None


class PrivateTrainer(transformers.Trainer):
    """The `Trainer` of transformers, with differential privacy.

    A step draws a Poisson sample of `per_device_train_batch_size * gradient_accumulation_steps` expected
    rows. The engine processes `per_device_train_batch_size` of them at a time. Rows of a sample are collated
    together, by a collator that only pads them. Optimizer, schedule, evaluation, callbacks, checkpoints,
    `push_to_hub` and peft work as in transformers. Epsilon is logged instead of the training loss and the
    gradient norm, which are private.

    Args:
        privacy: what a private run needs in addition to `args`.
        model, args, data_collator, train_dataset, eval_dataset, processing_class, model_init,
            compute_metrics, callbacks, optimizers, preprocess_logits_for_metrics: as in
            `transformers.Trainer`. Except for padding, the collator must treat each row as it does by itself.

    Attributes:
        private_trainer: the `equidp.Trainer` of the run, once `train` was called.

    Raises:
        SettingError: arguments that break the guarantee, or that equidp does not carry out; when the trainer
            is made, or before a step is spent.

    Example:
        >>> import tempfile, torch, transformers, equidp
        >>> from equidp.integrations.hugging_face import Privacy, PrivateTrainer
        >>> rows = [{"input_ids": [1 + i % 3, 2, 3], "labels": i % 2} for i in range(64)]
        >>> config = transformers.BertConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1,
        ...                                  num_attention_heads=2, intermediate_size=8)
        >>> args = transformers.TrainingArguments(
        ...     tempfile.mkdtemp(), per_device_train_batch_size=16, max_steps=2, report_to=[],
        ...     disable_tqdm=True, save_strategy="no", logging_strategy="no")
        >>> trainer = PrivateTrainer(
        ...     privacy=Privacy(equidp.Plan(noise_multiplier=2.0, delta=1e-3)),
        ...     model=transformers.BertForSequenceClassification(config), args=args, train_dataset=rows)
        >>> trainer.train().global_step, trainer.run().epsilon() < 2
        {'epsilon': ...}
        (2, True)
    """

    def __init__(
        self,
        *,
        privacy: Privacy,
        model: nn.Module | None = None,
        args: transformers.TrainingArguments,
        data_collator: Callable[[list[Any]], dict[str, Any]] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        processing_class: Any = None,
        model_init: Callable[..., Any] | None = None,
        compute_metrics: Callable[[Any], dict[str, float]] | None = None,
        callbacks: list[Any] | None = None,
        optimizers: tuple[Any, Any] = (None, None),
        preprocess_logits_for_metrics: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        if not isinstance(privacy, Privacy):
            raise SettingError(
                f"privacy={privacy!r}; expected Privacy(equidp.Plan(epsilon=3)), say, of "
                "equidp.integrations.hugging_face."
            )
        check_arguments(args)
        for name in ("training_step", "compute_loss", "get_train_dataloader"):
            if getattr(type(self), name) is not getattr(PrivateTrainer, name):
                raise SettingError(
                    f"{type(self).__name__} has a {name} of its own, which private steps never call; give "
                    "Privacy(loss=...), a collator, or train in a loop of your own (docs/loops.md).",
                    field=name,
                )
        super().__init__(
            model=model,
            args=args,
            data_collator=data_collator,
            train_dataset=train_dataset,
            eval_dataset=eval_dataset,
            processing_class=processing_class,
            model_init=model_init,
            compute_metrics=compute_metrics,
            callbacks=callbacks,
            optimizers=optimizers,
            preprocess_logits_for_metrics=preprocess_logits_for_metrics,
        )
        self.privacy = privacy
        self.private_trainer: Trainer | None = None
        self._opened: Ledger | None = None

    def run(self) -> Run:
        """Return the private run so far: the model and what it spent.

        Raises:
            SettingError: `train` was not called.
        """
        if self.private_trainer is None:
            raise SettingError("there is no run yet; call train() first.", field="train")
        return self.private_trainer.run()

    def get_train_dataloader(self) -> Any:
        """Reject: samples are Poisson samples, which no DataLoader draws.

        Raises:
            SettingError: always.
        """
        raise SettingError(
            "a PrivateTrainer has no DataLoader of training rows: its samples are Poisson samples. Read "
            "train_dataset.",
            field="train_dataset",
        )

    def _inner_training_loop(
        self,
        batch_size: int | None = None,
        args: Any = None,
        resume_from_checkpoint: str | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        """Take the private steps that are left, with the callbacks, evaluations and checkpoints of `args`."""
        if trial is not None:
            raise SettingError(
                "a search of hyperparameters reads results of the training rows, which epsilon does not "
                "count; set them by public data.",
                field="trial",
            )
        try:
            return self._train_privately(resume_from_checkpoint, ignore_keys_for_eval)
        finally:
            if self._opened is not None:
                self._opened.close()

    def _train_privately(
        self, resume_from_checkpoint: str | None, ignore_keys_for_eval: list[str] | None
    ) -> Any:
        private = self._make_private_trainer(resume_from_checkpoint)
        schedule = Schedule(private.sample_rate, private.steps)
        epochs = math.ceil(round(schedule.steps * schedule.sample_rate, 6))
        in_an_epoch = max(1, round(1 / private.sample_rate))
        self._init_training_state(private.steps, in_an_epoch, epochs, resume_from_checkpoint, None)
        self.model_wrapped = private.model
        for name in ("model", "optimizer", "lr_scheduler"):
            setattr(self.callback_handler, name, getattr(self, name))
        self.state.global_step, self.state.epoch = private.steps_done, private.epoch
        self._globalstep_last_logged = self.state.global_step
        before = weights_digest(private.model)

        def before_optimizer(*_: Any) -> None:
            self.control = self.callback_handler.on_pre_optimizer_step(self.args, self.state, self.control)

        hook = private.optimizer.register_step_pre_hook(before_optimizer)
        try:
            self._take_steps(private, schedule, ignore_keys_for_eval)
        finally:
            hook.remove()
        return self._end_training(private, before)

    def _take_steps(
        self, private: Trainer, schedule: Schedule, ignore_keys_for_eval: list[str] | None
    ) -> None:
        """Take the steps, until none are left or a callback stops training."""
        call, args = self.callback_handler, self.args
        self.control = call.on_train_begin(args, self.state, self.control)
        if args.eval_on_start:
            self._evaluate(None, ignore_keys_for_eval, skip_scheduler=True)
        begins = True
        while private.steps_done < private.steps and not self.control.should_training_stop:
            if begins:
                self.control = call.on_epoch_begin(args, self.state, self.control)
            self.control = call.on_step_begin(args, self.state, self.control)
            with self.compute_loss_context_manager() if args.bf16 else nullcontext():
                private.step()
            self.control = call.on_optimizer_step(args, self.state, self.control)
            private.optimizer.zero_grad()
            self.state.global_step, self.state.epoch = private.steps_done, private.epoch
            self.control = call.on_step_end(args, self.state, self.control)
            self._log_save_evaluate(private, ignore_keys_for_eval)
            begins = schedule.ends_epoch(private.steps_done) or self.control.should_epoch_stop
            if begins or self.control.should_training_stop or private.steps_done == private.steps:
                self.control = call.on_epoch_end(args, self.state, self.control)
                self._log_save_evaluate(private, ignore_keys_for_eval)

    def _log_save_evaluate(self, private: Trainer, ignore_keys_for_eval: list[str] | None) -> None:
        """Log only released values; evaluate and save when due."""
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            self._globalstep_last_logged = self.state.global_step
            self.log({**private.epsilons(), "learning_rate": self._get_learning_rate()})
            self.control.should_log = False
        if self.control.should_evaluate:
            metrics = self._evaluate(None, ignore_keys_for_eval)
            best = self._determine_best_metric(metrics=metrics, trial=None)
            if self.args.save_strategy == "best":
                self.control.should_save = best
            self.control.should_evaluate = False
        if self.control.should_save:
            self._save_checkpoint(private.model, None)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
            self.control.should_save = False

    def _end_training(self, private: Trainer, before: str) -> Any:
        """End callbacks, load the best model, and warn of a training that taught nothing."""
        run = private.run()
        metrics = {"epsilon": run.epsilon(), "delta": run.delta, "private_steps": float(private.steps_done)}
        if run.not_taken:
            metrics["epsilon_of_steps_taken"] = run.epsilon_of_steps_taken()
        self.log(dict(metrics))
        moved = weights_digest(private.model) != before
        finite = all(bool(each.isfinite().all()) for each in private.model.parameters())
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None:
            self._load_best_model()
        self.control = self.callback_handler.on_train_end(self.args, self.state, self.control)
        self._finish_current_push()
        self.is_in_train = False
        warn_of_no_lesson(
            moved, finite, [each["eval_loss"] for each in self.state.log_history if "eval_loss" in each]
        )
        return transformers.trainer_utils.TrainOutput(self.state.global_step, float("nan"), metrics)

    def _make_private_trainer(self, checkpoint: str | None) -> Trainer:
        """Make the Trainer of the run; at the step of a checkpoint, if there is one."""
        args, privacy = self.args, self.privacy
        model: Any = self.model
        if self.train_dataset is None or not hasattr(self.train_dataset, "__getitem__"):
            raise DataError(
                f"train_dataset={type(self.train_dataset).__name__}; expected a dataset with __len__ and "
                "__getitem__: a Poisson sample takes rows by index.",
                field="train_dataset",
            )
        labels = self.label_names or ["labels"]
        if len(labels) > 1:
            raise SettingError(
                f"label_names={labels} of the model; expected one: a row has one target. Set label_names in "
                "TrainingArguments, or train in a loop of your own.",
                field="label_names",
            )
        train: Any = self.train_dataset
        collate = RowCollator(
            self._get_collator_with_removed_columns(self.data_collator), labels[0], privacy.group_column
        )
        if privacy.group_names:
            train = _RowsInGroups(train, privacy.group_names)
        several = args.gradient_accumulation_steps > 1
        plan = privacy.plan.with_changes(
            {"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs},
            batch_size=args.per_device_train_batch_size * args.gradient_accumulation_steps,
            physical_batch_size=args.per_device_train_batch_size if several else None,
        )
        resolved = plan.resolve(len(train))
        if self._created_lr_scheduler:
            self.lr_scheduler, self._created_lr_scheduler = None, False
        self.create_optimizer_and_scheduler(resolved.steps)
        assert self.optimizer is not None
        with naming_the_collator():
            private = Trainer(
                model,
                self.optimizer,
                train,
                resolved,
                loss=privacy.loss or checked_task_loss(model, collate, train[0]),
                engine=privacy.engine,
                seed=privacy.seed,
                scheduler=self.lr_scheduler,
                ledger=self._open_ledger(),
                examples=privacy.examples,
                collate=collate,
            )
        if checkpoint is not None:
            self._restore(private, Path(checkpoint))
        self.private_trainer = private
        return private

    @property
    def _folder(self) -> Path:
        assert self.args.output_dir is not None
        return Path(self.args.output_dir)

    def _open_ledger(self) -> Ledger:
        """Ledger of the run. One that is opened here is closed when `train` ends."""
        if self.privacy.ledger is not None:
            return self.privacy.ledger
        self._folder.mkdir(parents=True, exist_ok=True)
        self._opened = Ledger(self._folder / LEDGER)
        return self._opened

    def _restore(self, private: Trainer, folder: Path) -> None:
        """Go on from a checkpoint, whose weights `train` loaded. Its lost steps stay spent."""
        path = folder / STATE
        if not path.is_file():
            raise CheckpointError(
                f"the checkpoint {os.fspath(folder)!r} has no {STATE}: it is of a training without privacy, "
                "whose epsilon is infinite. Give a checkpoint of a PrivateTrainer.",
                field="checkpoint",
            )
        if not (folder / "optimizer.pt").is_file():
            raise CheckpointError(
                f"the checkpoint {os.fspath(folder)!r} holds only the model (save_only_model), so its run "
                "cannot be resumed; its budget stays spent. Train again with another output_dir.",
                field="checkpoint",
            )
        lost = private.restore(torch.load(path, map_location="cpu", weights_only=True))
        self._load_optimizer_and_scheduler(os.fspath(folder))
        assert self.lr_scheduler is not None
        restore_scheduler(private.scheduler, self.lr_scheduler.state_dict(), lost)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        assert self.private_trainer is not None
        folder = self._folder / f"checkpoint-{self.state.global_step}"
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(self.private_trainer.state(), folder / STATE)
        super()._save_checkpoint(model, trial)


@final
class _RowsInGroups(Dataset[Any]):
    """Rows of a dataset, with the names of their groups."""

    def __init__(self, rows: Any, group_names: tuple[str, ...]) -> None:
        self._rows, self.group_names, self.repeats_rows = rows, group_names, has_repeats(rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, place: int) -> Any:
        return self._rows[place]


@final
@dataclass(frozen=True)
class RowCollator:
    """A collator of transformers as one of `equidp.Trainer`: (inputs by name, labels), or with a group each.

    Attributes:
        collate: rows -> tensors by name, [rows, ...].
        label: name of the labels.
        group: column of a row's group. None: no groups.
    """

    collate: Callable[[list[Any]], Mapping[str, Any]]
    label: str
    group: str | None = None

    def __call__(self, rows: list[Any]) -> tuple[Any, ...]:
        """Return inputs, labels and groups of rows.

        Raises:
            DataError: the collator fails or gives no labels, or a row lacks a number of a group.
        """
        groups = None if self.group is None else torch.tensor(groups_of(rows, self.group))
        try:
            collated = dict(self.collate([dict(row) for row in rows]))
        except Exception as error:
            raise DataError(
                f"{len(rows)} of the training rows cannot be collated ({error}); give rows of one form, and "
                "a data_collator that pads them, such as transformers.DataCollatorWithPadding(tokenizer).",
                field="data_collator",
            ) from error
        if self.label not in collated:
            raise DataError(
                f"the collator gives {sorted(collated)}; expected {self.label!r} among them.",
                field="data_collator",
            )
        labels = collated.pop(self.label)
        return (collated, labels) if groups is None else (collated, labels, groups)


@contextmanager
def naming_the_collator() -> Iterator[None]:
    """Name `data_collator` in errors of the collator, which `equidp.Trainer` calls `collate`."""
    try:
        yield
    except (DataError, SettingError) as error:
        if error.field != "collate":
            raise
        raise type(error)(*error.args, field="data_collator") from error


def groups_of(rows: list[Any], column: str) -> list[int]:
    """Return the group of each row, from a column of whole numbers.

    Raises:
        DataError: a row has no whole number there.
    """
    try:
        return [operator.index(row[column]) for row in rows]
    except (KeyError, TypeError) as error:
        raise DataError(
            f"group_column={column!r} holds no whole number in some row ({type(error).__name__}); expected "
            "the number of the row's group, from 0, in a column of train_dataset.",
            field="group_column",
        ) from None  # torch and Python print what is in the row


def checked_task_loss(model: nn.Module, collate: RowCollator, row: Any) -> LossFunction:
    """Return `task_loss`, checked against the loss that the model itself returns for a row.

    Raises:
        DataError: the row cannot be collated.
        ModelError: the model has another loss, or none.
    """
    base: Any = getattr(model, "get_base_model", lambda: model)()
    config = getattr(base, "config", None)
    causal = getattr(base, "loss_function", None) is ForCausalLMLoss
    loss = task_loss(base, shifts=causal and not getattr(config, "is_encoder_decoder", False))
    inputs, labels, *_ = moved_to(collate([row]), device_of(model))
    called: Any = model
    try:
        with preserve_modes(model), torch.no_grad():
            outputs = called.eval()(**inputs, labels=labels)
            own, ours = float(outputs.loss), float(loss(outputs.logits, labels)[0])
    except Exception as error:
        raise ModelError(
            f"the loss of a row is not known: {type(base).__name__} gives none for {collate.label!r} "
            f"({error}). Give Privacy(loss=...), a function of (logits, labels) that gives one number "
            "for each row.",
            field="loss",
        ) from error
    if not math.isclose(own, ours, rel_tol=_LOSSES_DIFFER, abs_tol=_LOSSES_DIFFER):
        raise ModelError(
            f"{type(base).__name__} computes another loss than equidp knows for its task. Give "
            "Privacy(loss=...), a function of (logits, labels) that gives one number for each row.",
            field="loss",
        )
    return loss


def task_loss(model: nn.Module, *, shifts: bool) -> LossFunction:
    """Return the loss of each row of a model of transformers, by its task.

    Classes: cross entropy. Tokens: its mean over a row's tokens that have a label, shifted by one (`shifts`)
    for causal models. Numbers: the mean squared error. Several labels: the mean binary cross entropy.

    >>> logits, labels = torch.zeros(1, 3, 4), torch.tensor([[1, 2, -100]])
    >>> task_loss(torch.nn.Identity(), shifts=True)(logits, labels)
    tensor([1.3863])
    """
    kind = getattr(getattr(model, "config", None), "problem_type", None)
    numbers = kind == "regression" or (
        kind is None and getattr(getattr(model, "config", None), "num_labels", 2) == 1
    )

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        if kind == "multi_label_classification":
            each = nn.functional.binary_cross_entropy_with_logits(
                logits, labels.to(logits.dtype), reduction="none"
            )
            return each.flatten(1).mean(1)
        if numbers and labels.is_floating_point():
            return ((logits - labels.view_as(logits)) ** 2).flatten(1).mean(1)
        if logits.dim() == 2:
            return nn.functional.cross_entropy(logits, labels, reduction="none")
        if shifts:
            logits, labels = logits[:, :-1], labels[:, 1:]
        each = nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=_IGNORED
        ).view(labels.shape)
        return each.sum(1) / (labels != _IGNORED).sum(1).clamp(min=1)

    return loss


_REFUSED: dict[str, tuple[tuple[Any, ...], str]] = {
    "train_sampling_strategy": (("random",), "samples are Poisson samples, drawn by no other rule"),
    "dataloader_drop_last": ((False,), "a sample is used whole, also a small one"),
    "max_grad_norm": (
        (0, 1.0),
        "the gradient of each row is clipped instead: set the policy's clipping bound",
    ),
    "label_smoothing_factor": ((0,), "give Privacy(loss=...) that smooths labels"),
    "neftune_noise_alpha": ((None,), "its hooks were not tried under private steps"),
    "auto_find_batch_size": (
        (False,),
        "the batch size is part of the plan; raise gradient_accumulation_steps",
    ),
    "include_num_input_tokens_seen": (("no", False), "how many tokens a sample has is private"),
    "debug": (([], ""), "it prints what the model computes from private rows"),
    "fp16": ((False,), "sums are too coarse in it; use bf16"),
    "torch_compile": ((False,), "compiled models train more slowly; compile after training"),
    "use_liger_kernel": ((False,), "its kernels give no gradient of each row"),
    "deepspeed": ((None,), "one process on one device trains"),
    "fsdp": ((None, [], ""), "one process on one device trains"),
    "parallelism_config": ((None,), "one process on one device trains"),
    "world_size": ((1,), "one process on one device trains; several: torchrun with equidp.Trainer"),
    "n_gpu": ((0, 1), "one process on one device trains: set CUDA_VISIBLE_DEVICES"),
}
"""Argument -> values that private steps support, and the reason why others are rejected."""


def check_arguments(args: Any) -> None:
    """Reject `TrainingArguments` that break the guarantee, or that private steps do not carry out.

    Raises:
        SettingError: names the argument, what was expected, and what to do.
    """
    if not isinstance(args, transformers.TrainingArguments):
        raise SettingError(f"args={args!r}; expected transformers.TrainingArguments(output_dir=...).")
    for name, (allowed, reason) in _REFUSED.items():
        value = getattr(args, name, allowed[0])
        if value not in allowed:
            raise SettingError(
                f"{name}={value!r} of TrainingArguments; expected {allowed[0]!r}: {reason}.", field=name
            )


def warn_of_no_lesson(moved: bool, finite: bool, losses: list[float]) -> None:
    """Warn of a training after which weights are as before, not finite, or no better on the evaluation data.

    Args:
        moved, finite: whether the weights have changed, and are finite.
        losses: losses of the evaluations, in order.
    """
    if not finite:
        message = "weights are not finite: training diverged. Lower the learning rate."
    elif not moved:
        message = "no weight has moved. Look at the learning rate, and at which parameters are trained."
    elif len(losses) > 1 and not losses[-1] < losses[0]:
        message = (
            f"the loss on the evaluation data went from {losses[0]:.4g} to {losses[-1]:.4g}: nothing was "
            "learnt that shows there. Try another learning rate, a larger batch or a larger epsilon."
        )
    else:
        return
    warnings.warn(message, TrainingWarning, stacklevel=4)
