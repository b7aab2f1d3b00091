"""CIFAR-10 is read from each layout that it comes in, and a file that would run code is refused."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from equidp.data import cifar10, open_source
from equidp.errors import DataError
from support.data_folders import empty_source_folder
from support.errors import raises_field

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
