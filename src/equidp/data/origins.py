"""Files of public datasets: origin, size and licence; from a folder of the user's, or downloaded once."""

from __future__ import annotations

import gzip
import hashlib
import logging
import os
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import final

from rich.console import Console
from rich.progress import Progress

from equidp._extras import require_extra
from equidp.data.cache import CACHE_VARIABLE, cache_folder
from equidp.errors import DataError

with require_extra("tables"):
    import pooch

DATA_VARIABLE = "EQUIDP_DATA"
_NOT_STATED = "not stated by the source"


def data_folder() -> Path | None:
    """Return the folder that `EQUIDP_DATA` names, if it is set.

    Raises:
        DataError: the folder does not exist.
    """
    given = os.environ.get(DATA_VARIABLE)
    if given and not Path(given).is_dir():
        raise DataError(
            f"{DATA_VARIABLE} names {given!r}, which is no folder; correct it, or unset it.",
            field=DATA_VARIABLE,
        )
    return Path(given) if given else None


@final
@dataclass(frozen=True)
class Origin:
    """Origin of a dataset's files.

    Attributes:
        folder: folder of the dataset, below a data folder.
        dataset: its name in words.
        page: address of the page that offers it.
        size: size of its files, in words.
        licence: licence in words.
        layout: its files in the folder that `EQUIDP_DATA` names, in words.
    """

    folder: str
    dataset: str
    page: str
    size: str
    licence: str
    layout: str

    @property
    def by_hand(self) -> str:
        """Instructions to get the files without a download by equidp: the end of a sentence."""
        return (
            f"get {self.dataset} from {self.page} ({self.size}; licence: {self.licence}) and set "
            f"{DATA_VARIABLE} to a folder that holds {self.layout}."
        )

    def missing(self) -> DataError:
        """Return an error for a missing dataset that equidp does not download."""
        folder = data_folder()
        where = f"{DATA_VARIABLE} is not set" if folder is None else f"it is not in {folder}"
        return DataError(f"{self.dataset} is not downloaded, and {where}: {self.by_hand}", field="dataset")


ORIGINS: dict[str, Origin] = {
    origin.folder: origin
    for origin in (
        Origin(
            "mnist",
            "MNIST",
            "https://yann.lecun.com/exdb/mnist",
            "12 MB",
            "CC BY-SA 3.0, as Keras states it",
            "mnist/ with its four files as they are offered",
        ),
        Origin(
            "adult",
            "Adult",
            "https://archive.ics.uci.edu/dataset/2/adult",
            "6 MB",
            "CC BY 4.0",
            "adult/adult.data and adult/adult.test",
        ),
        Origin(
            "dutch",
            "the Dutch census of 2001",
            "https://github.com/tailequy/fairness_dataset",
            "2.2 MB",
            _NOT_STATED,
            "dutch/dutch_census_2001.arff",
        ),
        Origin(
            "cifar10",
            "CIFAR-10",
            "https://www.cs.toronto.edu/~kriz/cifar.html",
            "163 MB",
            _NOT_STATED,
            "cifar10/cifar-10-python.tar.gz",
        ),
    )
}
"""Folder of a dataset below `EQUIDP_DATA` -> its origin.

>>> ORIGINS["adult"].licence
'CC BY 4.0'
"""


@dataclass(frozen=True)
class RemoteFile:
    """A file of a public source.

    Attributes:
        origin: origin of its dataset.
        name: file name in the dataset's folder.
        url: address that it is downloaded from.
        sha256: checksum of its decompressed content, which `content` checks.
        known_hash: checksum of the downloaded file, "algorithm:digest".
    """

    origin: Origin
    name: str
    url: str
    sha256: str
    known_hash: str

    def content(self) -> bytes:
        """Return the content, decompressed: from the folder EQUIDP_DATA, the cache, or the file's source.

        Raises:
            DataError: it cannot be downloaded, or has another checksum.
        """
        path = self.path()
        try:
            content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{path} cannot be read ({error}); remove it, and it will be downloaded again.",
                field="content",
            ) from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise DataError(
                f"{path} is not the file of {self.origin.dataset} that was expected (its content has another "
                "checksum); remove it, and it will be downloaded again.",
                field="checksum",
            )
        return content

    def path(self) -> Path:
        """Return the file's path: in the folder EQUIDP_DATA, or in the cache, downloaded if missing.

        Raises:
            DataError: it cannot be downloaded.
        """
        return self._local() or self._download_file()

    def _local(self) -> Path | None:
        folder = data_folder()
        path = None if folder is None else folder / self.origin.folder / self.name
        return path if path is not None and path.exists() else None

    def _download_file(self) -> Path:
        with require_extra("tables"):
            import requests

        folder = cache_folder() / self.origin.folder
        way_out = self.origin.by_hand
        # pooch logs each download; the bar below shows it, on a terminal only.
        pooch.get_logger().setLevel(logging.WARNING)
        bar = _Bar(self.name)
        try:
            return Path(
                pooch.retrieve(
                    self.url,
                    known_hash=self.known_hash,
                    fname=self.name,
                    path=folder,
                    downloader=pooch.HTTPDownloader(progressbar=bar, timeout=30),
                )
            )
        except requests.RequestException as error:
            raise DataError(
                f"{self.name} could not be downloaded from {self.url} ({type(error).__name__}). Try again, "
                f"or {way_out}",
                field="url",
            ) from error
        except ValueError as error:
            raise DataError(
                f"what {self.url} sends is not the {self.name} that was expected (it has another checksum), "
                f"and was removed. Try again, or {way_out}",
                field="checksum",
            ) from error
        except OSError as error:
            raise DataError(
                f"{self.name} cannot be kept in {folder} ({error}). Set {CACHE_VARIABLE} to a folder to "
                f"write to, or {way_out}",
                field=CACHE_VARIABLE,
            ) from error
        finally:
            bar.close()


class _Bar:
    """A progress bar as pooch expects it, on a terminal only. pooch sets `total`, in bytes."""

    def __init__(self, name: str) -> None:
        self.total = 0
        self._name = name
        self._progress: Progress | None = None

    def update(self, count: int) -> None:
        if self._progress is None:
            self._progress = Progress(console=Console(stderr=True), disable=not sys.stderr.isatty())
            self._task = self._progress.add_task(f"downloading {self._name}", total=self.total or None)
            self._progress.start()
        self._progress.update(self._task, advance=count)

    def reset(self) -> None:
        # pooch rewinds a finished bar to draw it full.
        if self._progress is not None:
            self._progress.update(self._task, completed=0)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
