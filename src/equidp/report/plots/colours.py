"""Colours, markers and lines of every plot: one colour and marker for each method, others for groups.

No colour is used for both a method and a group. Markers and line styles repeat the distinction, for
colour-blind readers and prints in grey.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

from equidp.report.summary import Kind, Summary


class Look(NamedTuple):
    """Look of a method or group: a colour, a marker of points, a style of lines."""

    colour: str
    marker: str = "o"
    line: Literal["-", "--", "-.", ":"] = "-"


METHOD_LOOKS = {
    "sgd": Look("#A3A8AF", "o"),
    "dpsgd": Look("#0072B2", "o"),
    "dpsgd-f": Look("#D55E00", "s"),
    "dpsgd-f-code": Look("#E69F00", "D"),
    "fairlens": Look("#8E5572", "$F$"),
    "naive": Look("#8C5A2B", "v"),
    "global": Look("#56B4E9", "P"),
    "global-adapt": Look("#009E73", "^"),
    "quantile": Look("#5F7A0E", "X"),
    "quantile-bounded": Look("#3D5A66", "H"),
    "softadaclip": Look("#7D8F69", "8"),
    "automatic": Look("#14AEBF", "<"),
    "psac": Look("#C7A800", ">"),
    "auto": Look("#A33B20", "*"),
}
"""Method, or "auto" -> look, the same on every page; the reference without privacy is grey."""
OWN_LOOKS = (*(Look("#93B53C", "p"), Look("#4E8A80", "h"), Look("#C39A6B", "d")),)
"""Of methods that equidp did not bring."""
GROUP_LOOKS = (
    *(Look("#C2185B"), Look("#6A4FC4", line="--"), Look("#E58AC8", line="-."), Look("#9A6FA0", line=":")),
    *(Look("#C2185B", line=":"), Look("#6A4FC4", line="-.")),
)
"""Of the groups that are named, pinks and purples; the first is the one to look at."""
OTHER_GROUPS = Look("#BBAFC4")
"""Of all other groups."""
MOST_COLOURED = 4
"""Up to this many groups, each has a colour."""
SETTING_MARKERS = "os^DvPX<>*"


def kind_looks(summary: Summary) -> dict[Kind, Look]:
    """Look of each kind of run: its method's colour; several settings have a marker each."""
    methods = method_looks(kind.method for kind in summary.kinds)
    settings = list(dict.fromkeys(kind.setting for kind in summary.private_kinds))
    looks = {}
    for kind in summary.kinds:
        look = methods[kind.method]
        if len(settings) > 1 and kind.setting in settings:
            at = settings.index(kind.setting)
            look = Look(look.colour, SETTING_MARKERS[at % len(SETTING_MARKERS)])
        looks[kind] = look
    return looks


def method_looks(names: Iterable[str]) -> dict[str, Look]:
    """Look of each method. A user-defined method's look follows from its name; the next if already in use."""
    names = list(dict.fromkeys(names))
    looks = {name: METHOD_LOOKS[name] for name in names if name in METHOD_LOOKS}
    free = list(OWN_LOOKS)
    for name in sorted(set(names) - set(looks)):
        wanted = OWN_LOOKS[zlib.crc32(name.encode()) % len(OWN_LOOKS)]
        free = free or list(OWN_LOOKS)
        looks[name] = wanted if wanted in free else free[0]
        free.remove(looks[name])
    return {name: looks[name] for name in names}


def group_looks(
    names: Sequence[str], sizes: Mapping[str, int], highlighted: Sequence[str] = ()
) -> dict[str, Look]:
    """Look of each of a few groups; of many, only the smallest and the highlighted groups have their own."""
    if len(names) <= MOST_COLOURED:
        return dict(zip(names, GROUP_LOOKS, strict=False))
    smallest = min(names, key=lambda name: sizes[name])
    chosen = list(dict.fromkeys([smallest, *highlighted]))[: len(GROUP_LOOKS)]
    return {name: GROUP_LOOKS[chosen.index(name)] if name in chosen else OTHER_GROUPS for name in names}
