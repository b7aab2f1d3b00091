"""Data of one's own by import path: an object with split(seed), or a class of such objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from equidp._parts import own_part
from equidp.data.dataset import DataSplit
from equidp.errors import DataError, SettingError


@dataclass(frozen=True)
class OwnSource:
    """The source that an import path names; worker processes import it anew.

    Args:
        path: module:name, of an object with split(seed), or of a class that is made without arguments.

    Raises:
        SettingError: the path leads nowhere, or to something else.
    """

    path: str

    def __post_init__(self) -> None:
        _found(self.path)

    @property
    def part(self) -> Any:
        """What the path names: an object, or its class."""
        return own_part(self.path, "data", _splits, _EXPECTED)

    @property
    def name(self) -> str:
        """The source's own name, or its path."""
        return str(getattr(_found(self.path), "name", self.path))

    @property
    def highlighted_groups(self) -> tuple[str, str] | None:
        """The pair of groups that the source highlights, if any."""
        pair: tuple[str, str] | None = getattr(_found(self.path), "highlighted_groups", None)
        return pair

    def split(self, seed: int) -> DataSplit:
        """The source's split of this seed."""
        made = _found(self.path).split(seed)
        if not isinstance(made, DataSplit):
            raise DataError(
                f"data {self.path!r}: split({seed}) gives a {type(made).__name__}; expected an "
                "equidp.DataSplit of two equidp.GroupedDatasets, for training and testing."
            )
        return made


_EXPECTED = "an object with split(seed), or a class of such objects"


def _splits(part: Any) -> bool:
    return callable(getattr(part, "split", None))


def _found(path: str) -> Any:
    found = own_part(path, "data", _splits, _EXPECTED)
    if not isinstance(found, type):
        return found
    try:
        return found()
    except TypeError as error:
        message = f"data {path!r} is a class that needs arguments ({error}); name an object."
        raise SettingError(message) from error
