"""User-defined data by import path: an object with split(seed), or a class of such objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from equidp._parts import own_part
from equidp.data.dataset import DataSplit
from equidp.errors import DataError, SettingError


@dataclass(frozen=True)
class OwnSource:
    """The source that an import path names; worker processes import it again.

    Args:
        path: module:name, an object with split(seed), or a class of such objects without arguments.
        target, group: for the source's `with_roles`; None and (): as they are.

    Raises:
        SettingError: the path names nothing or another kind of object; an unknown target or group.
    """

    path: str
    target: str | None = None
    group: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _ = self.source

    @property
    def source(self) -> Any:
        """The source object, with the given target and groups."""
        part = own_part(self.path, "data", _splits, "an object with split(seed), or a class of such objects")
        if isinstance(part, type):
            try:
                part = part()
            except TypeError as error:
                message = f"data {self.path!r} is a class that needs arguments ({error}); name an object."
                raise SettingError(message) from error
        return part.with_roles(self.target, self.group) if self.target or self.group else part

    @property
    def name(self) -> str:
        """Name of the source, or its path if it has none."""
        return str(getattr(self.source, "name", self.path))

    @property
    def highlighted_groups(self) -> tuple[str, str] | None:
        """The pair of groups that the source highlights, if any."""
        pair: tuple[str, str] | None = getattr(self.source, "highlighted_groups", None)
        return pair

    @property
    def published(self) -> Mapping[str, Any]:
        """Published settings of the source, as `equidp.default_plan` accepts them; {} if there are none."""
        settings: Mapping[str, Any] = getattr(self.source, "published", {})
        return settings

    def split(self, seed: int) -> DataSplit:
        """Return the source's split of this seed."""
        made = self.source.split(seed)
        if not isinstance(made, DataSplit):
            raise DataError(
                f"data {self.path!r}: split({seed}) gives a {type(made).__name__}; expected an "
                "equidp.DataSplit of two equidp.GroupedDatasets, for training and testing."
            )
        return made


def _splits(part: Any) -> bool:
    return callable(getattr(part, "split", None))
