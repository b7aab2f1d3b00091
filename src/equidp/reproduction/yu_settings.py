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
    SETTING,
    above,
    below,
    correlated,
    groups_item,
    spread_by_data,
)

_COSTS = "CIFAR-10's size"


def _at_bound(times: float) -> Accounted:
    return replace(CIFAR, median_bound=times, held=0, label=f"cifar10, C = {times:g} medians")


_CLIPPED = tuple(
    replace(study, clipped=True, held=0, label=f"{study.data}, individual clipping")
    for study in (CIFAR, MNIST)
)
_BOUNDS = tuple(_at_bound(times) for times in (0.1, 0.3, 0.5, 1.5))
_HINGE = replace(
    CIFAR,
    changes={**CIFAR.changes, "loss": "equidp.reproduction.accounted:hinge"},
    label="cifar10, hinge loss",
)
_SMALL = replace(
    CIFAR, hours=3.6, changes={**CIFAR.changes, "model": "deep-tanh-cnn", "learning_rate": 1.0},
    label="cifar10, small CNN",
)  # fmt: skip


def _released(name: str, *values: float) -> tuple[Printed, ...]:
    return tuple(
        Printed(name, "dpsgd", ALL, "true quantile", value, at)
        for at, value in zip((0.1, 0.3, 0.5, 0.7, 0.9), values, strict=True)
    )


def _accuracies(found: Found) -> bool | None:
    pairs = [
        (found.mean(data=study.data, quantity="accuracy", group=ALL),
         found.mean(data=f"{study.data}, individual clipping", quantity="accuracy", group=ALL))
        for study in (CIFAR, MNIST)
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
    replace(study, method=method, hours=study.hours * (0.6 if method == "sgd" else 1))
    for study in (CIFAR, GENDER)
    for method in ("dpsgd", "sgd")
)

ITEMS = (
    Item(
        "yu-figure-7", YU, "Final training loss and epsilon with individual clipping", _CLIPPED, seeds=1,
        columns=("correlation with log loss", "epsilon"),
        claims=tuple(correlated(str(each.label), 0.9) for each in _CLIPPED), pictures=(LOSSES,), notes=NOTES,
    ),
    groups_item("yu-figure-8", CIFAR, _CLIPPED[0]),
    Item(
        "yu-figure-9", YU, "The spread of epsilons on CIFAR-10 with four clipping bounds", _BOUNDS, seeds=1,
        columns=("share at the worst case", "accuracy", "epsilon"),
        claims=(Claim("with a smaller bound more examples are at the worst case", _shares),),
        pictures=spread_by_data(_BOUNDS), notes=(SETTING,),
    ),
    groups_item("yu-figure-10", *_BOUNDS),
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
        notes=NOTES,
    ),
    Item(
        "yu-figure-12", YU, "Final training loss and epsilon on CIFAR-10 with larger bounds",
        tuple(
            replace(CIFAR, median_bound=None, held=0, label=f"cifar10, C = {bound:g}",
                    changes={**CIFAR.changes, "clipping_bound": bound})
            for bound in (5.0, 10.0)
        ),
        seeds=1, columns=("correlation with log loss", "epsilon"),
        claims=tuple(correlated(f"cifar10, C = {bound}", 0.8) for bound in (5, 10)),
        pictures=(LOSSES,), notes=(SETTING,),
    ),
    replace(
        groups_item("yu-figure-13", _HINGE), title="Estimates, accuracy and epsilon with the hinge loss",
        pictures=(EXACT, *groups_item("", _HINGE).pictures), notes=(SETTING,),
    ),
    replace(
        groups_item("yu-figure-14", _SMALL), title="Estimates, accuracy and epsilon with a small CNN",
        pictures=(EXACT, *groups_item("", _SMALL).pictures), notes=(SETTING,),
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
        (CIFAR, MNIST, *_CLIPPED), seeds=1,
        printed=(
            Printed("cifar10", "dpsgd", ALL, "accuracy", 0.741),
            Printed("cifar10, individual clipping", "dpsgd", ALL, "accuracy", 0.740),
            Printed("mnist-whole", "dpsgd", ALL, "accuracy", 0.9726),
            Printed("mnist-whole, individual clipping", "dpsgd", ALL, "accuracy", 0.9717),
        ),
        claims=(Claim("individual clipping changes accuracy by less than two points", _accuracies),),
        notes=NOTES,
    ),
)  # fmt: skip
