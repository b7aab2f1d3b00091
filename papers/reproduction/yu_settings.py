"""Items of Yu et al. (TMLR 2023) on individual clipping, bounds, losses and models, and on releases."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd

from equidp.data.dataset import ALL
from papers.reproduction import yu_reasons
from papers.reproduction.accounted import Accounted
from papers.reproduction.costs import AccountingCosts
from papers.reproduction.item import YU, Claim, Found, Item, Printed, Verdict, told
from papers.reproduction.pictures import Bars
from papers.reproduction.yu import (
    CIFAR,
    EXACT,
    GENDER,
    LOSSES,
    MNIST,
    NOTES,
    RARE,
    above,
    below,
    correlated,
    estimated,
    groups_item,
    spread_by_data,
)

_COSTS = "CIFAR-10's size"


_SMALLER = replace(
    CIFAR, hours=0.08, features="scattering", longest_step=0.8, held=0, label="cifar10, features",
    changes={**CIFAR.changes, "model": "scatter-cnn", "epochs": 12, "noise_multiplier": 0.993},
)  # fmt: skip
"""A small CNN on scattering features: .65 where ResNet-20 has .57, in a thirtieth of the time."""
_FEATURES = (
    "A small CNN on scattering features is trained for 12 epochs, in place of networks on pixels for 300: "
    "runs that differ by one setting are many. Learning rates are ours, and one rate times its bound is the "
    "same for all bounds."
)
_TWO_LAYERS = (
    "Their network of two convolutions (Papernot et al.'s for MNIST) is trained for 40 epochs, where the "
    "paper has 300, with their learning rate and bound of 1 and without momentum."
)


def _at_bound(times: float) -> Accounted:
    return replace(_SMALLER, median_bound=times, label=f"cifar10, C = {times:g} medians")


_CLIPPED = tuple(
    replace(study, clipped=True, per_epoch=1, held=0, hours=1.5 * study.hours,
            label=f"{study.label or study.data}, individual clipping")
    for study in (_SMALLER, MNIST)
)  # fmt: skip
_BOUNDS = tuple(_at_bound(times) for times in (0.1, 0.3, 0.5, 1.5))
_HINGE = replace(
    _SMALLER, held=200, changes={**_SMALLER.changes, "loss": "papers.reproduction.accounted:hinge"},
    label="cifar10, hinge loss",
)  # fmt: skip
_SMALL = replace(
    CIFAR, hours=0.15, median_bound=None, longest_step=1.0, label="cifar10, two-layer CNN",
    changes={**CIFAR.changes, "model": "noise-cnn", "clipping_bound": 1.0, "momentum": 0.0},
)  # fmt: skip


def _released(name: str, mean: float, *quantiles: float) -> tuple[Printed, ...]:
    return (
        Printed(name, "dpsgd", ALL, "true mean", mean),
        *(
            Printed(name, "dpsgd", ALL, "true quantile", value, at)
            for at, value in zip((0.1, 0.3, 0.5, 0.7, 0.9), quantiles, strict=True)
        ),
    )


def _accuracies(found: Found) -> Verdict:
    changes = {
        f"on {name}": found.mean(data=f"{name}, individual clipping", quantity="accuracy", group=ALL)
        - found.mean(data=name, quantity="accuracy", group=ALL)
        for name in (study.label or study.data for study in (_SMALLER, MNIST))
    }
    return told(all(abs(change) < 0.01 for change in changes.values()), changes)


def _shares(found: Found) -> Verdict:
    shares = {
        str(study.label).removeprefix("cifar10, "): found.mean(
            data=str(study.label), quantity="share at the worst case"
        )
        for study in _BOUNDS
    }
    values = list(shares.values())
    return told(values == sorted(values, reverse=True) and values[0] > values[-1], shares)


def _risen(found: Found) -> Verdict:
    """Whether cats' mean epsilon rises more than ships' from a bound of 1.5 medians to one of .5."""
    rises = {
        f"rise of {group}": found.mean(data=str(_BOUNDS[2].label), quantity="individual epsilon", group=group)
        - found.mean(data=str(_BOUNDS[3].label), quantity="individual epsilon", group=group)
        for group in ("cat", "ship")
    }
    return told(rises["rise of cat"] > rises["rise of ship"], rises)


def _same_order(found: Found) -> Verdict:
    """Whether classes have the same order of mean epsilon with individual clipping and without."""
    plain, clipped = (
        found.where(data=str(study.label), quantity="individual epsilon").set_index("group")["mean"]
        for study in (_SMALLER, _CLIPPED[0])
    )
    correlation = plain.drop(ALL, errors="ignore").corr(clipped, method="spearman")
    return told(correlation > 1 - 1e-9, {"rank correlation": float(correlation)})


def _attacked(name: str) -> Claim:
    """The claim of the groups with the highest and the lowest mean epsilon."""

    def judge(found: Found) -> Verdict:
        rates = found.where(data=name, method="sgd", quantity="success of membership inference")
        epsilons = found.where(data=name, method="dpsgd", quantity="individual epsilon")
        both = pd.merge(rates, epsilons, on="group")
        both = both[both["group"] != ALL].set_index("group")
        if both.empty:
            return Verdict(None)
        rate, own = both["mean_x"], both["mean_y"]
        figures = {name: float(rate[name]) for name in (own.idxmax(), own.idxmin())}
        return told(rate[own.idxmax()] > rate[own.idxmin()], figures)

    return Claim(
        f"on {name}, membership in the group with the highest mean epsilon is inferred better without "
        "privacy than in the one with the lowest",
        judge,
    )


def _near_guessing(found: Found) -> Verdict:
    rows = found.where(method="dpsgd", quantity="success of membership inference")
    return below("largest distance from .5", float((rows["mean"] - 0.5).abs().max()), 0.05)


_ATTACKED = tuple(
    each
    for study in (_SMALLER, GENDER)
    for each in (study, replace(study, method="sgd", held=0, median_bound=None, longest_step=None,
                                changes={**study.changes, "batch_size": 128, "learning_rate": 0.02}))
)  # fmt: skip


def _with_claims(item: Item, *claims: Claim) -> Item:
    return replace(item, claims=(*item.claims, *claims))


def _compared(item: Item, title: str) -> Item:
    """A figure of two parts: estimates beside exact values, and groups."""
    (study,) = item.studies
    name = str(getattr(study, "label", ""))
    return replace(
        _with_claims(item, *(estimated(name, group) for group in (ALL, RARE))),
        title=title,
        columns=("correlation with exact", "accuracy", "individual epsilon", "epsilon"),
        pictures=(EXACT, *item.pictures),
    )


ITEMS = (
    Item(
        "yu-figure-7", YU, "Final training loss and epsilon with individual clipping", _CLIPPED, seeds=1,
        columns=("correlation with log loss", "epsilon"),
        claims=tuple(correlated(str(each.label), 0.9) for each in _CLIPPED), pictures=(LOSSES,),
        notes=(_FEATURES, *NOTES[1:]),
    ),
    _with_claims(
        replace(
            groups_item("yu-figure-8", _SMALLER, _CLIPPED[0], notes=(_FEATURES,)),
            title="Accuracy and mean epsilon of CIFAR-10's classes, with individual clipping and without",
        ),
        Claim("classes have the same order of mean epsilon with individual clipping", _same_order),
    ),
    Item(
        "yu-figure-9", YU, "The spread of epsilons on CIFAR-10 with four clipping bounds", _BOUNDS, seeds=1,
        columns=("share at the worst case", "accuracy", "epsilon"),
        claims=(Claim("with a smaller bound more examples are at the worst case", _shares),),
        pictures=spread_by_data(_BOUNDS),
        notes=(_FEATURES, "In print nearly 70% are at the worst case at .1 medians, and 2% at 1.5."),
    ),
    _with_claims(
        replace(
            groups_item("yu-figure-10", *_BOUNDS),
            title="Accuracy and mean epsilon of CIFAR-10's classes with four clipping bounds",
            notes=(_FEATURES, "In print cats rise from 4.8 to 7.4 and ships from 4.2 to 5.5."),
        ),
        Claim(
            "from 1.5 medians to .5, the mean epsilon of cats rises more than that of ships",
            _risen, yu_reasons.RISEN,
        ),
    ),
    Item(
        "yu-figure-11", YU, "Mean epsilon and success of membership inference by group", _ATTACKED, seeds=1,
        columns=("individual epsilon", "success of membership inference"),
        printed=tuple(
            Printed("cifar10, features", "sgd", group, "success of membership inference", value)
            for group, value in (("cat", 0.797), ("ship", 0.614))
        ),
        reasons=yu_reasons.ATTACKS,
        claims=(
            _attacked("cifar10, features"), _attacked("utkface-yu"),
            Claim("with privacy, success is within five points of guessing in every group", _near_guessing),
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
            _at_bound(times) for times in (5.0, 10.0)
        ),
        seeds=1, columns=("correlation with log loss", "accuracy", "epsilon"),
        claims=tuple(correlated(f"cifar10, C = {times} medians", 0.8) for times in (5, 10)),
        pictures=(LOSSES,),
        notes=(
            _FEATURES,
            "The paper's bounds are 5 and 10 times that of its main experiments, which is 1; its "
            "correlations are .89 and .90.",
        ),
    ),
    _compared(
        groups_item("yu-figure-13", _HINGE, notes=(_FEATURES,)),
        "Estimates, accuracy and epsilon with the hinge loss",
    ),
    _compared(
        groups_item("yu-figure-14", _SMALL, notes=(_TWO_LAYERS,)),
        "Estimates, accuracy and epsilon with a small CNN",
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
                    "times", found.mean(method="not rounded", quantity="seconds")
                    / found.mean(method="rounded", quantity="seconds"), 1000,
                ),
            ),
        ),
        notes=(
            "Norms are made up, since costs follow from their number alone: 50,000 examples, 2,400 steps. "
            "Numbers of computations follow from the method; what is measured is seconds, of one core. The "
            "paper has less than 3 and about 26,000, of five. Without rounding, 20 are timed and "
            "multiplied: each takes RdpAccountant of dp_accounting, where the paper has Opacus'.",
        ),
    ),
    Item(
        "yu-table-2", YU, "Statistics of epsilons released with noise at epsilon .1", (MNIST, CIFAR), seeds=1,
        printed=(
            *_released("mnist-whole", 0.686, 0.236, 0.318, 0.431, 0.697, 1.682),
            *_released("cifar10", 5.942, 2.713, 4.892, 6.730, 7.692, 7.815),
        ),
        columns=(
            "true mean", "released mean", "true quantile", "released quantile", "mean error of releases",
        ),
        claims=tuple(
            Claim(
                f"released figures of {name} are off by less than 3% on average (1.13% and .91% in print)",
                lambda found, name=name: below(  # type: ignore[misc]
                    "error", found.mean(data=name, quantity="mean error of releases"), 0.03
                ),
            )
            for name in ("mnist-whole", "cifar10")
        ),
        reasons=yu_reasons.RELEASES, notes=NOTES,
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
        claims=(Claim("individual clipping changes accuracy by less than a point", _accuracies),),
        reasons=yu_reasons.ACCURACIES, notes=(_FEATURES, *NOTES[1:]),
    ),
)  # fmt: skip
