"""Items of Yu, Kamath, Kulkarni, Liu, Yin and Zhang, TMLR 2023: individual privacy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd

from equidp.data.dataset import ALL
from papers.reproduction import yu_reasons
from papers.reproduction.accounted import Accounted
from papers.reproduction.item import YU, Claim, Found, Item, Verdict, told
from papers.reproduction.pictures import Bars, Curves, Points
from papers.reproduction.watchers import COMPARED, passes

_DELTA = {"delta": 1e-5, "momentum": 0.9, "batch_size": 1024}
_WATCHED: Mapping[str, Any] = {"held": 200, "attacked": True, "median_bound": 1.0, "quick_epochs": 0.1}
"""One run gives all figures of a task."""
MNIST = Accounted(
    "mnist-whole", 0.13, changes={**_DELTA, "model": "lenet", "epochs": 20, "noise_multiplier": 1.317},
    longest_step=0.15, **_WATCHED,
)  # fmt: skip
CIFAR = Accounted(
    "cifar10", 2.6,
    changes={**_DELTA, "model": "resnet20", "epochs": 40, "batch_size": 4096, "noise_multiplier": 1.416},
    longest_step=0.25, **_WATCHED,
)  # fmt: skip
_FACES: dict[str, object] = {**_DELTA, "model": "scatter-cnn", "epochs": 20}
GENDER = Accounted(
    "papers.utkface:YU", 0.11, changes={**_FACES, "noise_multiplier": 1.444}, features="scattering",
    label="utkface-yu", longest_step=0.3, **_WATCHED,
)  # fmt: skip
_AGE = Accounted(
    "papers.utkface:YOUNG", 0.1, changes={**_FACES, "noise_multiplier": 1.5}, features="scattering",
    label="utkface-young", longest_step=0.3, **_WATCHED,
)  # fmt: skip
SETTING = (
    "CIFAR-10 is trained with their ResNet-20 of 0.27 million parameters with GroupNorm for 40 epochs, where "
    "the paper has WRN16-4 for 300: one run of that takes days on two cores. The clipping bound is the "
    "median norm at initialization, as in their appendix C; their main experiments have 1."
)
_OTHERS = (
    "MNIST is trained with LeNet for 20 epochs, where the paper has ResNet-20 for 100. Their ResNet-20 for "
    "UTKFace was trained on ImageNet before; here a small CNN sees scattering features, which no data was "
    "needed for, for 20 epochs in place of 100."
)
RATES = "Learning rates, and momentum of .9, are ours; the paper refers to De et al. for CIFAR-10."
_NORMS = (
    "The paper takes norms of all examples three times an epoch. Here an example's norm is that of its last "
    "draw, which costs nothing, or of a pass over all examples every ten epochs."
)
_RENYI = (
    "Epsilons are Renyi's, as in the paper, and noise is such that the run's is theirs; shares are rounded "
    "up, not to the nearest."
)
NOTES = (SETTING, _OTHERS, RATES, _NORMS, _RENYI)
_ACCOUNT = (
    "accuracy",
    "individual epsilon",
    "share at the worst case",
    "correlation with log loss",
    "epsilon",
)


def _worse(name: str) -> Claim:
    """The claim of the groups that are served worst and best."""
    return Claim(
        f"on {name} the group with the worst accuracy has a higher mean epsilon than the one with the best",
        lambda found: above("ratio", worst_over_best(found, name), 1),
    )


def _ordered(name: str) -> Claim:
    """The claim of all classes."""
    return Claim(
        f"classes of {name} with worse accuracy have a higher mean epsilon (rank correlation below -.3)",
        lambda found: below("correlation", _ranks(found, name), -0.3),
    )


def below(name: str, value: float, than: float) -> Verdict:
    return told(value < than, {name: value})


def above(name: str, value: float, than: float) -> Verdict:
    return told(value > than, {name: value})


def _by_group(found: Found, name: str) -> pd.DataFrame:
    """Accuracy and mean epsilon of each group under DPSGD; empty where one is missing."""
    rows = found.where(data=name, method="dpsgd", quantity=("accuracy", "individual epsilon"))
    rows = rows[(rows["group"] != ALL) & rows["at"].isna()]
    table = rows.pivot_table("mean", "group", "quantity")
    return table if table.shape[1] == 2 else table.iloc[:0]


def _ranks(found: Found, name: str) -> float:
    """Spearman's correlation between the groups' accuracy and mean epsilon."""
    table = _by_group(found, name)
    return table["accuracy"].corr(table["individual epsilon"], method="spearman") if len(table) else math.nan


def worst_over_best(found: Found, name: str) -> float:
    """Mean epsilon of the group with the worst accuracy over that of the one with the best."""
    table = _by_group(found, name)
    if table.empty:
        return math.nan
    epsilons = table["individual epsilon"]
    return float(epsilons[table["accuracy"].idxmin()] / epsilons[table["accuracy"].idxmax()])


def correlated(name: str, least: float) -> Claim:
    return Claim(
        f"on {name} epsilon correlates with the log of the final loss at {least:g} or more",
        lambda found: above(
            "correlation", found.mean(data=name, quantity="correlation with log loss"), least
        ),
        yu_reasons.LOSSES,
    )


RARE = passes(COMPARED[0])


def estimated(name: str, group: str) -> Claim:
    """The claim on one way to estimate norms: ours, or the paper's rarest passes."""
    how = "norms of draws, and of a pass every ten epochs," if group == ALL else f"norms of {group}"
    return Claim(
        f"on {name} epsilons from {how} correlate with exact ones at .99 or more",
        lambda found: above(
            "correlation", found.mean(data=name, quantity="correlation with exact", group=group), 0.99
        ),
        yu_reasons.ESTIMATES,
    )


def groups_item(name: str, *studies: Accounted, notes: tuple[str, ...] = NOTES) -> Item:
    names = [study.label or study.data for study in studies]
    return Item(
        name,
        YU,
        f"Accuracy and mean epsilon of the groups of {' and '.join(names)}",
        studies,
        seeds=1,
        columns=_ACCOUNT,
        claims=(
            *map(_worse, names), *(_ordered(each) for each in names if not each.startswith("utkface")),
        ),
        pictures=(
            Bars("Mean epsilon of each group's examples", "individual epsilon", "mean epsilon",
                 sort="individual epsilon"),
            Bars("Accuracy of each, in the same order", "accuracy", "accuracy", sort="individual epsilon"),
        ),
        notes=notes,
    )  # fmt: skip


LOSSES = Points("Final loss and epsilon of 400 examples", "final loss", "epsilon of an example",
                 "final training loss", "epsilon", logarithmic=True)  # fmt: skip
_SPREAD = Curves("Epsilon below which a share of the examples lies", "quantile of epsilon", "epsilon",
                 "share of examples", by="group")  # fmt: skip
EXACT = Points("Estimated and exact epsilon of 200 examples", "exact epsilon", "estimated epsilon",
                "exact epsilon", "estimated epsilon", diagonal=True)  # fmt: skip


def spread_by_data(studies: tuple[Accounted, ...]) -> tuple[Curves, ...]:
    return tuple(
        replace(_SPREAD, title=f"{_SPREAD.title}: {each.label or each.data}", data=each.label or each.data)
        for each in studies
    )


def _more_at_worst(found: Found, one: str, other: str) -> Verdict:
    shares = {name: found.mean(data=name, quantity="share at the worst case") for name in (one, other)}
    return told(shares[one] > shares[other], shares)


def _stratified(found: Found) -> float:
    """The share of the later epochs after which cats have a larger median norm than ships and automobiles."""
    rows = found.where(data="cifar10", quantity="median norm", group=("cat", "ship", "automobile"))
    table = rows.pivot_table("mean", "at", "group")
    table = table[table.index > 0.25 * table.index.max()]
    if table.empty:
        return math.nan
    return float((table["cat"] > table[["ship", "automobile"]].max(axis=1)).mean())


_FOUR = (CIFAR, MNIST, GENDER, _AGE)

ITEMS = (
    Item(
        "yu-figure-1", YU, "The spread of individual epsilons on four tasks", _FOUR, seeds=1,
        columns=_ACCOUNT,
        claims=(
            Claim(
                "examples differ: the tenth with the lowest epsilon has less than half of the worst case "
                "on MNIST",
                lambda found: below(
                    "share of it", found.mean(data="mnist-whole", quantity="quantile of epsilon", at=0.1)
                    / found.mean(data="mnist-whole", quantity="epsilon"), 0.5,
                ),
            ),
            Claim(
                "more examples are at the worst case on CIFAR-10 than on MNIST",
                lambda found: _more_at_worst(found, "cifar10", "mnist-whole"),
            ),
        ),
        pictures=spread_by_data(_FOUR),
        notes=(
            *NOTES,
            "In print 35% of examples are at the worst case on CIFAR-10, whose epsilons are from 1.0 to 7.8, "
            "and 3% on MNIST; gender on UTKFace is from .1 to 4.5.",
        ),
    ),
    groups_item(
        "yu-figure-2", CIFAR, GENDER,
        notes=(
            *NOTES,
            "In print the group with the worst accuracy has 1.44 times the mean epsilon of the one with the "
            "best on CIFAR-10 (cats and automobiles), and 1.35 times on faces (Asian and Indian).",
        ),
    ),
    Item(
        "yu-figure-3", YU, "Median gradient norm of the classes of CIFAR-10 over training", (CIFAR,), seeds=1,
        columns=(),
        claims=(
            Claim(
                "from a fourth of the epochs on, the median norm of cats is above those of ships and of "
                "automobiles after nine of ten epochs",
                lambda found: above("share of epochs", _stratified(found), 0.9),
                yu_reasons.STRATIFIED,
            ),
        ),
        pictures=(Curves("Median norm", "median norm", "median norm", groups=("cat", "ship", "automobile")),),
        notes=(SETTING, RATES),
    ),
    Item(
        "yu-figure-4", YU, "Epsilon from estimated and from exact norms",
        (MNIST, CIFAR, GENDER), seeds=1,
        columns=("correlation with exact", "mean error of estimates", "epsilon"),
        claims=tuple(
            estimated(study.label or study.data, group)
            for study in (MNIST, CIFAR, GENDER)
            for group in (ALL, RARE)
        ),
        pictures=(
            EXACT,
            *(replace(EXACT, title=f"The same from norms taken in {often}",
                      y=f"estimated epsilon, {often}") for often in map(passes, COMPARED)),
        ),
        notes=NOTES,
    ),
    Item(
        "yu-figure-5", YU, "Final training loss and epsilon of each example, four tasks", _FOUR, seeds=1,
        columns=("correlation with log loss", "epsilon"),
        claims=tuple(correlated(each.label or each.data, 0.9) for each in _FOUR),
        pictures=(LOSSES,), notes=NOTES,
    ),
    groups_item("yu-figure-6", MNIST, _AGE),
)  # fmt: skip
