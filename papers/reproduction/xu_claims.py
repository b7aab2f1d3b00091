"""What Xu et al. (KDD 2021) conclude, as questions to figures."""

from __future__ import annotations

from equidp.data.dataset import ALL
from papers.reproduction.item import Claim, Found, Verdict, told

EQUAL = 0.05
"""The largest gap between two groups' costs that the paper calls equal, tau."""
_FAIR = ("DPSGD-F", "dpsgd-f-code")
_DPSGD = ("DPSGD", "dpsgd")


def _gap(found: Found, data: str, method: str, groups: tuple[str, ...]) -> float:
    first, second = (
        found.mean(data=data, method=method, group=group, quantity="change") for group in groups[1:]
    )
    return abs(first - second)


def narrows(data: str, groups: tuple[str, ...]) -> Claim:
    """The claim that DPSGD-F has a smaller gap in cost than DPSGD."""

    def judge(found: Found) -> Verdict:
        gaps = {name: _gap(found, data, method, groups) for name, method in (_FAIR, _DPSGD)}
        return told(gaps["DPSGD-F"] < gaps["DPSGD"], gaps)

    text = f"DPSGD-F narrows the gap in cost between groups {groups[1]} and {groups[2]} of {data}"
    return Claim(f"{text} that DPSGD has", judge)


def equal_cost(data: str, groups: tuple[str, ...], name: str, method: str, otherwise: str = "") -> Claim:
    """The claim that a method has equal costs of privacy."""

    def judge(found: Found) -> Verdict:
        value = _gap(found, data, method, groups)
        return told(value <= EQUAL, {"gap": value})

    text = f"{name} has equal costs of privacy on {data}: the gap of groups {groups[1]} and {groups[2]}"
    return Claim(f"{text} is {EQUAL:g} at most", judge, otherwise)


def loses_less(data: str) -> Claim:
    """The claim that DPSGD-F is more accurate than DPSGD."""

    def judge(found: Found) -> Verdict:
        changes = {
            name: found.mean(data=data, method=method, group=ALL, quantity="change")
            for name, method in (_FAIR, _DPSGD)
        }
        return told(changes["DPSGD-F"] > changes["DPSGD"], changes)

    return Claim(f"DPSGD-F loses less accuracy in all than DPSGD on {data}", judge)


def _by_class(found: Found, method: str, quantity: str) -> dict[str, float]:
    rows = found.where(data="mnist", method=method, quantity=quantity)
    rows = rows[rows["group"] != ALL]
    return dict(zip(rows["group"], rows["mean"].astype(float), strict=True))


def eights_lose_most(found: Found) -> Verdict:
    """Whether DPSGD costs eights the most accuracy of all classes."""
    changes = _by_class(found, "dpsgd", "change")
    if "8" not in changes:
        return Verdict(None)
    eights = changes.pop("8")
    others = min(changes, key=lambda name: changes[name])
    return told(eights < changes[others], {"8": eights, others: changes[others]})


def alike(found: Found) -> Verdict:
    """Whether classes differ by less than 5 points in what DPSGD-F costs them, and by more under DPSGD."""
    changes = {name: _by_class(found, method, "change").values() for name, method in (_FAIR, _DPSGD)}
    if not all(changes.values()):
        return Verdict(None)
    spread = {f"spread of {name}": max(each) - min(each) for name, each in changes.items()}
    return told(spread["spread of DPSGD-F"] < EQUAL < spread["spread of DPSGD"], spread)


def eights_highest(found: Found) -> Verdict:
    """Whether eights have the highest bound of all classes, above 2.5, on average over the later half.

    Noisy counts move a bound from epoch to epoch.
    """
    rows = found.where(data="mnist", method="dpsgd-f-code", quantity="clipping_bound")
    means = rows[rows["at"] > rows["at"].max() / 2].groupby("group")["mean"].mean()
    if "8" not in means:
        return Verdict(None)
    others = means.drop("8")
    figures = {"8": float(means["8"]), str(others.idxmax()): float(others.max())}
    return told(means["8"] > max(others.max(), 2.5), figures)


def far_above(found: Found) -> Verdict:
    """Whether eights have three times the loss and the gradient norm of twos under DPSGD."""
    figures = {
        f"{words} of {group}": found.mean(data="mnist", method="dpsgd", group=group, quantity=quantity)
        for words, quantity in (("loss", "loss"), ("norm", "mean_norm"))
        for group in ("8", "2")
    }
    return told(
        all(figures[f"{each} of 8"] > 3 * figures[f"{each} of 2"] for each in ("loss", "norm")), figures
    )


def _swept(found: Found, at: float, group: str) -> float:
    rows = found.where(quantity="change", at=at, group=group, method=("dpsgd", "dpsgd-f-code"))
    return float(rows["mean"].mean())


def _swept_gap(found: Found, at: float) -> float:
    return abs(_swept(found, at, "2") - _swept(found, at, "8"))


def larger_bound_helps(found: Found) -> Verdict:
    """Whether DPSGD loses less on eights at C = 5 than at C = 1, and still more than .05 beyond twos."""
    small, large = _swept(found, 1.0, "8"), _swept(found, 5.0, "8")
    gap = _swept(found, 5.0, "2") - large
    return told(
        large > small and gap > EQUAL, {"eights at C = 1": small, "at C = 5": large, "gap at C = 5": gap}
    )


def gap_shrinks(found: Found) -> Verdict:
    gaps = {f"after {epochs} epochs": _swept_gap(found, epochs) for epochs in (20, 60)}
    return told(gaps["after 60 epochs"] < gaps["after 20 epochs"], gaps)


def gap_grows(found: Found) -> Verdict:
    gaps = {f"at {sigma:g}": _swept_gap(found, sigma) for sigma in (0.6, 1.4)}
    return told(gaps["at 0.6"] <= gaps["at 1.4"], gaps)


def gap_is_equal_cost(found: Found) -> Verdict:
    largest = max(_swept_gap(found, sigma) for sigma in (0.6, 1.4))
    return told(largest <= EQUAL, {"largest gap": largest})


def within_from(found: Found, start: float) -> Verdict:
    """Whether the mean gap of twos and eights over epochs from `start` on is of equal costs."""
    rows = found.where(quantity="change", method="dpsgd-f-code", group=("2", "8"))
    table = rows[rows["at"] >= start].pivot_table("mean", "at", "group")
    if table.empty:
        return Verdict(None)
    gap = float((table["2"] - table["8"]).abs().mean())
    return told(gap <= EQUAL, {"mean gap": gap})
