"""Calls are spread over the processes or the backend that the user chose, and made again where one died."""

from __future__ import annotations

import os
import threading
import time

import joblib
import pytest
from joblib.parallel import BACKENDS, ThreadingBackend, register_parallel_backend

from equidp.comparison.workers import TRIES, Call, Workers, spread
from equidp.errors import SettingError
from support.errors import raises_field


def calls(*arguments):
    return [Call(f"key {each}", f"run {each}", (each,)) for each in arguments]


def square(number, threads):
    return number * number, threads


def begun(folder, name) -> int:
    """Count how often a call was begun: one file each time."""
    (folder / f"{name}-{time.time_ns()}").touch()
    return len(list(folder.glob(f"{name}-*")))


def dies(folder, name, times, threads):
    if begun(folder, name) <= times:
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
    """Ray's backend gives results all at once, so it gets the calls in several parts."""

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
    assert sorted(found) == sorted((call, (call.arguments[0] ** 2, None)) for call in asked)
    assert sorted(made) == list(range(20))


@pytest.mark.soak
def test_a_call_whose_process_dies_is_made_again(tmp_path):
    deaths = {"a": 0, "b": 1, "c": 0, "d": 2, "e": 0, "f": 0}
    asked = [Call(name, name, (tmp_path, name, times)) for name, times in deaths.items()]
    found = [result for _, result in spread(dies, asked, Workers.of(2, 6))]
    assert sorted(found) == list("abcdef")
    assert begun(tmp_path, "d") == 4  # with this one


@pytest.mark.soak
def test_a_call_that_kills_its_process_each_time_is_named_and_its_neighbour_is_not(tmp_path):
    asked = [Call(name, f"run {name}", (tmp_path, name, times)) for name, times in (("a", 0), ("b", 99))]
    with raises_field(SettingError, "runs", "run b", "2 times"):
        list(spread(dies, asked, Workers.of(2, 2)))
    assert begun(tmp_path, "b") == 2 * TRIES + 1
