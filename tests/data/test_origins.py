"""Downloads are checked, a folder of the user's comes first, and the docs state where files come from."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from equidp.data.mnist import _idx
from equidp.data.origins import ORIGINS, Origin, RemoteFile
from equidp.errors import DataError
from support.errors import raises_field
from support.served import served

WAY_OUT = (
    "get Toys from https://toys.example (9 kB; licence: not stated by the source) and set EQUIDP_DATA to "
    "a folder that holds toy/labels.gz."
)
CONTENT = b"\x00\x00\x08\x01\x00\x00\x00\x03abc"


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """A gz file on a local server, and an empty cache."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "labels.gz").write_bytes(gzip.compress(CONTENT))
    monkeypatch.delenv("EQUIDP_DATA", raising=False)
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "cache"))
    digest = hashlib.md5((folder / "labels.gz").read_bytes()).hexdigest()
    origin = Origin(
        "toy", "Toys", "https://toys.example", "9 kB", "not stated by the source", "toy/labels.gz"
    )
    with served(folder) as address:
        sha256 = hashlib.sha256(CONTENT).hexdigest()
        yield RemoteFile(origin, "labels.gz", f"{address}/labels.gz", sha256, f"md5:{digest}")


@pytest.mark.soak
def test_downloads_once_and_then_reads_the_cache(remote):
    assert remote.content() == CONTENT
    assert replace(remote, url="http://127.0.0.1:9/gone").content() == CONTENT
    assert _idx(remote).tolist() == [97, 98, 99]


@pytest.mark.soak
def test_a_download_with_another_checksum_is_refused_and_not_kept(remote, tmp_path):
    with raises_field(DataError, "checksum", WAY_OUT):
        replace(remote, known_hash="md5:" + "0" * 32).content()
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/labels.gz", "{}-missing"])
def test_no_server_and_no_file_name_the_way_out(remote, url):
    with raises_field(DataError, "url", WAY_OUT):
        replace(remote, url=url.format(remote.url)).content()


@pytest.mark.soak
def test_the_users_folder_comes_first_whatever_its_compression(remote, tmp_path, monkeypatch):
    own = tmp_path / "own" / "toy"
    own.mkdir(parents=True)
    monkeypatch.setenv("EQUIDP_DATA", str(own.parent))
    (own / "labels.gz").write_bytes(gzip.compress(CONTENT, compresslevel=1, mtime=5))
    assert replace(remote, url="http://127.0.0.1:9/gone").content() == CONTENT


@pytest.mark.soak
@pytest.mark.parametrize(
    "content",
    [
        pytest.param(gzip.compress(b"other", mtime=0), id="other content"),
        pytest.param(
            gzip.compress(CONTENT, mtime=0)[:10] + b"\xff" * 20, id="body that is no deflate stream"
        ),
    ],
)
def test_a_damaged_file_is_named(remote, tmp_path, monkeypatch, content):
    own = tmp_path / "own" / "toy"
    own.mkdir(parents=True)
    monkeypatch.setenv("EQUIDP_DATA", str(own.parent))
    (own / "labels.gz").write_bytes(content)
    with pytest.raises(DataError) as raised:
        remote.content()
    assert raised.value.field in {"checksum", "content"}
    assert "labels.gz" in str(raised.value)


def test_the_page_on_data_states_each_origin():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for origin in ORIGINS.values():
        assert f"| {origin.page} | {origin.size} | {origin.licence} |" in page
