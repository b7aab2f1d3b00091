"""A file as a table of its cells: CSV, compressed or not, Parquet, and folders of Parquet files.

`read` is the only reader. Arrow parses CSV with all cells as texts, and Parquet with its stored types;
`parse` decides what they mean. `with_format` detects separator and charset of a CSV file.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from equidp._extras import require_extra
from equidp.errors import DataError, EquidpError, count_text
from equidp.tables.recipe import Recipe, toml_value

with require_extra("tables"):
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv, dataset, parquet

PARQUET = (".parquet", ".pq")
SEPARATORS = ",;\t|"
_RARE_SEPARATORS = " :^~"
_COMPRESSED = (".gz", ".bz2", ".zst")
_BLOCK = 2**24
"""Bytes of a CSV file that are parsed at a time: no row may be longer."""
_SAMPLE = 2**20
"""Bytes of a CSV file that its separator is found by."""
_FEW_LINES = 3
"""Lines of a cell up to which it may look like rows of the table by chance."""
_NAMELESS = (
    "column 1 has no name, and is left out, as row names that R and pandas write; give it a name in the "
    "header to use it."
)
_UTF_16 = {b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
_QUOTED_AFTER_BLANK = r'^ +"(.*)" *$'
_AROUND_ROWS = (
    "Remove lines that stand before the header, and separators at the ends of rows; write cells with line "
    "ends between double quotes"
)


def is_file_name(name: str) -> bool:
    """Return True if a name ends as the file of a table does: .csv, .parquet, compressed or not.

    >>> is_file_name("people.csv.gz"), is_file_name("adult")
    (True, False)
    """
    path = Path(plain_name(name))
    return path.suffix.lower() in (".csv", ".tsv", ".txt", *PARQUET) or path.name != Path(name).name


def is_parquet(name: str) -> bool:
    """Return True if a name ends as a Parquet file's does."""
    return Path(name).suffix.lower() in PARQUET


def plain_name(name: str) -> str:
    """Return a file's name without the ending of a compressed file."""
    return name[: -len(Path(name).suffix)] if Path(name).suffix.lower() in _COMPRESSED else name


def read(path: Path, recipe: Recipe = Recipe(), choose: Callable[[list[str]], list[str]] = list) -> pa.Table:
    """Read the cells of a table: of CSV as texts, of Parquet as they are stored.

    Args:
        path: CSV file, Parquet file, or folder of Parquet files.
        recipe: separator and charset.
        choose: function of the names of all columns that returns those to read. A first column of CSV
            without a name has the name "": R and pandas write row names there.

    Raises:
        DataError: not a table, duplicate names, other nameless columns, or rows that are longer or shorter
            than the header.

    >>> path = getfixture("tmp_path") / "people.csv"
    >>> _ = path.write_text("zip;age\\n01067;44\\n")
    >>> read(path, Recipe(sep=";")).to_pylist()
    [{'zip': '01067', 'age': '44'}]
    """
    with _readable(path):
        if path.is_dir() or is_parquet(path.name):
            stored = _open_parquet(path)
            _check_distinct(path, names := _parquet_names(stored.schema))
            table = stored.to_table(columns=choose(names))
            table.validate(full=True)  # texts that are not UTF-8 would fail later, where they are first used
            return table
        text = _utf8(_content(path), recipe.charset)
        table, wrong = _parse(text, recipe.sep)
        _check_distinct(path, names := _header(table, recipe.sep))
        if wrong:
            raise ValueError(_wrong_width(wrong, names))
        table = table.slice(1).rename_columns(names)
        if text.count(b"\n") > table.num_rows + 1:  # within cells, or between rows
            _check_quotes(table, text, recipe.sep)
        table = table.select(choose(names))
        if f'{recipe.sep} "'.encode() in text:  # Arrow keeps quotes after a blank
            for place, name in enumerate(table.column_names):
                plain = pc.replace_substring_regex(table[name], _QUOTED_AFTER_BLANK, r"\1")
                table = table.set_column(place, name, plain)
        return table


def notes_of(cells: pa.Table) -> tuple[str, ...]:
    """Return a sentence on a nameless column of the file that cells were read from, if there is one."""
    return (_NAMELESS,) if "" in cells.column_names else ()


def names_of(path: Path, recipe: Recipe) -> list[str]:
    """Return the names of all columns of a file."""
    return [name for name in read(path, recipe).column_names if name]


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn all that can be wrong with a file into one DataError."""
    try:
        yield
    except EquidpError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"there is no file {str(path)!r}; check the path.", field="path") from error
    except (OSError, EOFError, ValueError, MemoryError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, UnicodeDecodeError):
            likely = _UTF_16.get(error.object[:2], "latin-1")
            place = f"byte {error.start + 1:,} is not {error.encoding.upper()}"
            reason = f"{place}; save a spreadsheet as CSV, or give charset in [table], such as {likely}"
        raise DataError(
            f"{path} cannot be read as a table: {reason}. Expected a CSV file with a header, or Parquet.",
            field="path",
        ) from error


def _check_distinct(path: Path, names: list[str]) -> None:
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        listed = ", ".join(map(repr, repeated[:5])) + f", and {len(repeated) - 5} more" * (len(repeated) > 5)
        raise DataError(
            f"{path} has several columns named {listed}; rename or remove all but one.",
            field=", ".join(repeated),
        )


# ------------------------------------------------------------------------------------------------------- CSV


def _content(path: Path) -> bytes:
    """Return the bytes of a file, unpacked if its name says that it is compressed."""
    if path.exists() and not path.is_file():
        raise ValueError("it is no file, and is read several times; write it to one")
    with pa.input_stream(str(path), compression="detect") as file:
        content: bytes = file.read()
    return content


def _utf8(content: bytes, charset: str) -> bytes:
    """Return a text in UTF-8 from the line of its header on, without a byte order mark."""
    if charset.lower().replace("_", "-") in ("utf-8", "utf8"):
        content.decode()  # says which byte is none of UTF-8
    else:
        content = content.decode(charset).encode()
    text = content.removeprefix("\ufeff".encode())
    if b"\0" in text[:_SAMPLE]:
        likely = "utf-16-be" if text.startswith(b"\0") else "utf-16-le"
        raise ValueError(
            f"it holds bytes that are zero: no text, or one that needs charset in [table], such as {likely}"
        )
    text = re.sub(rb"\A([ \t]*(\r\n|\r|\n))+", b"", text)
    if not text.strip():
        raise ValueError("it is empty")
    return text if re.search(b"[\r\n]", text) else text + b"\n"


def _parse(text: bytes, sep: str) -> tuple[pa.Table, list[Any]]:
    """Return all cells as texts, the header as a first row; and the rows of another width."""
    wrong: list[Any] = []

    def skip(row: Any) -> str:
        wrong.extend([row] if row.text.strip() else [])
        return "skip"

    table = csv.read_csv(
        pa.BufferReader(text),
        csv.ReadOptions(use_threads=False, block_size=_BLOCK, autogenerate_column_names=True),
        csv.ParseOptions(delimiter=sep, newlines_in_values=True, invalid_row_handler=skip),
        csv.ConvertOptions(default_column_type=pa.large_string(), strings_can_be_null=False),
    )
    return table, wrong


def _header(table: pa.Table, sep: str) -> list[str]:
    names = [re.sub(_QUOTED_AFTER_BLANK, r"\1", column[0].as_py()).strip() for column in table.columns]
    if not all(names[1:]) or names == [""]:
        place = (names.index("", 1) if len(names) > 1 else 0) + 1
        raise ValueError(f"column {place} has no name in the header; give it one. {_AROUND_ROWS}")
    others = [mark for mark in SEPARATORS if mark in names[0]]
    if len(names) == 1 and others:
        remedy = f"if {others[0]!r} separates, give sep = {toml_value(others[0])} in [table]"
        if sep in others:
            remedy = f"{sep!r} stands within double quotes there: remove those around whole lines"
        raise ValueError(f"its header {names[0]!r} is one column; {remedy}")
    return names


def _wrong_width(wrong: list[Any], names: list[str]) -> str:
    row, more = wrong[0], f", as have {len(wrong) - 1:,} more rows" * (len(wrong) > 1)
    place = f"row {row.number - 1:,}"
    if row.text.count('"') % 2 and "\n" in row.text:
        return f"a double quote in {place} or later is never closed; close or remove it"
    header = f" ({names[0]!r})" if len(names) == 1 else ""
    widths = f"{place} has {count_text(row.actual_columns, 'column')}, and the header{header} {len(names)}"
    return f"{widths}{more}. {_AROUND_ROWS}"


def _check_quotes(table: pa.Table, text: bytes, sep: str) -> None:
    """Reject double quotes by mistake, which make one cell of several rows.

    The lines of such a cell are a row from this column on, whole rows, and a row up to this column.
    """
    last_row = table.slice(max(0, table.num_rows - 1)).to_pylist()
    if text.count(b'"') % 2 and any("\n" in cell for row in last_row for cell in row.values()):
        raise ValueError(f"a double quote in row {table.num_rows:,} is never closed; close or remove it")
    width = table.num_columns - 1
    for place, name in enumerate(table.column_names):
        for at in pc.indices_nonzero(pc.match_substring(table[name], "\n")).to_pylist():
            lines = re.split("\r\n|\r|\n", table[name][at].as_py())
            first, *within, last = [line.count(sep) for line in lines]
            like_rows = (first, last) == (width - place, place) and set(within) <= {width}
            if width and like_rows and len(lines) > _FEW_LINES:
                raise ValueError(
                    f"column {name!r} holds in row {at + 1:,} a cell of {len(lines)} lines that look like "
                    "rows of the table: remove the stray double quotes before and after them"
                )


def with_format(path: Path, recipe: Recipe) -> Recipe:
    """Return the recipe with the file's separator and charset, if the recipe's do not fit.

    A charset fits if it decodes the whole file. A separator fits if it gives each of the first rows the same
    number of columns, at least two. Rare ones, such as a blank, are tried if no other fits.
    """
    if path.is_dir() or is_parquet(path.name):
        return recipe
    with _readable(path):
        content = _content(path)
        charset = _charset(content, recipe.charset)
        text = _utf8(content, charset)[:_SAMPLE]
    text = text[: text.rfind(b"\n") + 1] if len(text) == _SAMPLE else text
    for marks in ((recipe.sep,), SEPARATORS, _RARE_SEPARATORS):
        widths = {mark: _width(text, mark) for mark in marks}
        best = max(widths, key=lambda mark: widths[mark])
        if widths[best] > 1:
            return replace(recipe, charset=charset, sep=best)
    return replace(recipe, charset=charset)


def _charset(content: bytes, first: str) -> str:
    for charset in (_UTF_16.get(content[:2], first), first, "utf-8"):
        with suppress(UnicodeDecodeError):
            content.decode(charset)
            return charset
    # Latin-1 decodes anything; its control characters are letters and quotes in Windows' code page.
    windows = re.search(rb"[\x80-\x9f]", content) and not re.search(rb"[\x81\x8d\x8f\x90\x9d]", content)
    return "cp1252" if windows else "latin-1"


def _width(text: bytes, sep: str) -> int:
    """Return the number of columns that a separator gives in every row, or 0 if it differs."""
    try:
        table, wrong = _parse(text, sep)
    except pa.ArrowException:
        return 0
    whole = [row for row in wrong if row.text.count('"') % 2 == 0]  # the sample may end within a cell
    return 0 if whole else int(table.num_columns)


# --------------------------------------------------------------------------------------------------- Parquet


def _open_parquet(path: Path) -> dataset.Dataset:
    """Open a Parquet file, or all of a folder, whose columns must be the same.

    What a folder's name says, such as department=01, is a column of texts, as a CSV file would have it.
    """
    if not path.is_dir():
        _check_distinct(path, parquet.read_schema(path).names)
        return dataset.dataset(path, format="parquet")
    found = [each for each in path.rglob("*") if each.is_file()]
    files = sorted(str(each) for each in found if is_parquet(each.name) and each.name[0] not in "._")
    if not files:
        raise ValueError("the folder holds no Parquet file (.parquet)")
    open_all = partial(
        dataset.dataset, files, format="parquet", partitioning="hive", partition_base_dir=str(path)
    )
    opened = open_all()
    schemas = {each.path: each.physical_schema for each in opened.get_fragments()}
    first = set(next(iter(schemas.values())).names)
    for name, schema in schemas.items():
        if differing := sorted(first ^ set(schema.names)):
            listed = ", ".join(map(repr, differing[:5]))
            raise ValueError(f"{name} has other columns than {files[0]}: only one of them has {listed}")
    partitions = [pa.field(field.name, pa.string()) for field in opened.schema if field.name not in first]
    whole = pa.unify_schemas([*schemas.values()], promote_options="permissive")
    texts = dataset.partitioning(pa.schema(partitions), flavor="hive") if partitions else "hive"
    return open_all(schema=pa.schema([*whole, *partitions], metadata=whole.metadata), partitioning=texts)


def _parquet_names(schema: pa.Schema) -> list[str]:
    """Return the names of stored columns: an index of pandas with a name is a column of the user's, and goes
    first."""
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    index = [name for name in stored if isinstance(name, str) and name in schema.names]
    named = [name for name in index if not re.fullmatch(r"__index_level_\d+__", name)]
    return [*(index if named else []), *(name for name in schema.names if name not in index)]
