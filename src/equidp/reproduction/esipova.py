"""Items of Esipova, Ghomi, Luo and Cresswell, ICLR 2023: gradient misalignment and Global-Adapt."""

from __future__ import annotations

from dataclasses import dataclass

from equidp.data.dataset import ALL
from equidp.diagnostics import DiagnosisPlan, Effort
from equidp.reproduction.compared import Compared
from equidp.reproduction.item import ESIPOVA, Claim, Found, Item, told
from equidp.reproduction.pictures import Bars, Curves

METHODS = ("dpsgd", "dpsgd-f-code", "global", "global-adapt")
_EFFORT = Effort(batches=8, gradient_examples=1000, curvature_examples=64, trace_vectors=30)
_TERMS = ("direction", "magnitude", "cosine_turned")
PAIRS = ("direction_gap", "direction_bound", "norm_bound")


@dataclass(frozen=True)
class Data:
    """One of their datasets: which groups they compare, how often they diagnose, hours of a seed."""

    name: str
    title: str
    groups: tuple[str, str]
    every: int
    hours: float
    diagnosed_hours: float
    quick_epochs: float
    seeds: int = 5
    methods: tuple[str, ...] = METHODS

    @property
    def trained(self) -> Compared:
        return Compared(
            self.name, self.methods, self.hours, quick_epochs=self.quick_epochs,
            final=("accuracy", "loss", "change", "privacy_cost", "excessive_risk", "epsilon"),
            by_epoch=("loss", "mean_gradient_norm"),
        )  # fmt: skip

    @property
    def diagnosed(self) -> Compared:
        return Compared(
            self.name, METHODS, self.diagnosed_hours, quick_epochs=self.quick_epochs,
            diagnosed=(*_TERMS, "direction_alternative", "magnitude_alternative", "largest_eigenvalue"),
            pairs=PAIRS, diagnosis=DiagnosisPlan(self.every, self.groups, _EFFORT),
        )  # fmt: skip


MNIST = Data("mnist-esipova", "MNIST", ("2", "8"), 1000, 1.0, 2.5, 1, seeds=3)
ADULT = Data("adult-esipova", "Adult", ("Male", "Female"), 250, 0.6, 0.3, 2, methods=(*METHODS, "fairlens"))
CELEBA = Data("celeba", "CelebA", ("no Eyeglasses", "Eyeglasses"), 2000, 8.0, 16.0, 0.2)
DUTCH = Data("dutch-esipova", "Dutch", ("Male", "Female"), 500, 0.1, 0.1, 2, methods=(*METHODS, "fairlens"))


def _gap(found: Found, data: Data, method: str, quantity: str) -> float:
    first, second = (
        found.mean(data=data.name, method=method, quantity=quantity, group=group) for group in data.groups
    )
    return abs(first - second)


def _below(found: Found, data: Data, quantity: str, method: str, other: str) -> bool | None:
    """Whether a method's gap between the two groups is below another's; None where one is missing."""
    gap, than = _gap(found, data, method, quantity), _gap(found, data, other, quantity)
    return told(gap < than, gap, than)


def _accuracy(found: Found, data: Data, method: str) -> float:
    return found.mean(data=data.name, method=method, quantity="accuracy", group=ALL)


def _better(found: Found, data: Data, method: str, other: str) -> bool | None:
    one, two = _accuracy(found, data, method), _accuracy(found, data, other)
    return told(one > two, one, two)


def _table(number: int, data: Data, *reasons: str) -> Item:
    return Item(
        f"esipova-table-{number}",
        ESIPOVA,
        f"Accuracy, loss, privacy cost and excessive risk on {data.title}",
        (data.trained,),
        seeds=data.seeds,
        columns=("accuracy", "loss", "privacy_cost", "excessive_risk", "epsilon"),
        claims=(
            Claim(
                "Global-Adapt has a smaller gap in privacy cost than DPSGD",
                lambda found: _below(found, data, "privacy_cost", "global-adapt", "dpsgd"),
                *reasons[:1],
            ),
            Claim(
                "Global-Adapt has a smaller gap in excessive risk than DPSGD",
                lambda found: _below(found, data, "excessive_risk", "global-adapt", "dpsgd"),
                *reasons[1:2],
            ),
            Claim(
                "Global-Adapt is more accurate than DPSGD and than Global",
                lambda found: _both(
                    _better(found, data, "global-adapt", "dpsgd"),
                    _better(found, data, "global-adapt", "global"),
                ),
                *reasons[2:3],
            ),
        ),
        pictures=(Bars("Privacy cost by group", "privacy_cost", "privacy cost"),),
        notes=(_COPY,),
    )


def _both(*held: bool | None) -> bool | None:
    return None if None in held else all(held)


_COPY = "The copy of the paper at hand has no numbers in this table: its conclusions alone are judged."


def _curves(number: int, data: Data) -> Item:
    norms = ("norm of the mean gradient", "mean_gradient_norm")
    return Item(
        f"esipova-figure-{number}",
        ESIPOVA,
        f"Loss and norm of the gradient of both groups over training on {data.title}",
        (data.trained,),
        seeds=data.seeds,
        columns=(),
        claims=(
            Claim(
                "the gap in loss between the groups over training is closer to that of SGD under "
                "Global-Adapt than under DPSGD",
                lambda found: _closer(found, data),
            ),
        ),
        pictures=(
            Curves("Mean loss over training", "loss", "mean loss", groups=data.groups),
            Curves(norms[0].capitalize(), norms[1], norms[0], groups=data.groups, logarithmic=True),
        ),
        notes=("Once an epoch, of the test data; the paper's are of the training data, at each iteration.",),
    )


def _closer(found: Found, data: Data) -> bool | None:
    def gaps(method: str) -> list[float]:
        lines = [
            found.where(data=data.name, method=method, quantity="loss", group=group).dropna(subset="at")
            for group in data.groups
        ]
        first, second = (line.sort_values("at")["mean"].tolist() for line in lines)
        return [one - other for one, other in zip(first, second, strict=True)]

    without, dpsgd, adapt = (gaps(method) for method in ("sgd", "dpsgd", "global-adapt"))
    if not without or not dpsgd or not adapt:
        return None
    off = [sum(abs(a - b) for a, b in zip(line, without, strict=False)) for line in (dpsgd, adapt)]
    return off[1] < off[0]


ITEMS = (
    _table(2, MNIST),
    _table(3, CELEBA),
    _table(4, ADULT),
    _table(5, DUTCH),
    _curves(3, DUTCH),
    _curves(8, ADULT),
    _curves(9, MNIST),
    _curves(10, CELEBA),
)
