"""Items of Yu et al. (TMLR 2023) on individual clipping, bounds, losses and models, and on releases."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from equidp.data.dataset import ALL
from equidp.reproduction.accounted import Accounted
from equidp.reproduction.costs import AccountingCosts
from equidp.reproduction.item import YU, Claim, Found, Item, Printed, told
from equidp.reproduction.pictures import Bars
from equidp.reproduction.yu import (
    CIFAR,
    EXACT,
    GENDER,
    LOSSES,
    MNIST,
    NOTES,
    above,
    below,
    correlated,
    groups_item,
    spread_by_data,
)

_COSTS = "CIFAR-10's size"


_SMALLER = replace(
    CIFAR, hours=0.15, features="scattering", longest_step=0.8, held=0, label="cifar10, features",
    changes={**CIFAR.changes, "model": "scatter-cnn", "epochs": 15, "noise_multiplier": 1.05},
)  # fmt: skip
"""A small CNN on scattering features: more accurate than ResNet-20 of 40 epochs, in a tenth of the time."""
_FEATURES = (
    "A small CNN on scattering features is trained for 15 epochs, in place of networks on pixels for 300: "
    "runs that differ by one setting are many. Learning rates are ours; a rate times its bound is the same "
    "for all bounds."
)
_TWO_LAYERS = (
    "Their network of two convolutions (Papernot et al.'s for MNIST) is trained for 40 epochs, where the "
    "paper has 300, with their learning rate and bound of 1."
)


def _at_bound(times: float) -> Accounted:
    return replace(_SMALLER, median_bound=times, label=f"cifar10, C = {times:g} medians")


_CLIPPED = tuple(
    replace(study, clipped=True, per_epoch=1, held=0, hours=2 * study.hours,
            label=f"{study.label or study.data}, individual clipping")
    for study in (_SMALLER, MNIST)
)  # fmt: skip
_BOUNDS = tuple(_at_bound(times) for times in (0.1, 0.3, 0.5, 1.5))
_HINGE = replace(
    _SMALLER, held=200, changes={**_SMALLER.changes, "loss": "equidp.reproduction.accounted:hinge"},
    label="cifar10, hinge loss",
)  # fmt: skip
_SMALL = replace(
    CIFAR, hours=0.15, median_bound=None, longest_step=1.0, label="cifar10, two-layer CNN",
    changes={**CIFAR.changes, "model": "noise-cnn", "clipping_bound": 1.0, "momentum": 0.0},
)  # fmt: skip


def _released(name: str, *values: float) -> tuple[Printed, ...]:
    return tuple(
        Printed(name, "dpsgd", ALL, "true quantile", value, at)
        for at, value in zip((0.1, 0.3, 0.5, 0.7, 0.9), values, strict=True)
    )


def _accuracies(found: Found) -> bool | None:
    names = [study.label or study.data for study in (_SMALLER, MNIST)]
    pairs = [
        (found.mean(data=name, quantity="accuracy", group=ALL),
         found.mean(data=f"{name}, individual clipping", quantity="accuracy", group=ALL))
        for name in names
    ]  # fmt: skip
    told = [abs(one - other) < 0.02 for one, other in pairs if one == one and other == other]
    return all(told) if told else None


def _shares(found: Found) -> bool | None:
    shares = [found.mean(data=str(study.label), quantity="share at the worst case") for study in _BOUNDS]
    return told(shares[0] > shares[-1], *shares)


def _attacked(found: Found) -> bool | None:
    rates = found.where(method="sgd", quantity="success of membership inference")
    epsilons = found.where(method="dpsgd", quantity="individual epsilon")
    if rates.empty or epsilons.empty:
        return None
    both = pd.merge(rates, epsilons, on=["data", "group"])
    both = both[both["group"] != ALL]
    return bool(both["mean_x"].corr(both["mean_y"], method="spearman") > 0)


_ATTACKED = tuple(
    each
    for study in (_SMALLER, GENDER)
    for each in (study, replace(study, method="sgd", held=0, median_bound=None, longest_step=None,
                                changes={**study.changes, "batch_size": 128, "learning_rate": 0.02}))
)  # fmt: skip

ITEMS = (
    Item(
        "yu-figure-7", YU, "Final training loss and epsilon with individual clipping", _CLIPPED, seeds=1,
        columns=("correlation with log loss", "epsilon"),
        claims=tuple(correlated(str(each.label), 0.9) for each in _CLIPPED), pictures=(LOSSES,),
        notes=(_FEATURES, *NOTES[1:]),
    ),
    groups_item("yu-figure-8", _SMALLER, _CLIPPED[0], notes=(_FEATURES,)),
    Item(
        "yu-figure-9", YU, "The spread of epsilons on CIFAR-10 with four clipping bounds", _BOUNDS, seeds=1,
        columns=("share at the worst case", "accuracy", "epsilon"),
        claims=(Claim("with a smaller bound more examples are at the worst case", _shares),),
        pictures=spread_by_data(_BOUNDS), notes=(_FEATURES,),
    ),
    groups_item("yu-figure-10", *_BOUNDS, notes=(_FEATURES,)),
    Item(
        "yu-figure-11", YU, "Mean epsilon and success of membership inference by group", _ATTACKED, seeds=1,
        columns=("individual epsilon", "success of membership inference"),
        claims=(
            Claim(
                "without privacy, membership is inferred better in groups whose epsilon is higher with it",
                _attacked,
            ),
        ),
        pictures=(
            Bars("Mean epsilon", "individual epsilon", "mean epsilon", sort="individual epsilon"),
            Bars("Success of membership inference", "success of membership inference", "success rate",
                 sort="individual epsilon"),
        ),
        notes=(_FEATURES, *NOTES[1:]),
    ),
    Item(
        "yu-figure-12", YU, "Final training loss and epsilon on CIFAR-10 with larger bounds",
        tuple(
            replace(_SMALLER, median_bound=None, label=f"cifar10, C = {bound:g}",
                    changes={**_SMALLER.changes, "clipping_bound": bound})
            for bound in (5.0, 10.0)
        ),
        seeds=1, columns=("correlation with log loss", "epsilon"),
        claims=tuple(correlated(f"cifar10, C = {bound}", 0.8) for bound in (5, 10)),
        pictures=(LOSSES,), notes=(_FEATURES,),
    ),
    replace(
        groups_item("yu-figure-13", _HINGE, notes=(_FEATURES,)),
        title="Estimates, accuracy and epsilon with the hinge loss",
        pictures=(EXACT, *groups_item("", _HINGE).pictures),
    ),
    replace(
        groups_item("yu-figure-14", _SMALL, notes=(_TWO_LAYERS,)),
        title="Estimates, accuracy and epsilon with a small CNN",
        pictures=(EXACT, *groups_item("", _SMALL).pictures),
    ),
    Item(
        "yu-table-1", YU, "What individual epsilons cost to compute, with rounded norms and without",
        (AccountingCosts(),), seeds=3,
        printed=(
            Printed(_COSTS, "rounded", ALL, "computations", 1e2),
            Printed(_COSTS, "not rounded", ALL, "computations", 1e7),
        ),
        columns=("computations", "seconds"),
        claims=(
            Claim(
                "rounding makes it a thousand times cheaper or more",
                lambda found: above(
                    found.mean(method="not rounded", quantity="seconds")
                    / found.mean(method="rounded", quantity="seconds"), 1000,
                ),
            ),
        ),
        notes=(
            "Norms are made up, since costs follow from their number alone: 50,000 examples, 3,600 steps. "
            "The paper's times are below 3 and about 26,000 seconds. Without rounding, 20 computations are "
            "timed and multiplied.",
        ),
    ),
    Item(
        "yu-table-2", YU, "Statistics of epsilons released with noise at epsilon .1", (MNIST, CIFAR), seeds=1,
        printed=(
            *_released("mnist-whole", 0.236, 0.318, 0.431, 0.697, 1.682),
            *_released("cifar10", 2.713, 4.892, 6.730, 7.692, 7.815),
        ),
        columns=("true quantile", "released quantile", "released mean", "individual epsilon",
                 "mean error of releases"),
        claims=tuple(
            Claim(
                f"the mean error of released quantiles on {name} is below 3%",
                lambda found, name=name: below(  # type: ignore[misc]
                    found.mean(data=name, quantity="mean error of releases"), 0.03
                ),
            )
            for name in ("mnist-whole", "cifar10")
        ),
        notes=NOTES,
    ),
    Item(
        "yu-table-3", YU, "Accuracy with individual and with one clipping bound",
        (_SMALLER, MNIST, *_CLIPPED), seeds=1,
        printed=(
            Printed("cifar10, features", "dpsgd", ALL, "accuracy", 0.741),
            Printed("cifar10, features, individual clipping", "dpsgd", ALL, "accuracy", 0.740),
            Printed("mnist-whole", "dpsgd", ALL, "accuracy", 0.9726),
            Printed("mnist-whole, individual clipping", "dpsgd", ALL, "accuracy", 0.9717),
        ),
        claims=(Claim("individual clipping changes accuracy by less than two points", _accuracies),),
        notes=(_FEATURES, *NOTES[1:]),
    ),
)  # fmt: skip
