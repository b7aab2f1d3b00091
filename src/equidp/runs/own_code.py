"""Code of the user's own that a run names: whether it may be imported, and whether it is still the same."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from equidp._parts import is_import_path
from equidp.digest import object_digest
from equidp.errors import DataError
from equidp.training.resolved import ResolvedPlan


def find_import_paths(content: Any) -> list[str]:
    """Return the import paths that the settings of a run name for a method, a model or data, anywhere."""
    paths: list[str] = []
    for name, value in content.items() if isinstance(content, dict) else enumerate(content):
        if isinstance(name, str) and is_import_path(name):  # of settings by method
            paths.append(name)
        if name in ("method", "model") and is_import_path(value):
            paths.append(value)
        if name == "data" and isinstance(value, dict) and is_import_path(value.get("name")):
            paths.append(value["name"])
        if isinstance(value, dict | list):
            paths += find_import_paths(value)
    return list(dict.fromkeys(paths))


def check_trusted(content: Any, *, trust_code: bool) -> None:
    """Raise a DataError for settings that name user-defined code, unless it is trusted."""
    if not trust_code and (paths := find_import_paths(content)):
        raise DataError(
            f"this folder names code of its own, {', '.join(paths)}; expected a part of equidp; if you "
            "trust its sender, add --trust-code (trust_code=True in Python).",
            field="trust_code",
        )


def own_code(plan: ResolvedPlan) -> dict[str, str]:
    """Digests of the user-defined code in a plan, by kind of part, for code with source."""
    parts = {"method": type(plan.policy), "model": plan.plan.factory}
    digests = {name: object_digest(part) for name, part in parts.items()}
    return {name: digest for name, digest in digests.items() if digest and not digest.startswith("equidp.")}


def check_code(
    plan: ResolvedPlan,
    facts: Mapping[str, Any],
    folder: Path,
    parts: tuple[str, ...] = ("method", "model"),
) -> None:
    """Raise a DataError if user-defined code has changed since the run in a folder began."""
    began = facts.get("own_code", {})
    now = own_code(plan)
    if changed := [part for part in parts if part in began and now.get(part) != began[part]]:
        names = {"method": plan.method, "model": plan.plan.model_name}
        listed = ", ".join(f"{part} {names[part]!r}" for part in changed)
        raise DataError(
            f"the code of {listed} is not the one that the run in {os.fspath(folder)!r} was trained with; "
            "bring back that code, or train again.",
            field=", ".join(changed),
        )
