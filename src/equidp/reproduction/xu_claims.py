"""What Xu et al. (KDD 2021) conclude, as questions to figures."""

from __future__ import annotations

from equidp.data.dataset import ALL
from equidp.reproduction.item import Claim, Found, told

EQUAL = 0.05
"""The largest gap between two groups' costs that the paper calls equal, tau."""


def gap(found: Found, data: str, method: str, groups: tuple[str, ...]) -> float:
    first, second = (
        found.mean(data=data, method=method, group=group, quantity="change") for group in groups[1:]
    )
    return abs(first - second)


def narrows(data: str, groups: tuple[str, ...]) -> Claim:
    return Claim(
        f"DPSGD-F narrows the gap in cost between groups {groups[1]} and {groups[2]} of {data} that DPSGD "
        "has",
        lambda found: told(gap(found, data, "dpsgd-f-code", groups) < gap(found, data, "dpsgd", groups),
                            gap(found, data, "dpsgd-f-code", groups)),
    )  # fmt: skip


def swept(found: Found, at: float, group: str) -> float:
    rows = found.where(quantity="change", at=at, group=group, method=("dpsgd", "dpsgd-f-code"))
    return float(rows["mean"].mean())


def swept_gap(found: Found, at: float) -> float:
    return abs(swept(found, at, "2") - swept(found, at, "8"))


def least(found: Found, method: str, quantity: str) -> bool | None:
    """Whether the smallest figure of all classes is that of eights."""
    rows = found.where(data="mnist", method=method, quantity=quantity)
    rows = rows[rows["group"] != ALL]
    return None if rows.empty else bool(rows.loc[rows["mean"].idxmin(), "group"] == "8")


def spread(found: Found, method: str) -> float:
    rows = found.where(data="mnist", method=method, quantity="change")
    rows = rows[rows["group"] != ALL]
    return float(rows["mean"].max() - rows["mean"].min())


def alike(found: Found) -> bool | None:
    """Whether classes differ by less than 5 points in what DPSGD-F costs them, and by more under DPSGD."""
    fair, dpsgd = spread(found, "dpsgd-f-code"), spread(found, "dpsgd")
    return told(fair < EQUAL < dpsgd, fair, dpsgd)


def eights_highest(found: Found) -> bool | None:
    """Whether eights have the highest bound of all classes, above 2.5."""
    return told(highest_bound(found) == "8" and bound(found, "8") > 2.5, bound(found, "8"))


def bound(found: Found, group: str) -> float:
    """The mean over the later half of the epochs: noisy counts move a bound from epoch to epoch."""
    rows = found.where(data="mnist", method="dpsgd-f-code", quantity="clipping_bound", group=group)
    return float(rows.loc[rows["at"] > rows["at"].max() / 2, "mean"].mean())


def highest_bound(found: Found) -> str:
    groups = sorted(set(found.where(quantity="clipping_bound")["group"]))
    return max(groups, key=lambda group: bound(found, group), default="")


def equal_cost(data: str, groups: tuple[str, ...], method: str, name: str, otherwise: str = "") -> Claim:
    """The claim that a method has equal costs of privacy."""

    def holds(found: Found) -> bool | None:
        value = gap(found, data, method, groups)
        return told(value <= EQUAL, value)

    text = f"{name} has equal costs of privacy on {data}: the gap of groups {groups[1]} and {groups[2]}"
    return Claim(f"{text} is {EQUAL:g} at most", holds, otherwise)


def loses_less(*data: str) -> Claim:
    """The claim that DPSGD-F is more accurate than DPSGD."""

    def holds(found: Found) -> bool | None:
        pairs = [
            [
                found.mean(data=each, method=name, group=ALL, quantity="change")
                for name in ("dpsgd-f-code", "dpsgd")
            ]
            for each in data
        ]
        return told(all(one > other for one, other in pairs), *(each for pair in pairs for each in pair))

    return Claim(f"DPSGD-F loses less accuracy in all than DPSGD on {', '.join(data)}", holds)


def far_above(found: Found) -> bool | None:
    """Whether eights have three times the loss and the gradient norm of twos under DPSGD."""
    pairs = [
        [found.mean(data="mnist", method="dpsgd", group=group, quantity=quantity) for group in ("8", "2")]
        for quantity in ("loss", "mean_norm")
    ]
    return told(all(eights > 3 * twos for eights, twos in pairs), *(each for pair in pairs for each in pair))


def within_from(found: Found, start: float) -> bool | None:
    """Whether the mean gap of twos and eights over epochs from `start` on is of equal costs."""
    rows = found.where(quantity="change", method="dpsgd-f-code", group=("2", "8"))
    table = rows[rows["at"] >= start].pivot_table("mean", "at", "group")
    return None if table.empty else bool((table["2"] - table["8"]).abs().mean() <= EQUAL)
