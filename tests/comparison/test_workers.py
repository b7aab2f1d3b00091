"""Calls are spread over the processes or the backend that the user chose."""

from __future__ import annotations

import os
import threading

import joblib
import pytest
from joblib.parallel import BACKENDS, ThreadingBackend, register_parallel_backend

import equidp
from equidp.comparison.workers import Workers, spread
from equidp.errors import SettingError
from support.errors import raises_field


def calls(*arguments):
    return [(f"key {each}", (each,)) for each in arguments]


def square(number, threads):
    return number * number, threads


def die_at(name, deadly, threads):
    if name == deadly:
        os._exit(9)
    return name


def test_jobs_and_backend_are_those_of_the_user():
    cores = joblib.cpu_count()
    assert Workers.of(None, 100).number == cores
    assert Workers.of(3, 100) == (3, 1)
    assert Workers.of(3, 2).number == 2
    with joblib.parallel_config(n_jobs=5):
        assert Workers.of(None, 100).number == 5
        assert Workers.of(2, 100).number == 2
    with joblib.parallel_config(backend="threading"):
        assert Workers.of(None, 100) == (cores, None)
    with joblib.parallel_config(backend="threading", n_jobs=4):
        assert Workers.of(None, 100) == (4, None)


@pytest.mark.parametrize("generators", [True, False])
def test_every_call_is_made_once_on_the_backend_of_the_user(generators):
    """The backends of Dask and Ray give results all at once, so they get the calls in several parts."""

    class Backend(ThreadingBackend):
        supports_return_generator = generators

    asked, made, one_is_here = calls(*range(20)), [], threading.Event()

    def late(number, threads):
        """From the ninth on, only after a result has been passed on."""
        made.append(number)
        assert number < 8 or one_is_here.wait(60)
        return square(number, threads)

    register_parallel_backend("own", Backend)
    try:
        with joblib.parallel_config(backend="own", n_jobs=2):
            found = []
            for each in spread(late, asked, Workers.of(None, 20)):
                found.append(each)
                one_is_here.set()
    finally:
        del BACKENDS["own"]
    assert sorted(found) == sorted((key, (number**2, None)) for key, (number,) in asked)
    assert sorted(made) == list(range(20))


@pytest.mark.soak
def test_a_process_that_dies_ends_the_calls_with_what_to_do_and_the_next_ones_are_made():
    with raises_field(SettingError, "runs", "start the same again"):
        list(spread(die_at, [(name, (name, "c")) for name in "abcdef"], Workers.of(2, 6)))
    assert sorted(spread(die_at, [(name, (name, "")) for name in "ab"], Workers.of(2, 2))) == [
        ("a", "a"),
        ("b", "b"),
    ]


@pytest.mark.soak
def test_a_comparison_on_a_cluster_has_the_results_of_one_without(tmp_path):
    distributed = pytest.importorskip("distributed")
    plan = equidp.Plan(batch_size=300, epochs=1)
    asked = {"methods": ["dpsgd"], "seeds": 2, "plan": plan, "baseline": "plan"}
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
        distributed.Client(cluster),
        joblib.parallel_config("dask"),
    ):
        there = equidp.compare(**asked, directory=tmp_path / "there")
    here = equidp.compare(**asked, directory=tmp_path / "here", jobs=2)
    assert there.results.equals(here.results)
    assert len(list((tmp_path / "there").glob("*.index"))) == 4
    assert not list((tmp_path / "there").glob("*.lock"))
