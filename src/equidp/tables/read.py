"""Cells of a file as Arrow columns: CSV, compressed or not, Parquet, and folders of Parquet files.

`read_cells` parses a CSV file once, into memory, and leaves Parquet where it is, to be read column by column.
Cells of CSV are texts. Those of Parquet are numbers, truths and times by their type, and texts as a CSV file
would hold them otherwise.
`with_format` finds separator and charset of a CSV file.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import dataclasses
import gzip
import hashlib
import io
import itertools
import lzma
import os
import re
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, TextIO, final

from equidp._extras import require_extra
from equidp.errors import DataError, EquidpError, count_text
from equidp.tables.cells import texts
from equidp.tables.recipe import Recipe

with require_extra("tables"):
    import pandas as pd
    import pandas.core.arrays.arrow.extension_types  # so that Arrow knows pandas' periods and intervals
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import dataset, parquet

PARQUET = (".parquet", ".pq")
SEPARATORS = ",;\t|"
_RARE_SEPARATORS = " :^~"
_BATCH_ROWS = 2**17
_STREAMED: dict[str, Any] = {  # row by row, without reading ahead
    "batch_readahead": 0,
    "fragment_readahead": 0,
    "use_threads": False,
    "fragment_scan_options": dataset.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False),
}
_CHUNK = 2**22
_SAMPLE_ROWS = 200
_STARTS = (
    (rb"\xff\xfe|\xfe\xff", "utf-16"),
    (rb"[^\0]\0", "utf-16-le"),
    (rb"\0[^\0]", "utf-16-be"),
)
"""First bytes of texts, and the charset that they speak for: a byte order mark, or zeros beside a letter."""
_COMPRESSED = (".gz", ".bz2", ".xz", ".zip", ".zst")
_UNREADABLE = (
    *(OSError, EOFError, ValueError, OverflowError, MemoryError, csv.Error, pd.errors.ParserWarning),
    *(pa.ArrowException, lzma.LZMAError, zlib.error, zipfile.BadZipFile),
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


@final
@dataclass(frozen=True, eq=False)
class Cells:
    """Cells of a table.

    Attributes:
        names: of the columns.
        rows: number of rows.
        stored: of CSV, in memory; of Parquet, the files.
        path: of the file, for messages.
        stamp: of the files of Parquet, which must not change while they are read.
        notes: sentences on a first column without a name, and on cells that hold line ends.
    """

    names: tuple[str, ...]
    rows: int
    stored: pa.Table | dataset.Dataset
    path: Path = Path()
    stamp: list[tuple[str, int, int]] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, table: pd.DataFrame) -> Cells:
        """Return the cells of a table in memory.

        >>> Cells.of(pd.DataFrame({"zip": ["01067"], "age": [44]})).series("zip").tolist()
        ['01067']
        """
        stored = pa.Table.from_pandas(table, preserve_index=False)
        return cls(tuple(stored.schema.names), len(table), stored)

    @property
    def on_disk(self) -> bool:
        """True for Parquet, which is read where a column is asked for."""
        return isinstance(self.stored, dataset.Dataset)

    def series(self, name: str) -> pd.Series:
        """Return a whole column; of Parquet, nothing else is read."""
        if isinstance(self.stored, pa.Table):
            return _as_series(_one_array(self.stored.column(name)))
        with readable(self.path):
            column = self.stored.to_table(columns=[name]).column(0)
            # Without this, texts that are not UTF-8 would fail later, where they are first used.
            column.validate(full=True)
            self._check_unchanged()
            found = _as_series(_one_array(column))
        pa.default_memory_pool().release_unused()
        return found

    def batches(self, names: Sequence[str], size: int) -> Iterator[dict[str, pd.Series]]:
        """Yield these columns, `size` rows at a time."""
        if isinstance(self.stored, pa.Table):
            chosen = self.stored.select(names)
            parts: Iterable[pa.Table] = (chosen[start : start + size] for start in range(0, self.rows, size))
        else:
            parts = self._scan(self.stored, names, size)
        for part in parts:
            yield {name: _as_series(_one_array(part.column(name))) for name in names}

    def _scan(self, stored: dataset.Dataset, names: Sequence[str], size: int) -> Iterator[pa.Table]:
        rest: pa.Table | None = None
        with readable(self.path):
            for batch in stored.to_batches(columns=list(names), batch_size=size, **_STREAMED):
                batch.validate(full=True)
                part = pa.Table.from_batches([batch])
                rest = part if rest is None else pa.concat_tables([rest, part])
                while rest.num_rows >= size:
                    yield rest[:size]
                    rest = rest[size:]
                    pa.default_memory_pool().release_unused()  # else it keeps what the largest columns took
            self._check_unchanged()
        if rest is not None and rest.num_rows:
            yield rest

    def _check_unchanged(self) -> None:
        if stamp(self.path) != self.stamp:
            raise DataError(
                f"{os.fspath(self.path)!r} changed while it was read; try again when it is complete.",
                field="path",
            )


def _as_series(cells: pa.Array) -> pd.Series:
    if pa.types.is_temporal(cells.type):
        times: pd.Series = cells.to_pandas()
        return times
    if pa.types.is_string(cells.type):
        return pd.Series(pd.array(cells, dtype="string[pyarrow]"))
    return pd.Series(pd.arrays.ArrowExtensionArray(cells))


def read_cells(
    path: Path, recipe: Recipe = Recipe(), choose: Callable[[list[str]], list[str]] = list
) -> Cells:
    """Read a table once; of Parquet, names and number of rows alone.

    A first column of a CSV file that has no name is left out: R and pandas write row names there.

    Args:
        path: CSV file, Parquet file, or folder of Parquet files.
        recipe: separator and charset.
        choose: function of the names of all columns that returns those to read.

    Raises:
        DataError: not a table, duplicate names, or other nameless columns.
    """
    if path.is_dir() or is_parquet(path.name):
        with readable(path):
            before, stored = stamp(path), parquet_dataset(path)
            check_distinct(path, all_names := parquet_names(stored.schema))
            return Cells(tuple(choose(all_names)), stored.count_rows(), stored, path, before)
    with ExitStack() as stack:
        with readable(path):
            text = stack.enter_context(open_csv(path, recipe))
            check_distinct(path, text.named)
        try:
            names, seen = choose(text.named), LineEnds()
        except DataError:  # an unknown column: is the first line a header? A longer row says that it is not
            with readable(path):
                if reason := text.long_row():
                    raise ValueError(reason) from None
            raise
        with readable(path):
            parts = [*_csv_batches(text, recipe, names, seen)]
            schema = pa.schema([(name, pa.string()) for name in names])
            stored = pa.Table.from_batches(parts, schema)
        return Cells(
            tuple(names),
            sum(part.num_rows for part in parts),
            stored,
            path,
            notes=(*text.notes, *seen.notes()),
        )


def written_rows(path: Path, recipe: Recipe, names: list[str], size: int) -> Iterator[pd.DataFrame]:
    """Yield these columns as they are written, `size` rows at a time."""
    for batch in read_cells(path, recipe, lambda _: names).batches(names, size):
        yield pd.DataFrame({name: texts(cells) for name, cells in batch.items()})


def check_distinct(path: Path, columns: Iterable[object]) -> None:
    """Raise unless the names of the columns differ."""
    names = [str(name) for name in columns]
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    if repeated:
        listed = ", ".join(map(repr, repeated[:5])) + f", and {len(repeated) - 5} more" * (len(repeated) > 5)
        raise DataError(
            f"{path} has several columns named {listed}; rename or remove all but one.",
            field=", ".join(repeated),
        )


def check_read_twice(path: Path, why: str) -> None:
    """Raise where a file can be read once only, such as a pipe; `why` says what needs it twice."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise DataError(
            f"{path} can be read only once, and {why}: write it to a file, and give that.", field="path"
        )


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn all that can be wrong with a file into one DataError."""
    try:
        yield
    except EquidpError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"there is no file {str(path)!r}; check the path.", field="path") from error
    except _UNREADABLE as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        if isinstance(error, UnicodeDecodeError):
            place = f"byte {error.start + 1:,} is not {error.encoding.upper()}"
            likely = _charset_of_start(path) or "latin-1"
            reason = f"{place}; give its --charset, such as {likely}"
        raise DataError(
            f"{path} cannot be read as a table: {reason}. Expected a CSV file with a header, or Parquet; "
            "equidp inspect finds the separator and the charset of a file.",
            field="path",
        ) from error


def _charset_of_start(path: Path) -> str | None:
    """Return the charset that the first bytes of a file speak for; None where none do, or of a folder."""
    if not path.is_file():
        return None
    with open_bytes(path) as file:
        start = file.read(4)
    return next((name for mark, name in _STARTS if re.match(mark, start, re.DOTALL)), None)


def stamp(path: Path) -> list[tuple[str, int, int]]:
    """Return name, size and time of the last change of each file, to detect changed files."""
    files = sorted(each for each in path.rglob("*") if each.is_file()) if path.is_dir() else [path]
    found = [(each, each.stat()) for each in files]
    return [(os.path.relpath(each, path), facts.st_size, facts.st_mtime_ns) for each, facts in found]


def content_digest(path: Path) -> str:
    """Return a checksum of a file, or of all files of a folder with their names."""
    digest = hashlib.sha256()
    for name, size, _ in stamp(path):
        digest.update(f"{name if path.is_dir() else ''}:{size}:".encode())
        with (path / name if path.is_dir() else path).open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def open_bytes(path: Path) -> IO[bytes]:
    """Open a file to read, and unpack it where its name says that it is compressed."""
    kind = path.suffix.lower()
    if kind == ".zip":
        archive = zipfile.ZipFile(path)  # open as long as what is read from it
        names = [name for name in archive.namelist() if not name.endswith("/")]
        if len(names) != 1:
            raise ValueError(f"it holds {len(names)} files; expected one")
        return archive.open(names[0])
    if kind == ".zst":
        return io.BufferedReader(pa.CompressedInputStream(pa.OSFile(str(path)), "zstd"))
    openers: dict[str, Any] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
    opened: IO[bytes] = openers.get(kind, open)(path, "rb")
    return opened


def parquet_dataset(path: Path) -> dataset.Dataset:
    """Open a Parquet file, or all of a folder, whose columns must be the same.

    What a folder's name says, such as department=01, is a column of texts, as a CSV file would have it.

    Raises:
        ValueError: files of other columns, or none.
    """
    if not path.is_dir():
        check_distinct(path, parquet.read_schema(path).names)
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


def parquet_names(schema: pa.Schema) -> list[str]:
    """Return the names of stored columns: an index of pandas with a name is a column of the user's, and goes
    first."""
    stored = (schema.pandas_metadata or {}).get("index_columns", [])
    index = [name for name in stored if isinstance(name, str) and name in schema.names]
    named = [name for name in index if not re.fullmatch(r"__index_level_\d+__", name)]
    return [*(index if named else []), *(name for name in schema.names if name not in index)]


def _plain_cells(stored: pa.Array) -> pa.Array:
    """Return numbers, also beside missing ones, truths and times by their type, and others as texts.

    Dates are points in time. What is neither, such as a list, stays as it is.
    """
    kind = stored.type
    if pa.types.is_dictionary(kind):
        return _plain_cells(stored.cast(kind.value_type))
    if isinstance(kind, pa.BaseExtensionType) or pa.types.is_time(kind):  # periods, intervals, UUIDs
        values = pa.chunked_array([stored]).to_pandas()
        values = pd.Series(values, dtype=object) if pa.types.is_time(kind) else values
        return pa.array(values.astype("string"), type=pa.string(), from_pandas=True)
    if pa.types.is_date(kind):
        return stored.cast(pa.timestamp("s" if pa.types.is_date32(kind) else "ms"))
    if pa.types.is_null(kind) or pa.types.is_string_view(kind) or pa.types.is_large_string(kind):
        return stored.cast(pa.string())
    return (
        stored.cast(pa.binary()) if pa.types.is_binary_view(kind) else stored
    )  # pandas computes with no views


def text_charset(recipe: Recipe) -> str:
    """Return the charset of a CSV file; UTF-8 may begin with a byte order mark."""
    plain = recipe.charset.lower().replace("_", "-") in ("utf-8", "utf8")
    return "utf-8-sig" if plain else recipe.charset


@final
@dataclass(frozen=True, eq=False)
class CsvText:
    """A CSV file that was read up to its first row.

    Attributes:
        path: of the file.
        file: positioned after the header.
        names: of the columns; "" is a first column without a name.
        sep: the separator.
        lines: number of lines before the first row: the header, and blank ones.
    """

    path: Path
    file: TextIO
    names: list[str]
    sep: str
    lines: int

    @property
    def named(self) -> list[str]:
        """Names of the columns that have one."""
        return [name for name in self.names if name]

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentence on a first column without a name, if there is one."""
        if self.names[0]:
            return ()
        return (
            "column 1 has no name, and is left out, as row names that R and pandas write; "
            "give it a name in the header to use it.",
        )

    def rows(self, size: int) -> Iterator[pd.DataFrame]:
        """Yield the rows as texts, so many at a time.

        Raises:
            ValueError: a row has more columns than the header; says which one.
        """
        try:
            with warnings.catch_warnings():
                # pandas drops values of rows longer than the header, with a warning alone.
                warnings.simplefilter("error", pd.errors.ParserWarning)
                parts = pd.read_csv(
                    self.file,
                    header=None,
                    dtype=str,
                    sep=self.sep,
                    na_filter=False,
                    skipinitialspace=True,
                    names=range(len(self.names)),
                    index_col=False,
                    chunksize=size,
                )
                for rows in parts:
                    rows.columns = pd.Index(self.names)
                    yield rows
        except (pd.errors.ParserWarning, pd.errors.ParserError) as error:
            raise ValueError(self.long_row() or _open_quote(str(error)) or str(error)) from error

    def long_row(self) -> str:
        """The first row that is longer than the header, in words; "" where it is not found."""
        if not self.path.is_file():
            return ""
        width, blank = len(self.names), True
        charset = self.file.encoding
        with open_bytes(self.path) as stored, io.TextIOWrapper(stored, charset, newline="") as file:
            lines = itertools.islice(file, self.lines, None)
            rows = (row for row in csv.reader(lines, delimiter=self.sep, skipinitialspace=True) if row)
            for at, row in enumerate(rows):
                blank &= not any(row[width:])
                if len(row) > width:
                    where = "one is empty at its end" if blank else "what they are, the header does not say"
                    header = f" ({self.names[0]!r})" if width == 1 else ""
                    return (
                        f"row {at + 1:,} has {len(row)} columns, and the header{header} {width}; {where}. "
                        "Remove lines that stand before the header, and separators at the ends of rows"
                    )
        return ""


def _open_quote(message: str) -> str:
    """Return the reason of an error of pandas in words where a quote has no end, else ""."""
    found = re.search(r"EOF inside string starting at row (\d+)", message)
    if found is None:
        return ""
    return f"a double quote in row {int(found[1]) + 1:,} or later is never closed; close or remove it"


@contextmanager
def open_csv(path: Path, recipe: Recipe) -> Iterator[CsvText]:
    """Open a CSV file and read its header; blank lines before it are skipped, as between rows.

    Raises:
        ValueError: there is no header, another name than the first is empty, or it has another separator.
    """
    with open_bytes(path) as stored, io.TextIOWrapper(stored, text_charset(recipe), newline="") as file:
        lines = _Counted(file)
        line = next((each for each in lines if each.strip()), "")
        sep = recipe.sep
        rows = csv.reader(itertools.chain([line], lines), delimiter=sep, skipinitialspace=True)
        cells = next(rows, [])
        if any("\0" in cell for cell in cells):
            likely = _charset_of_start(path) or "utf-16"
            raise ValueError(f"its header holds bytes that are zero; give its --charset, such as {likely}")
        yield CsvText(path, file, _header(cells, sep), sep, lines.count)


def _csv_batches(text: CsvText, recipe: Recipe, names: list[str], seen: LineEnds) -> Iterator[pa.RecordBatch]:
    for rows in text.rows(_BATCH_ROWS):
        used = [name for name in names if name not in recipe.columns("drop")]
        seen.add(rows, {*SEPARATORS, recipe.sep}, used)
        arrays = [_one_array(pa.array(rows[name], type=pa.string(), from_pandas=True)) for name in names]
        yield pa.record_batch(arrays, names)


def _one_array(cells: pa.Array | pa.ChunkedArray) -> pa.Array:
    """Return cells as one array, of the types of `_plain_cells`."""
    if isinstance(cells, pa.Array):
        return _plain_cells(cells)
    parts = [_plain_cells(part) for part in cells.chunks or [pa.array([], cells.type)]]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def names_of(path: Path, recipe: Recipe) -> list[str]:
    """Return the names of all columns of a file; ValueError where the first row of a CSV file is longer."""
    if path.is_dir() or is_parquet(path.name):
        return parquet_names(parquet_dataset(path).schema)
    with open_csv(path, recipe) as text:
        first: list[str] = next(csv.reader(text.file, delimiter=text.sep, skipinitialspace=True), [])
        if len(first) > len(text.names) and (reason := text.long_row()):
            raise ValueError(reason)
        return text.named


class _Counted:
    """The lines of a file, and how many were read."""

    def __init__(self, file: TextIO) -> None:
        self._file, self.count = file, 0

    def __iter__(self) -> _Counted:
        return self

    def __next__(self) -> str:
        line = next(self._file)
        self.count += 1
        return line


def _header(cells: list[str], sep: str) -> list[str]:
    if not cells:
        raise ValueError("it is empty")
    names = [name.strip() for name in cells]
    if not all(names[1:]) or names == [""]:
        place = (names.index("", 1) if len(names) > 1 else 0) + 1
        raise ValueError(
            f"column {place} has no name in the header; give it one. Remove lines that stand before the "
            "header, and separators at the ends of rows"
        )
    others = [mark for mark in ",;\t|" if mark in names[0]]
    if len(names) == 1 and others:
        mark = "tab" if others[0] == "\t" else others[0]
        remedy = f"if {mark!r} separates, give --sep '{mark}'"
        if sep in others:
            remedy = f"{sep!r} stands within double quotes there: remove those around whole lines"
        raise ValueError(f"its header {names[0]!r} is one column; {remedy}")
    return names


@final
class LineEnds:
    """Counts cells of texts that hold line ends: stray double quotes make one cell of several rows.

    >>> seen = LineEnds()
    >>> seen.add(pd.DataFrame({"job": ["cook", "clerk\\nnurse"], "sex": ["F", "M"]}), ",;", ["job"])
    >>> seen.notes()[0].split(";")[0]
    "column 'job' holds line ends in 1 cell, the first in row 2, which has 1 of them"
    """

    def __init__(self) -> None:
        self._rows = 0
        self._found: dict[str, list[int]] = {}

    def add(self, rows: pd.DataFrame, separators: Iterable[str], used: Iterable[str]) -> None:
        """Count cells with line ends in the next rows; in unused columns, those that look like rows.

        Raises:
            ValueError: between the line ends of a cell stand rows.
        """
        width = len(rows.columns) - 1
        for name in rows.columns:
            if rows[name].dtype not in ("str", object):
                continue
            cells = pa.array(rows[name], type=pa.string(), from_pandas=True)
            broken = pc.or_(pc.match_substring(cells, "\n"), pc.match_substring(cells, "\r"))
            for at in pc.indices_nonzero(broken).to_pylist():
                lines = re.split("\r\n|\r|\n", rows[name].iloc[at])
                row = self._rows + int(at) + 1
                counts = ([line.count(sep) for line in lines] for sep in separators)
                like_rows = any(set(n[1:-1]) <= {width} and n[0] + n[-1] >= width for n in counts)
                if like_rows and len(lines) > 3:
                    raise ValueError(
                        f"column {name!r} holds in row {row:,} a cell of {len(lines)} lines that look like "
                        "rows of the table: remove the stray double quotes before and after them"
                    )
                if like_rows or name in used:
                    self._found.setdefault(name, [0, row, len(lines) - 1])[0] += 1
        self._rows += len(rows)

    def notes(self) -> list[str]:
        """Return a sentence for each column."""
        return [
            f"column {name!r} holds line ends in {count_text(count, 'cell')}, the first in row {row:,}, "
            f"which has {ends:,} of them; if double quotes stand there by mistake, rows between them are "
            "lost: remove these."
            for name, (count, row, ends) in self._found.items()
        ]


def with_format(path: Path, recipe: Recipe) -> Recipe:
    """Return the recipe with the file's separator and charset, where those of the recipe do not fit it.

    A charset fits if it decodes the whole file; a separator fits if it gives each of the first 200 rows
    the same number of columns, at least two. Rare ones, such as a blank, are tried where no other fits.

    Raises:
        OSError, ValueError and others of `open_bytes`: the file cannot be read.
    """
    if is_parquet(path.name):
        return recipe
    charset = _charset(path, recipe.charset)
    for marks in ((recipe.sep,), SEPARATORS, _RARE_SEPARATORS):
        widths = {mark: _width(path, charset, mark) for mark in marks}
        best = max(widths, key=lambda mark: widths[mark])
        if widths[best] > 1:
            return dataclasses.replace(recipe, charset=charset, sep=best)
    return dataclasses.replace(recipe, charset=charset)


def _charset(path: Path, first: str) -> str:
    marked = _charset_of_start(path)
    for charset in (*filter(None, [marked]), first, "utf-8"):
        if _decodes(path, charset):
            return charset
    # Latin-1 decodes anything; its control characters are letters and quotes in Windows' code page.
    windows = any(0x80 <= byte < 0xA0 for chunk in _chunks(path) for byte in set(chunk))
    return "cp1252" if windows and _decodes(path, "cp1252") else "latin-1"


def _decodes(path: Path, charset: str) -> bool:
    decoder = codecs.getincrementaldecoder(charset)()
    try:
        for chunk in _chunks(path):
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _chunks(path: Path) -> Iterator[bytes]:
    with open_bytes(path) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _width(path: Path, charset: str, sep: str) -> int:
    """The number of columns that a separator gives in every row; 0 where it differs."""
    with open_bytes(path) as file, codecs.getreader(charset)(file) as text:
        rows = list(itertools.islice(csv.reader(text, delimiter=sep, skipinitialspace=True), _SAMPLE_ROWS))
    widths = {len(row) for row in rows if row}
    return widths.pop() if len(widths) == 1 else 0
