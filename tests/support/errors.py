"""Checks of errors by type and field; what the messages say is free to change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from equidp.errors import EquidpError


@contextmanager
def raises_field(
    kind: type[EquidpError], field: str, *given: object
) -> Iterator[pytest.ExceptionInfo[EquidpError]]:
    """Expect an error of a type that names a field, such as an argument, an option or a column.

    Args:
        kind: of the error.
        field: name of what is wrong.
        *given: what the message has to hold beside, such as a value, a path or another name.
    """
    with pytest.raises(kind) as caught:
        yield caught
    assert caught.value.field == field, f"field {caught.value.field!r} in: {caught.value}"
    for each in given:
        assert str(each) in str(caught.value), f"no {each!r} in: {caught.value}"
