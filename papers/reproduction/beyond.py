"""The papers' conclusions at well-chosen settings: those that `equidp train` takes by itself."""

from __future__ import annotations

from equidp import Diagnostics, Effort
from equidp.data.dataset import ALL
from papers.reproduction.compared import Compared
from papers.reproduction.item import BEYOND, Claim, Found, Item, Verdict
from papers.reproduction.plots import Bars, Curves
from papers.reproduction.yu import worst_over_best

_WELL_CHOSEN = {
    "model": "logistic", "batch_size": 2048, "epochs": 20, "learning_rate": 10.0, "schedule": "cosine",
    "clipping_bound": 2.0, "noise_multiplier": 2.0, "weight_decay": 0.0,
}  # fmt: skip
"""Settings of tables, from `equidp.advice.advise`; one noise multiplier for both datasets."""
_METHODS = ("dpsgd", "dpsgd-f-code", "global-adapt")
_EFFORT = Effort(batches=8, gradient_examples=2000, curvature_examples=64, trace_vectors=30)
_SETTING = (
    "Logistic regression, C 2, learning rate 10 falling as a cosine, b 2,048, 20 epochs, sigma 2: the "
    "settings that equidp train takes for tables."
)
_DATA = ("adult", "dutch")


def _direction(found: Found) -> Verdict:
    """Verdict: the mean step of DPSGD costs each group more by direction than by magnitude, on both datasets.

    Inconclusive where a group's loss falls by direction: neither is a cost then.
    """
    direction, magnitude = (
        found.where(data=_DATA, method="dpsgd", quantity=quantity).groupby(["data", "group"])["mean"].mean()
        for quantity in ("direction", "magnitude")
    )
    if set(direction.index.get_level_values("data")) != set(_DATA):
        return Verdict(None)
    figures = {
        f"{words} of {group} on {data}": float(value)
        for words, terms in (("direction", direction), ("magnitude", magnitude))
        for (data, group), value in terms.items()
    }
    costs = bool((direction > 0).all())
    return Verdict.of(bool((direction > magnitude).all()) if costs else None, figures)


def _simultaneous(found: Found) -> Verdict:
    ratios = {f"ratio on {data}": worst_over_best(found, data) for data in _DATA}
    return Verdict.of(min(ratios.values()) > 1, ratios)


def _evens(found: Found) -> Verdict:
    """Verdict: the method with the smaller gap in cost has the smaller ratio of mean epsilons."""
    held, figures = [], {}
    for data in _DATA:
        gaps, ratios = {}, {}
        for method in ("dpsgd", "dpsgd-f-code"):
            cost = found.where(data=data, method=method, quantity="change")
            own = found.where(data=data, method=method, quantity="individual epsilon")
            cost, own = (rows[rows["group"] != ALL]["mean"] for rows in (cost, own))
            gaps[method], ratios[method] = cost.max() - cost.min(), own.max() / own.min()
            figures[f"gap of {method} on {data}"] = float(gaps[method])
            figures[f"ratio of {method} on {data}"] = float(ratios[method])
        evener = min(gaps, key=lambda name: gaps[name])
        held.append(ratios[evener] == min(ratios.values()))
    return Verdict.of(all(held), figures)


ITEMS = (
    Item(
        "beyond-direction", BEYOND, "Whether direction still dominates magnitude",
        tuple(
            Compared(
                data, _METHODS, 0.3, changes=_WELL_CHOSEN,
                diagnosed=("direction", "magnitude", "cosine_turned"),
                diagnosis=Diagnostics(60, None, _EFFORT), final=("accuracy", "change", "epsilon"),
            )
            for data in _DATA
        ),
        seeds=1,
        claims=(
            Claim("direction costs each group more than magnitude, over training, in both", _direction),
        ),
        plots=(
            Curves("Excess risk by direction, Adult", "direction", "excess risk a step", data="adult"),
            Curves("Excess risk by magnitude, Adult", "magnitude", "excess risk a step", data="adult"),
            Curves("Excess risk by direction, Dutch", "direction", "excess risk a step", data="dutch"),
            Curves("Excess risk by magnitude, Dutch", "magnitude", "excess risk a step", data="dutch"),
        ),
        notes=(
            _SETTING,
            "The term of magnitude is negative in most of training: at a learning rate of 10, unclipped "
            "steps would overshoot, and clipping makes them shorter. That of direction is negative too for "
            "men on Adult, and about 0 on Dutch. An expansion to second order tells little at such a rate; "
            "in the last third of training both terms are below .01 a step.",
        ),
    ),
    Item(
        "beyond-privacy-by-group", BEYOND,
        "Whether groups with worse accuracy have worse privacy, and evening out one evens out the other",
        tuple(
            Compared(data, _METHODS, 0.05, changes=_WELL_CHOSEN, individual=True)
            for data in _DATA
        ),
        columns=("accuracy", "change", "individual epsilon", "epsilon"),
        claims=(
            Claim(
                "under DPSGD the group with the lower accuracy has the higher mean epsilon, in both",
                _simultaneous,
            ),
            Claim(
                "of DPSGD and DPSGD-F, the one with the smaller gap in cost has the smaller ratio of "
                "epsilons, in both",
                _evens,
                "DPSGD-F has the smaller gap in cost, and the larger ratio of mean epsilons. Costs are below "
                "half a point in every group here, so there is little to even out.",
            ),
        ),
        plots=(
            Bars("Accuracy less that without privacy", "change", "change of accuracy"),
            Bars("Mean epsilon of each group's examples", "individual epsilon", "mean epsilon"),
        ),
        notes=(_SETTING,),
    ),
)  # fmt: skip
