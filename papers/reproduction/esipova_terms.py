"""Items of Esipova et al. (ICLR 2023) on terms of excess risk, and on one error of clipping at a time."""

from __future__ import annotations

from papers.reproduction.compared import Ablated
from papers.reproduction.esipova import ADULT, CELEBA, DUTCH, MNIST, PAIRS, Data
from papers.reproduction.item import ESIPOVA, Claim, Found, Item, Reason, Verdict, printed_table, told
from papers.reproduction.pictures import Curves

_RISK = "excess risk a step"
_NAMES = {"DPSGD": "dpsgd", "Global": "global", "Global-Adapt": "global-adapt"}
_SMALL = (
    "A term near zero says that the shortened step lowers the loss as much as the whole one would, to second "
    "order; one below zero that it lowers it more."
)


def _terms(number: int, data: Data) -> Item:
    return Item(
        f"esipova-figure-{number}",
        ESIPOVA,
        f"Excess risk by direction and by magnitude over training on {data.title}",
        (data.diagnosed,),
        seeds=1,
        columns=(),
        claims=(
            Claim(
                "both global methods reduce the error of direction to less than a third of DPSGD's",
                lambda found: _below_dpsgd(found, data, "direction", 1 / 3),
            ),
            Claim(
                "both have a larger error of magnitude than DPSGD, after the first step",
                lambda found: _above_dpsgd(found, data, "magnitude"),
                _SMALL,
            ),
        ),
        pictures=(
            Curves("Excess risk by direction", "direction", _RISK, groups=data.groups),
            Curves("Excess risk by magnitude", "magnitude", _RISK, groups=data.groups),
            Curves("By direction (Proposition 2*)", "direction_alternative", _RISK, groups=data.groups),
            Curves("By magnitude (Proposition 2*)", "magnitude_alternative", _RISK, groups=data.groups),
            Curves("Cosine of the batch's gradient before and after clipping", "cosine_turned", "cosine",
                   groups=data.groups[:1]),
        ),
        notes=(_diagnosed(data),),
    )  # fmt: skip


def _noise(number: int, data: Data) -> Item:
    return Item(
        f"esipova-figure-{number}",
        ESIPOVA,
        f"Excess risk by noise over training on {data.title}",
        (data.diagnosed,),
        seeds=1,
        columns=(),
        claims=(
            Claim(
                "the excess risk by noise is larger under both global methods than under DPSGD",
                lambda found: _above_dpsgd(found, data, "noise"),
            ),
        ),
        pictures=(Curves("Excess risk by noise", "noise", _RISK, groups=data.groups),),
        notes=(_diagnosed(data),),
    )


def _diagnosed(data: Data) -> str:
    return (
        f"Diagnosed every {data.every} steps from 8 batches, 1,000 examples a group and 64 for products "
        "with Hessians."
    )


def _means(found: Found, data: Data, quantity: str) -> list[float]:
    """The mean term of both groups over steps after the first, under DPSGD and each global method."""
    rows = found.where(data=data.name, quantity=quantity, group=data.groups)
    rows = rows[rows["at"] > 0]
    return [float(rows[rows["method"] == method]["mean"].mean()) for method in _NAMES.values()]


def _below_dpsgd(found: Found, data: Data, quantity: str, share: float) -> Verdict:
    dpsgd, *others = means = _means(found, data, quantity)
    return told(max(others) < share * dpsgd, dict(zip(_NAMES, means, strict=True)))


def _above_dpsgd(found: Found, data: Data, quantity: str) -> Verdict:
    dpsgd, *others = means = _means(found, data, quantity)
    return told(min(others) > dpsgd, dict(zip(_NAMES, means, strict=True)))


_ACCURACY = {"magnitude": (0.990, 0.935), "direction": (0.968, 0.841)}
_LOSS = {"magnitude": (0.002, 0.005), "direction": (0.076, 0.518)}
_TOO_SHORT = (
    "With C = 1 and norms of 11 to 57, clipping leaves a twentieth of a gradient's length, so that 60 epochs "
    "at a learning rate of .01 are too few with errors of magnitude alone: after 8 epochs eights are at .15 "
    "with it, at .69 with .1 and at .79 with .3 (equidp ablate mnist-esipova --errors magnitude --epochs 8 "
    "--learning-rate .01, .1, .3)."
)
_ABLATION = Item(
    "esipova-table-1",
    ESIPOVA,
    "Training with errors of magnitude alone, and of direction alone, on MNIST",
    (Ablated("mnist-esipova", ("magnitude", "direction"), 2.0, label="MNIST"),),
    seeds=1,
    printed=(
        *printed_table("MNIST", "accuracy", ("2", "8"), _ACCURACY),
        *printed_table("MNIST", "loss", ("2", "8"), _LOSS),
    ),
    columns=("accuracy", "loss"),
    claims=(
        Claim(
            "errors of direction cost eights more than errors of magnitude",
            lambda found: _costlier(found), _TOO_SHORT,
        ),
    ),
    reasons=(
        Reason(
            "Their losses of .002 and .005 cannot be mean cross entropies of the examples that their "
            "accuracies of .990 and .935 are of: a wrong answer costs at least ln 2, so that these would be "
            "at least .007 and .045.",
            method="magnitude", quantity="loss",
        ),
        Reason(_TOO_SHORT, method="magnitude"),
        Reason(
            "One seed, on which SGD has .984 and .859 after the same epochs (esipova-table-2): direction "
            "alone is .4 points below it for twos and .9 above for eights. In print magnitude alone has .935 "
            "of eights, which SGD does not reach here, so some setting differs.",
            method="direction",
        ),
    ),
    pictures=(
        Curves("Accuracy over training", "accuracy", "accuracy", groups=("2", "8")),
    ),
)  # fmt: skip


def _costlier(found: Found) -> Verdict:
    accuracies = {
        f"eights with {name} alone": found.mean(method=name, quantity="accuracy", group="8", at=float("nan"))
        for name in ("direction", "magnitude")
    }
    by_direction, by_magnitude = accuracies.values()
    return told(by_direction < by_magnitude, accuracies)


def _bounded(found: Found) -> Verdict:
    """Whether Proposition 3's bound lies below the measured difference, and closer than the older one."""
    by_step = found.where(method="dpsgd", group="Male less Female").pivot_table("mean", "at", "quantity")
    if not {*PAIRS} <= set(by_step):
        return Verdict(None)
    below = float((by_step["direction_bound"] <= by_step["direction_gap"] + 1e-9).mean())
    above = float((by_step["direction_bound"] >= by_step["norm_bound"]).mean())
    return told(below > 0.9 and above > 0.9, {"share of steps below": below, "above": above})


_BOUNDS = Item(
    "esipova-figure-5",
    ESIPOVA,
    "Proposition 3's lower bound beside that of Tran et al., on Adult",
    (ADULT.diagnosed,),
    seeds=1,
    columns=(),
    claims=(Claim("Proposition 3's bound lies below the difference and above Tran et al.'s", _bounded),),
    pictures=tuple(
        Curves(title, name, "loss a step", groups=("Male less Female",))
        for name, title in (
            ("direction_gap", "Excess risk by direction, men less women"),
            ("direction_bound", "Proposition 3's lower bound on it"),
            ("norm_bound", "Tran et al.'s bound on the whole excess risk of clipping"),
        )
    ),
)
_ASSUMPTIONS = Item(
    "esipova-figure-7",
    ESIPOVA,
    "Largest eigenvalue of each group's Hessian, against 1 over the learning rate, on Adult",
    (ADULT.diagnosed,),
    seeds=1,
    columns=(),
    claims=(
        Claim(
            "the learning rate is below 1 over the largest eigenvalue at each diagnosed step, under DPSGD",
            lambda found: _small_steps(found),
        ),
    ),
    pictures=(
        Curves("Largest eigenvalue", "largest_eigenvalue", "largest eigenvalue", groups=("Male", "Female")),
    ),
    notes=(
        "Under Global-Adapt, whose learning rate is .2, an eigenvalue reaches 7.3, which is above 1 / .2 "
        "(seed 0).",
    ),
)


def _small_steps(found: Found) -> Verdict:
    largest = float(found.where(method="dpsgd", quantity="largest_eigenvalue")["mean"].max())
    return told(largest <= 1 / 0.01, {"largest eigenvalue": largest})


ITEMS = (
    _ABLATION,
    _terms(4, ADULT),
    _BOUNDS,
    _ASSUMPTIONS,
    _terms(11, DUTCH),
    _terms(12, MNIST),
    _terms(13, CELEBA),
    _noise(14, ADULT),
    _noise(15, DUTCH),
    _noise(16, MNIST),
    _noise(17, CELEBA),
)
