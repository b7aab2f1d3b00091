"""A comparison on a cluster gives the figures that it gives without, each run once, whatever dies."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import partial

import pytest

import equidp
from comparison.test_compare import PLAN, Toy, cell, compared
from equidp.comparison import compare as comparing, workers as cluster
from equidp.comparison.cells import check_here, facts
from equidp.comparison.workers import Call, StaleWorker
from equidp.errors import DataError, MissingExtraError, SettingError
from support.errors import raises_field

distributed = pytest.importorskip("distributed", reason="needs the extra: pip install 'equidp[cluster]'")

HERE = partial(distributed.LocalCluster, processes=False, threads_per_worker=1, dashboard_address=":0")


@pytest.fixture(scope="module")
def address():
    """Of a scheduler with two workers, which are threads of this process."""
    with HERE(n_workers=2) as workers:
        yield workers.scheduler_address


@pytest.fixture(scope="module")
def client(address):
    with distributed.Client(address, set_as_default=False) as client:
        yield client


@pytest.mark.soak
def test_a_comparison_on_a_cluster_has_the_figures_of_one_without(tmp_path, address):
    seen = []
    there = compared(
        tmp_path / "there",
        methods=["dpsgd"],
        jobs=None,
        cluster=address,
        on_progress=lambda *steps: seen.append(steps),
    )
    assert there.results.equals(compared(tmp_path / "here", methods=["dpsgd"]).results)
    assert list(dict.fromkeys(seen)) == [(done, 48) for done in (0, 12, 24, 36, 48)]
    assert not list((tmp_path / "there" / "runs").glob("*.lock"))


@pytest.mark.soak
def test_a_device_that_a_worker_lacks_is_refused_by_its_name(tmp_path, address):
    with raises_field(SettingError, "device", "'xpu:7'"):
        compared(tmp_path, methods=["dpsgd"], jobs=None, cluster=address, device="xpu:7")


def test_a_run_that_two_clients_ask_for_at_once_is_trained_once(client):
    """The second waits for what the first asked for."""
    made, begun, go_on = [], threading.Event(), threading.Event()
    cluster_of_threads[:] = [made, begun, go_on]
    with distributed.Client(client.scheduler.address, set_as_default=False) as other:
        found = {}

        def ask(name, of):
            found[name] = list(cluster.on_cluster(slowly, [Call("one", "one", (3,))], client=of))

        threads = [threading.Thread(target=ask, args=each) for each in (("a", client), ("b", other))]
        for thread in threads:
            thread.start()
        assert begun.wait(60)
        while len(client.run_on_scheduler(_who_wants_one)) < 2:
            pass
        go_on.set()
        for thread in threads:
            thread.join()
    assert made == [3]
    assert found["a"] == found["b"] == [(Call("one", "one", (3,)), 9)]


cluster_of_threads: list = []


def slowly(number, threads):
    made, begun, go_on = cluster_of_threads
    made.append(number)
    begun.set()
    assert go_on.wait(60)
    return number * number


def _who_wants_one(dask_scheduler):
    return [str(each) for each in dask_scheduler.tasks["equidp-one"].who_wants]


def test_fewer_workers_than_at_first_make_all_calls(client, monkeypatch):
    workers = iter([["a", "b", "c"]])
    monkeypatch.setattr(client, "nthreads", lambda: next(workers, ["a"]))
    asked = [Call(f"square {number}", "", (number,)) for number in range(8)]
    found = dict(cluster.on_cluster(lambda number, threads: number**2, asked, client=client))
    assert found == {call: call.arguments[0] ** 2 for call in asked}


@pytest.mark.soak
def test_bad_addresses_are_told_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 0.3)
    asked = partial(compared, tmp_path, jobs=None)
    for address in ("tcp://127.0.0.1:1", "nowhere.invalid:8786", "no address", "nothing.json"):
        with raises_field(SettingError, "cluster", repr(address), "dask scheduler"):
            asked(cluster=address)
    with raises_field(SettingError, "jobs"):
        asked(cluster="tcp://127.0.0.1:1", jobs=2)
    assert not (tmp_path / "runs").exists()


@pytest.mark.soak
def test_a_scheduler_without_workers_is_told_before_anything_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "PATIENCE", 5.0)
    file = tmp_path / "scheduler.json"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0", "--no-dashboard"]
    with subprocess.Popen([*command, "--scheduler-file", str(file)], stderr=subprocess.DEVNULL) as scheduler:
        try:
            while not file.exists() and scheduler.poll() is None:
                time.sleep(0.05)
            with raises_field(SettingError, "cluster", "dask worker "):
                compared(tmp_path, jobs=None, cluster=str(file))
        finally:
            scheduler.kill()
    assert not (tmp_path / "runs").exists()


def test_without_the_extra_it_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "distributed", None)
    with raises_field(MissingExtraError, "cluster"):
        compared(tmp_path, jobs=None, cluster="tcp://127.0.0.1:8786")


def test_a_worker_with_other_packages_is_named(client, monkeypatch):
    monkeypatch.setattr(cluster, "versions", lambda: {"torch": "9.9", "equidp": "0.1.0", "python": "3.99.0"})
    with raises_field(SettingError, "packages", "9.9"):
        comparing.check_cluster(client, [cell("dpsgd")])


@dataclass(frozen=True)
class Gone(Toy):
    """A table as a worker sees it that has no such file."""

    def split(self, seed):
        raise DataError("there is no file '/data/people.csv'.")


@dataclass(frozen=True)
class Here(Toy):
    """A table that only the process that asks has."""

    def __reduce__(self):
        return Gone, ()


@pytest.mark.soak
def test_a_worker_without_the_data_is_named_before_anything_is_trained(tmp_path, address):
    asked = {"plan": PLAN, "seeds": 1, "directory": tmp_path, "cluster": address}
    with pytest.raises(DataError, match=r"worker inproc\S*: there is no file '/data/people.csv'"):
        equidp.compare(Here(), methods=["dpsgd"], **asked)
    assert not list(tmp_path.glob("*.index"))


def test_a_worker_with_other_data_is_named(client, monkeypatch):
    monkeypatch.setattr(comparing, "facts", lambda cell: {**facts(cell), "examples": "of another table"})
    with raises_field(DataError, "data", "'toy'"):
        comparing.check_cluster(client, [cell("dpsgd")])


def test_a_worker_with_other_code_is_named(client, monkeypatch):
    monkeypatch.setattr(comparing, "facts", lambda cell: {**facts(cell), "module own": "another"})
    with raises_field(SettingError, "module own"):
        comparing.check_cluster(client, [cell("dpsgd")])


@pytest.mark.parametrize(
    ("name", "error", "field"),
    [
        ("examples", DataError, "data"),
        ("module own", StaleWorker, "module own"),
        ("torch", StaleWorker, "torch"),
    ],
)
def test_each_run_checks_its_worker(name, error, field):
    """Workers may join after the first look at them."""
    one = cell("dpsgd")
    check_here(one, facts(one))
    with raises_field(error, field):
        check_here(one, {**facts(one), name: "another"})


@pytest.mark.soak
def test_twenty_runs_survive_two_kills_of_a_worker_with_the_figures_of_a_comparison_without_a_cluster(
    tmp_path,
):
    from support.cluster import GIVEN, compare_and_kill

    tally = compare_and_kill(tmp_path / "cluster", seeds=5, kills=2)
    assert len(tally.killed) == 2
    assert len(tally.kept) == 20
    assert set(tally.finished) == tally.kept
    assert tally.before
    assert not tally.again
    assert sum(tally.finished.values()) <= 20 + len(tally.killed)
    alone = equidp.compare(**GIVEN, seeds=5, directory=tmp_path / "alone", jobs=2)
    assert tally.comparison.results.equals(alone.results)
