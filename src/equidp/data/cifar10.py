"""CIFAR-10: small colour photographs of ten kinds of things."""

from __future__ import annotations

import io
import pickle
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch

from equidp._extras import require_extra
from equidp.data.cache import Array
from equidp.data.dataset import DataSplit, GroupedDataset
from equidp.data.images import PIXEL_RANGE, decoded, kept_pixels, state_of
from equidp.data.origins import ORIGINS, RemoteFile, data_folder
from equidp.errors import DataError
from equidp.store import key_of

with require_extra("tables"):
    import pyarrow as pa
    import pyarrow.parquet as pq

SIDE = 32
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_FOLDER = "cifar-10-batches-py"
_BATCHES = {"train": tuple(f"data_batch_{each}" for each in range(1, 6)), "test": ("test_batch",)}
_ARCHIVE = RemoteFile(
    ORIGINS["cifar10"],
    "cifar-10-python.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "",
    "sha256:6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
)


@dataclass(frozen=True)
class CIFAR10:
    """CIFAR-10 (Krizhevsky 2009) as it was split: 50,000 images of 32x32 to train on, and 10,000 to test on.

    Groups are the classes. The files are the official batches for Python, as a folder or as the downloaded
    archive, or Parquet files of encoded images. The seed has no effect.
    """

    name: str = "cifar10"
    highlighted_groups: tuple[str, str] | None = None
    pixel_range: ClassVar[tuple[float, float]] = PIXEL_RANGE

    def split(self, seed: int) -> DataSplit:
        """Return the public split."""
        return self.choose_examples(seed, *self.everything())

    def everything(self) -> tuple[GroupedDataset, GroupedDataset]:
        """Return the public training and test set."""
        files = _find_files()
        train, test = (_read(part, files) for part in _BATCHES)
        return train, test

    def choose_examples(self, seed: int, *parts: GroupedDataset) -> DataSplit:
        """Return the split of the training and test set, the same for every seed."""
        train, test = parts
        return DataSplit(train, test)


class _Part(NamedTuple):
    """Images of one part, before decoding.

    Attributes:
        labels: [n].
        images: [..., 3, 32, 32] bytes each, in the order of labels.
    """

    labels: Array
    images: Iterator[Array]


def _find_files() -> Path:
    """Return a folder of batches, a folder of Parquet files, or the archive of batches."""
    if (given := data_folder()) is not None:
        for place in (given / "cifar10" / _FOLDER, given / _FOLDER):
            if place.is_dir():
                return place
        if any((given / "cifar10").glob("*.parquet")):
            return given / "cifar10"
    return _ARCHIVE.path()


def _read(part: str, files: Path) -> GroupedDataset:
    if files.is_file():
        with _open_archive(files) as archive:
            read = _read_batches(files, [_member(archive, name, files) for name in _BATCHES[part]])
        state = state_of([files])
    elif files.name == _FOLDER:
        paths = [files / name for name in _BATCHES[part]]
        if missing := [path.name for path in paths if not path.is_file()]:
            raise DataError(
                f"{files} lacks {', '.join(missing)}; bring the whole folder back.", field=", ".join(missing)
            )
        read, state = _read_batches(files, [path.read_bytes() for path in paths]), state_of(paths)
    else:
        paths = sorted(files.glob(f"{part}*.parquet"))
        if not paths:
            raise DataError(f"{files} has no file {part}*.parquet; bring it back.", field="files")
        read, state = _read_parquet(paths), state_of(paths)
    labels = torch.from_numpy(read.labels.astype(np.int64))
    if not len(labels) or int(labels.min()) < 0 or int(labels.max()) >= len(CLASSES):
        raise DataError(f"{files} has labels other than 0 to 9, or none; it is not CIFAR-10.", field="labels")
    pixels = kept_pixels(f"CIFAR-10, {part}", key_of(state), len(labels), SIDE, read.images)
    return GroupedDataset(pixels, labels, labels.clone(), CLASSES, CLASSES, "cifar10")


def _read_batches(files: Path, contents: list[bytes]) -> _Part:
    every = []
    for content in contents:
        try:
            batch = _Plain(io.BytesIO(content), encoding="bytes").load()
            images, labels = np.asarray(batch[b"data"], np.uint8), np.asarray(batch[b"labels"], np.int64)
            every.append((images.reshape(len(labels), 3, SIDE, SIDE), labels))
        except Exception as error:  # a pickle that is cut or foreign raises nearly anything
            message = f"{files} holds no batches of CIFAR-10 ({error}); bring the files back."
            raise DataError(message, field="files") from error
    return _Part(np.concatenate([labels for _, labels in every]), (images for images, _ in every))


class _Plain(pickle.Unpickler):
    """Read only arrays, so that a file cannot run code."""

    def find_class(self, module: str, name: str) -> Any:
        plain = {("_codecs", "encode"), ("numpy", "ndarray"), ("numpy", "dtype")}
        if (module, name) in plain or (name == "_reconstruct" and module.startswith("numpy.")):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it asks for {module}.{name}")


def _open_archive(path: Path) -> tarfile.TarFile:
    try:
        return tarfile.open(path)
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{path} cannot be read ({error}); remove it, and download it again.") from error


def _member(archive: tarfile.TarFile, name: str, path: Path) -> bytes:
    try:
        file = archive.extractfile(f"{_FOLDER}/{name}")
        if file is not None:
            return file.read()
    except (KeyError, OSError, EOFError, tarfile.TarError) as error:
        raise DataError(f"{path}: {name} cannot be read ({error}); download it again.") from error
    raise DataError(f"{path}: {name} is no file; download it again.")


def _read_parquet(paths: list[Path]) -> _Part:
    try:
        labels = pa.chunked_array([chunk for path in paths for chunk in pq.read_table(path)["label"].chunks])
        return _Part(labels.to_numpy(), _decode_parquet_images(paths))
    except (KeyError, pa.ArrowException, OSError) as error:
        raise DataError(
            f"{paths[0]} cannot be read as images of CIFAR-10 ({error}); expected Parquet with columns label "
            "and img.",
            field="columns",
        ) from error


def _decode_parquet_images(paths: list[Path]) -> Iterator[Array]:
    for path in paths:
        file = pq.ParquetFile(path)
        column = next((name for name in ("img", "image") if name in file.schema_arrow.names), None)
        if column is None:
            raise DataError(
                f"{path} has columns {', '.join(file.schema_arrow.names)}; expected img.", field="columns"
            )
        for batch in file.iter_batches(1000, columns=[column]):
            for at, image in enumerate(batch.column(0).to_pylist()):
                yield decoded(image["bytes"], f"{path.name}, {at}", SIDE)
