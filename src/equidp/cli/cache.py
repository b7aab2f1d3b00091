"""`equidp cache`: tables that were too large for memory, kept on disk, and how to clear them."""

from __future__ import annotations

import time
from typing import Annotated

from cyclopts import Parameter

from equidp._validate import check_number
from equidp.cli.app import command
from equidp.display import Column, Table
from equidp.tables.cache import table_store

app = command("cache", "equidp cache", "equidp cache --clear", "equidp cache --clear --older-than 30")


@app.default
def cache_command(
    *,
    clear: Annotated[bool, Parameter(help="Remove what would be listed.")] = False,
    older_than: Annotated[float, Parameter(help="Only what was not used for so many days.")] = 0.0,
) -> None:
    """List what is kept on disk of large tables, or remove it.

    It holds rows of your tables as they are.
    All of it is recomputed where it is needed.
    """
    check_number("[0, inf]", older_than=older_than)
    latest = time.time() - 86_400 * older_than
    store = table_store()
    found = [each for each in store.entries() if not older_than or each.used <= latest]
    place = store.folder
    if clear:
        found = store.remove(*found)
    size, count = size_text(sum(each.size for each in found)), len(found)
    if clear:
        print(f"Removed {count:,} from {place}: {size}.")
        return
    if not found:
        print(f"Nothing is kept in {place}{' for so long' if older_than else ''}.")
        return
    columns = [Column(heading, "label") for heading in ("size", "last used")]
    rows = [
        (size_text(each.size), time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used)), each.what)
        for each in found
    ]
    Table([*columns, Column("what", "name")], rows).print(lines=False)
    print(f"{count:,} with {size} in {place}. They hold rows as they are; equidp cache --clear removes them.")


def size_text(size: int) -> str:
    """A number of bytes.

    >>> size_text(1_230_000_000)
    '1.2 GB'
    """
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
