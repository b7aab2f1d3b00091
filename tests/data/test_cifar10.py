"""CIFAR-10 is read from each layout that it comes in, and a file that is not whole is refused."""

from __future__ import annotations

import hashlib
import io
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from equidp.data import cifar10, open_source
from equidp.data.cache import image_store
from equidp.errors import DataError, DataWarning
from support.data_folders import empty_source_folder
from support.errors import raises_field
from support.served import served

SIZES = {name: 10 for names in cifar10._BATCHES.values() for name in names}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """An empty folder for CIFAR-10 of EQUIDP_DATA."""
    return empty_source_folder("cifar10", tmp_path, monkeypatch)


def made_up(name: str) -> tuple[np.ndarray, list[int]]:
    """Images, [10, 3, 32, 32] bytes, and their labels."""
    draw = np.random.default_rng(sorted(SIZES).index(name))
    return draw.integers(0, 256, (10, 3, 32, 32), dtype=np.uint8), list(range(10))


def batch(name: str) -> bytes:
    images, labels = made_up(name)
    return pickle.dumps({b"data": images.reshape(10, -1), b"labels": labels}, protocol=2)


def write_batches(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SIZES:
        (folder / name).write_bytes(batch(name))


def write_archive(path: Path) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name in SIZES:
            member = tarfile.TarInfo(f"cifar-10-batches-py/{name}")
            member.size = len(batch(name))
            archive.addfile(member, io.BytesIO(batch(name)))


def write_parquet(folder: Path) -> None:
    for part, names in cifar10._BATCHES.items():
        rows, labels = [], []
        for name in names:
            images, batch_labels = made_up(name)
            labels += batch_labels
            for image in images:
                file = io.BytesIO()
                Image.fromarray(image.transpose(1, 2, 0)).save(file, "PNG")
                rows.append({"bytes": file.getvalue(), "path": "x.png"})
        pq.write_table(pa.table({"img": rows, "label": labels}), folder / f"{part}-00000-of-00001.parquet")


LAYOUTS = {
    "batches": lambda folder: write_batches(folder / "cifar-10-batches-py"),
    "batches beside": lambda folder: write_batches(folder.parent / "cifar-10-batches-py"),
    "archive": lambda folder: write_archive(folder / "cifar-10-python.tar.gz"),
    "parquet": write_parquet,
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_gives_the_same_pixels_and_labels(layout, folder):
    LAYOUTS[layout](folder)
    split = open_source("cifar10").split(0)
    assert (len(split.train), len(split.test)) == (50, 10)
    assert split.train.group_names == split.train.class_names == cifar10.CLASSES
    assert split.train.group_sizes().tolist() == [5] * 10
    images, labels = made_up("data_batch_2")
    expected = (torch.from_numpy(images).float() - 127.5) / 63.75
    assert torch.allclose(split.train.inputs[10:20], expected)
    assert split.train.targets[10:20].tolist() == labels
    assert torch.equal(split.train.targets, split.train.groups)


def test_pixels_are_kept_once_and_made_anew_for_another_file(folder):
    write_batches(folder / "cifar-10-batches-py")
    first = open_source("cifar10").split(0)
    assert torch.equal(open_source("cifar10").split(1).train.inputs, first.train.inputs)
    assert len(list(image_store().folder.glob("*/facts.json"))) == 2
    path = folder / "cifar-10-batches-py" / "test_batch"
    path.write_bytes(batch("data_batch_1"))
    os.utime(path, (1, 1))
    with pytest.warns(DataWarning, match="10 of 10 test rows are training rows"):
        other = open_source("cifar10").split(0)
    assert not torch.equal(other.test.inputs, first.test.inputs)


@pytest.mark.soak
def test_the_archive_is_downloaded_once_and_another_file_in_its_place_is_refused(folder, monkeypatch):
    """From a server; where EQUIDP_DATA names a folder without CIFAR-10."""
    offered = folder.parent / "offered"
    offered.mkdir()
    write_archive(offered / "cifar-10-python.tar.gz")
    digest = hashlib.sha256((offered / "cifar-10-python.tar.gz").read_bytes()).hexdigest()
    with served(offered) as address:
        url = f"{address}/cifar-10-python.tar.gz"
        monkeypatch.setattr(cifar10, "_ARCHIVE", replace(cifar10._ARCHIVE, url=url))
        with raises_field(DataError, "checksum", "163 MB"):
            open_source("cifar10").split(0)
        monkeypatch.setattr(
            cifar10, "_ARCHIVE", replace(cifar10._ARCHIVE, url=url, known_hash=f"sha256:{digest}")
        )
        split = open_source("cifar10").split(0)
    assert (len(split.train), len(split.test)) == (50, 10)
    assert len(open_source("cifar10").split(0).train) == 50  # the server is gone


class Evil:
    """Runs code where it is unpickled."""

    def __reduce__(self):
        return os.mkdir, ("was-here",)


def test_a_file_that_would_run_code_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_batches(folder / "cifar-10-batches-py")
    (folder / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps({b"data": Evil()}, protocol=2))
    with raises_field(DataError, "files", "mkdir"):
        open_source("cifar10").split(0)
    assert not (tmp_path / "was-here").exists()


def test_files_that_are_missing_cut_or_foreign_are_refused(folder):
    place = folder / "cifar-10-batches-py"
    write_batches(place)
    (place / "test_batch").write_bytes(batch("test_batch")[:2000])
    with raises_field(DataError, "files"):
        open_source("cifar10").split(0)
    (place / "test_batch").unlink()
    with raises_field(DataError, "test_batch"):
        open_source("cifar10").split(0)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda table: table.rename_columns(["pixels", "label"]), "columns"),
        (lambda table: table.drop(["label"]), "columns"),
        (lambda table: table.set_column(1, "label", pa.array([77] * len(table))), "labels"),
        (
            lambda table: table.set_column(
                0, "img", pa.array([{"bytes": b"\xff\xd8", "path": ""}] * len(table))
            ),
            "image",
        ),
    ],
)
def test_parquet_files_of_another_kind_are_refused(change, field, folder):
    write_parquet(folder)
    path = folder / "train-00000-of-00001.parquet"
    pq.write_table(change(pq.read_table(path)), path)
    with raises_field(DataError, field):
        open_source("cifar10").split(0)


@pytest.mark.soak
def test_the_real_files_have_5000_images_of_each_class(real_data, monkeypatch):
    monkeypatch.setenv("EQUIDP_DATA", str(real_data))
    split = open_source("cifar10").split(0)
    assert split.train.group_sizes().tolist() == [5000] * 10
    assert split.test.group_sizes().tolist() == [1000] * 10
    assert -2 <= float(split.test.inputs.min()) < float(split.test.inputs.max()) <= 2
