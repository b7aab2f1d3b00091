"""Downloads are checked, a folder of the user's comes first, and the docs state where files come from."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import replace
from pathlib import Path

import pytest

from equidp.data import open_source
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


@pytest.mark.soak
def test_a_damaged_cache_is_downloaded_again(remote, tmp_path):
    remote.content()
    (tmp_path / "cache" / "toy" / "labels.gz").write_bytes(b"damaged")
    assert remote.content() == CONTENT


@pytest.mark.soak
def test_a_terminal_shows_a_bar_that_ends_full(remote, monkeypatch, capfd):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    remote.content()
    shown = capfd.readouterr().err
    assert "downloading labels.gz" in shown
    assert "100%" in shown


@pytest.mark.soak
def test_a_cache_that_cannot_be_written_is_named(remote, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("EQUIDP_CACHE", str(tmp_path / "file"))
    with raises_field(DataError, "EQUIDP_CACHE", WAY_OUT):
        remote.content()


@pytest.mark.soak
def test_a_data_folder_that_does_not_exist_is_named(remote, tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_DATA", str(tmp_path / "nowhere"))
    with raises_field(DataError, "EQUIDP_DATA"):
        remote.content()


@pytest.mark.soak
def test_a_data_folder_without_the_file_leads_to_its_source(remote, tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_DATA", str(tmp_path))
    assert remote.content() == CONTENT


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
        pytest.param(gzip.compress(CONTENT, mtime=0)[:-9], id="truncated"),
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


@pytest.mark.soak
@pytest.mark.parametrize(
    "content", [b"", b"\x00\x00\x09\x01\x00\x00\x00\x03abc", b"\x00\x00\x08\x01\x00\x00\x00\x04abc"]
)
def test_idx_files_that_are_none(remote, monkeypatch, content):
    monkeypatch.setattr(RemoteFile, "content", lambda self: content)
    with raises_field(DataError, "labels.gz"):
        _idx(remote)


HEADER = "@relation dutch\n@attribute sex {2,1}\n@attribute occupation {5_4_9,2_1}\n"


@pytest.mark.parametrize(
    "content",
    ["", "@relation dutch\n@attribute sex {2,1}\n", HEADER + "@data\n2,5_4_9\n1,2_", HEADER + "@da", "\xff"],
    ids=["empty", "no data", "half a row", "half a mark", "no utf-8"],
)
def test_arff_files_that_are_none(monkeypatch, content):
    monkeypatch.setattr(RemoteFile, "content", lambda self: content.encode("latin-1"))
    with raises_field(DataError, "dutch_census_2001.arff"):
        open_source("dutch").split(0)


@pytest.mark.parametrize("name", ["mnist", "cifar10"])
def test_a_data_folder_that_is_none_is_refused_before_anything_is_fetched(name, tmp_path, monkeypatch):
    monkeypatch.setenv("EQUIDP_DATA", str(tmp_path / "nowhere"))
    with raises_field(DataError, "EQUIDP_DATA"):
        open_source(name).split(0)


def test_the_page_on_data_states_each_origin():
    page = (Path(__file__).parents[2] / "docs" / "data.md").read_text()
    for origin in ORIGINS.values():
        assert f"| {origin.page} | {origin.size} | {origin.licence} |" in page
