"""From a resolved plan and data to a Trainer, in one place."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch
from torch import nn

from equidp.data.dataset import GroupedDataset
from equidp.errors import SettingError
from equidp.individual.settings import Individual
from equidp.kernel.engine import Engine, LossFunction
from equidp.kernel.generators import restore_generators
from equidp.kernel.noise import Randomness
from equidp.ledger.ledger import Ledger
from equidp.models import PrototypeModel
from equidp.policies.prototypes import Prototypes
from equidp.training.initial_weights import mark_fresh
from equidp.training.optimizers import SGD, PrivateAdam
from equidp.training.plan import ModelFactory
from equidp.training.resolved import ResolvedPlan
from equidp.training.trainer import Callback, Trainer


def build_model(factory: ModelFactory, shape: Sequence[int], outputs: int, seed: int | None) -> nn.Module:
    """Return a model with fresh weights; with a seed, torch's global random state stays as it was.

    Convolutions use the channels-last format, which trains LeNet a third faster on a CPU. Between GroupNorms,
    which read channels first, they do not: copies of ResNet-20's images would take a fifth of its time.

    Args:
        factory: makes the model.
        shape: shape of one input.
        outputs: number of classes.
        seed: seed of the initial weights. None: torch's global generator as it stands.
    """
    if not callable(factory) or isinstance(factory, nn.Module):
        raise SettingError(
            f"model={type(factory).__name__}; expected a name, or a function of (shape of an input, number "
            "of outputs) that makes a module.",
            field="model",
        )
    if seed is None:
        model = _make_module(factory, shape, outputs)
    else:
        with restore_generators():
            torch.manual_seed(seed)
            model = _make_module(factory, shape, outputs)
            if not any(isinstance(module, nn.GroupNorm) for module in model.modules()):
                model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    mark_fresh(model)
    return model


def _make_module(factory: ModelFactory, shape: Sequence[int], outputs: int) -> nn.Module:
    """Return what a factory makes; a SettingError unless it takes the two arguments and makes a module."""
    try:
        inspect.signature(factory).bind((), 0)
    except TypeError as error:
        raise SettingError(
            f"model is a function that does not take (shape of an input, number of outputs): {error}.",
            field="model",
        ) from error
    except ValueError:  # of a function without a signature
        pass
    model = factory(tuple(shape), outputs)
    if not isinstance(model, nn.Module):
        raise SettingError(
            f"model is a function that gave a {type(model).__name__}; expected a torch.nn.Module.",
            field="model",
        )
    return model


def build(
    resolved: ResolvedPlan,
    data: GroupedDataset,
    *,
    weights_seed: int | None,
    seed: int | Randomness | None = None,
    model: nn.Module | None = None,
    device: torch.device | None = None,
    loss: LossFunction | None = None,
    engine: str | Engine = "auto",
    callbacks: Sequence[Callback] = (),
    individual: Individual | None = None,
    ledger: Ledger | tuple[Ledger, str] | None = None,
) -> Trainer:
    """Return the Trainer of a resolved plan, with its model and optimizer. Nothing is spent yet.

    Args:
        resolved: for the training data.
        data: training data.
        weights_seed: seed of the initial weights.
        model: trained in place. Default: a fresh one from the plan's factory.
        device: device to move the model to for training. None: it is trained where it is.
        seed, loss, engine, callbacks, individual, ledger: see `Trainer`.

    Raises:
        SettingError, DataError, ModelError, BudgetError: before anything is spent.
    """
    plan = resolved.plan
    if model is None:
        model = build_model(plan.factory, data.input_shape, data.num_classes, weights_seed)
    if device is not None:
        model = model.to(device)
    if isinstance(resolved.policy, Prototypes) and isinstance(model, PrototypeModel):
        deviation = resolved.noise_multiplier * resolved.learning_rate / plan.batch_size
        callbacks = [_RecordNoise(deviation), *callbacks]
    trainer = Trainer(
        model,
        make_optimizer(resolved, model),
        data,
        resolved,
        loss=loss,
        engine=engine,
        callbacks=callbacks,
        individual=individual,
        ledger=ledger,
        seed=seed,
    )
    trainer.plan = resolved
    return trainer


class _RecordNoise(Callback):
    """Gives a model of prototypes the deviation of the noise in its weights, a public number."""

    def __init__(self, deviation: float) -> None:
        self._deviation = deviation

    def after_step(self, trainer: Trainer) -> None:
        assert isinstance(trainer.model, PrototypeModel)
        trainer.model.noise.fill_(self._deviation)


def make_optimizer(plan: ResolvedPlan, model: nn.Module) -> torch.optim.Optimizer:
    """The plan's optimizer for the model's parameters."""
    given, rate = plan.plan, plan.learning_rate
    if given.optimizer == "adam":
        return PrivateAdam(model.parameters(), lr=rate, weight_decay=given.weight_decay)
    return SGD(model.parameters(), lr=rate, momentum=given.momentum, weight_decay=given.weight_decay)
