"""Methods of private training, one a file, and the table of their names. Names load on first use."""

from __future__ import annotations

from typing import Any

from equidp._lazy import lazy_names
from equidp.policies.table import METHODS, Method

__all__ = ["METHODS", "Method"]

_load = lazy_names(
    __name__,
    {
        "equidp.kernel.policy": "NoState Policy Setting",
        "equidp.policies.checks": "check_policy",
        "equidp.policies.methods": "make_policy",
    },
)


def __getattr__(name: str) -> Any:
    """Return the policy of this name from the table, or another of the names above."""
    for method in METHODS.values():
        if isinstance(method.source, str) and method.source.endswith(f":{name}"):
            return method.policy
    return _load(name)
