"""From a resolved plan and data to a Trainer, in one place."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset

from equidp.accounting.budget import PrivacyBudget
from equidp.data.dataset import GroupedDataset
from equidp.data.targets import weights_of_classes
from equidp.errors import SettingError
from equidp.kernel.engine import Engine, LossFunction
from equidp.kernel.generators import restore_generators
from equidp.kernel.inputs import Inputs
from equidp.kernel.ledger import Ledger
from equidp.kernel.noise import Randomness
from equidp.losses import Loss
from equidp.models import PrototypeModel
from equidp.policies.prototypes import Prototypes
from equidp.training.assemble import class_names
from equidp.training.initial_weights import mark_fresh
from equidp.training.optimizers import SGD, PrivateAdam
from equidp.training.plan import ModelFactory, ResolvedPlan
from equidp.training.trainer import Callback, Trainer


def build_model(factory: ModelFactory, shape: Sequence[int], outputs: int, seed: int | None) -> nn.Module:
    """Return a model with fresh weights; with a seed, torch's global random state stays as it was.

    Convolutions have their channels last, which makes training of LeNet on a CPU a third faster; not between
    GroupNorms, which read channels first: copies of ResNet-20's images would take a fifth of its time.

    Args:
        factory: makes the model.
        shape: of one input.
        outputs: number of classes.
        seed: of the initial weights; None: torch's global generator as it stands.
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
    plan: ResolvedPlan,
    train: GroupedDataset | Dataset[Any],
    *,
    seed: int | None,
    secure: bool,
    model: nn.Module | None = None,
    device: torch.device | None = None,
    num_groups: int | None = None,
    loss: LossFunction | None = None,
    class_weight: Mapping[str, float] | None = None,
    engine: str | Engine = "ghost",
    accountant: str = "pld",
    callbacks: Sequence[Callback] = (),
    ledger: Ledger | None = None,
    budget: PrivacyBudget | None = None,
    beyond_budget: str = "refuse",
    examples: tuple[Inputs, torch.Tensor] | None = None,
    randomness: Randomness | None = None,
    sample_rate: float | None = None,
) -> Trainer:
    """Return the Trainer of a resolved plan, checked; no step is taken and nothing is spent yet.

    Args:
        plan: made for as many examples as `train` has.
        train: the training data.
        seed: of the initial weights, and of samples and noise where `secure` is False.
        secure: draw samples and noise from the operating system. No matter where `randomness` is given.
        model: trained in place; default: a fresh one from the plan's factory.
        device: where the model is moved to, and trained; None: it is trained where it is.
        class_weight: weights of the classes' losses by name; None: those of the plan.
        num_groups, loss, engine, accountant, callbacks, ledger, budget, beyond_budget: see `Trainer`.
        examples: public rows that the model is tried on, see `Trainer`.
        randomness, sample_rate: see `Trainer`.

    Raises:
        SettingError, DataError, ModelError, BudgetError: before any budget is spent.
    """
    given = plan.plan
    if model is None:
        assert isinstance(train, GroupedDataset), (
            "another dataset does not say what its inputs look like: give a model"
        )
        model = build_model(given.factory, train.input_shape, train.num_classes, seed)
    if device is not None:
        model = model.to(device)
    if isinstance(plan.policy, Prototypes) and isinstance(model, PrototypeModel):
        callbacks = [_RecordNoise(plan.noise_multiplier * plan.learning_rate / given.batch_size), *callbacks]
    trainer = Trainer(
        model,
        make_optimizer(plan, model),
        train,
        policy=plan.policy,
        batch_size=given.batch_size,
        steps=plan.steps,
        delta=plan.delta,
        noise_multiplier=plan.noise_multiplier,
        num_groups=num_groups,
        loss=_class_weighted(
            given.loss_function if loss is None else loss,
            given.class_weights if class_weight is None else class_weight,
            train,
        ),
        engine=engine,
        accountant=accountant,
        secure=secure or randomness is not None,
        seed=None if secure or randomness is not None else seed,
        rates=plan.rates,
        bound_shares=plan.bound_shares,
        scheduler=given.schedule,
        average=given.weight_average,
        views=given.image_views,
        callbacks=callbacks,
        ledger=ledger,
        budget=budget,
        beyond_budget=beyond_budget,
        examples=examples,
        randomness=randomness,
        sample_rate=sample_rate,
    )
    trainer.plan = plan
    return trainer


class _RecordNoise(Callback):
    """Gives a model of prototypes the deviation of the noise in its weights, a public number."""

    def __init__(self, deviation: float) -> None:
        self._deviation = deviation

    def after_step(self, trainer: Trainer) -> None:
        assert isinstance(trainer.model, PrototypeModel)
        trainer.model.noise.fill_(self._deviation)


def _class_weighted(
    loss: LossFunction | None, by_class: Mapping[str, float] | None, train: GroupedDataset | Dataset[Any]
) -> LossFunction | None:
    """The loss, times the weight of the class of an example."""
    if by_class is None:
        return loss
    names = class_names(train)
    if not names:
        raise SettingError(
            "class_weight is by class names, and this data has none; leave it out.", field="class_weight"
        )
    plain = nn.CrossEntropyLoss(reduction="none") if loss is None else loss
    return Loss.of(plain).with_class_weights(weights_of_classes(by_class, names))


def make_optimizer(plan: ResolvedPlan, model: nn.Module) -> torch.optim.Optimizer:
    """The plan's optimizer for the model's parameters."""
    given, rate = plan.plan, plan.learning_rate
    if given.optimizer == "adam":
        return PrivateAdam(model.parameters(), lr=rate, weight_decay=given.weight_decay)
    return SGD(model.parameters(), lr=rate, momentum=given.momentum, weight_decay=given.weight_decay)
