"""Calibrations and epsilons on disk: worked out once, and never other than what was worked out."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter

import pytest

import equidp.kernel.epsilon
from equidp.accounting import ACCOUNTANTS, cache, calibrate_noise, calibration, epsilon, remembered
from equidp.errors import CacheWarning
from equidp.kernel.ledger import StepEvent

PLAN = (3.0, 1e-5, 0.02, 1000)
ENTRIES = ((StepEvent(0.02, 1.1), 50), (StepEvent(0.1, 2.0, 20.0), 7))

# Counts calls of dp_accounting in a process of its own, and prints what it got.
PROGRAM = """
import json, resource, sys, warnings
warnings.simplefilter("ignore")
from equidp.accounting import calibrate_noise, calibration, epsilon, remembered
from equidp.kernel import epsilon as kernel
from equidp.kernel.ledger import StepEvent

calls = {"calibrations": 0, "epsilons": 0}
def counted(name, function):
    def counting(*args, **kwargs):
        calls[name] += 1
        return function(*args, **kwargs)
    return counting
calibration.calibrate_dp_mechanism = counted("calibrations", calibration.calibrate_dp_mechanism)
kernel.run_event = counted("epsilons", kernel.run_event)
if sys.argv[2] == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
with remembered(sys.argv[1]):
    sigma = calibrate_noise(3.0, 1e-5, 0.02, 1000, accountant="rdp")
    spent = epsilon([(StepEvent(0.02, 1.1), 50), (StepEvent(0.1, 2.0, 20.0), 7)], 1e-5)
print(json.dumps({"sigma": sigma, "epsilon": spent, **calls}))
"""


def start(folder, disk: str = "fine") -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), disk], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def answer(process: subprocess.Popen) -> dict:
    out, err = process.communicate()
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def entries(folder) -> list:
    return [path for path in folder.rglob("*") if path.is_file()]


def right(found: dict) -> bool:
    return (found["sigma"], found["epsilon"]) == (
        calibrate_noise(*PLAN, accountant="rdp"),
        equidp.kernel.epsilon.epsilon(ENTRIES, 1e-5),
    )


@pytest.fixture
def counted(monkeypatch):
    """Calls of dp_accounting's calibration in this process, which starts without calibrations of its own."""
    calls = Counter()

    def counting(*args, calibrate=calibration.calibrate_dp_mechanism, **kwargs):
        calls["calibrations"] += 1
        return calibrate(*args, **kwargs)

    monkeypatch.setattr(calibration, "calibrate_dp_mechanism", counting)
    calibrate_noise.__wrapped__.cache_clear()
    return calls


@pytest.mark.soak
def test_a_second_process_works_nothing_out_and_gets_the_same(tmp_path):
    first, second = (answer(start(tmp_path)) for _ in range(2))
    assert (first.pop("calibrations"), first.pop("epsilons")) == (1, 1)
    assert (second.pop("calibrations"), second.pop("epsilons")) == (0, 0)
    assert first == second
    assert right(first)


@pytest.mark.soak
def test_processes_that_begin_together_all_get_it_right(tmp_path):
    found = [answer(process) for process in [start(tmp_path) for _ in range(2)]]
    assert all(right(each) for each in found)
    assert answer(start(tmp_path))["calibrations"] == 0


@pytest.mark.soak
def test_a_full_disk_is_as_good_as_none(tmp_path):
    found = answer(start(tmp_path, "full"))
    assert right(found)
    assert found["calibrations"] >= 1


@pytest.mark.parametrize("place", ["a file", "a folder that became read-only"])
def test_a_folder_that_cannot_be_written_is_as_good_as_none(tmp_path, monkeypatch, place):
    expected = calibrate_noise(*PLAN, accountant="rdp")
    if place == "a file":
        (tmp_path / "runs").write_text("")
    else:

        def read_only(*_, **__):
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr("os.makedirs", read_only)
        monkeypatch.setattr("os.mkdir", read_only)
    with remembered(tmp_path / "runs"):
        assert calibrate_noise(*PLAN, accountant="rdp") == expected


@pytest.mark.soak
@pytest.mark.parametrize("damage", ["empty", "cut", "no text", "another value", "another entry"])
def test_a_damaged_entry_is_worked_out_again(tmp_path, counted, damage):
    with remembered(tmp_path):
        expected = calibrate_noise(*PLAN, accountant="rdp")
        calibrate_noise(1.0, *PLAN[1:], accountant="rdp")
    kept, other = sorted(entries(tmp_path), key=lambda path: repr(expected) not in path.read_text())
    content = kept.read_bytes()
    digit = content.index(repr(expected).encode()) + 6
    changed = b"7" if content[digit : digit + 1] != b"7" else b"8"
    kept.write_bytes(
        {
            "empty": b"",
            "cut": content[:20],
            "no text": b"\xff" + content[1:],
            "another value": content[:digit] + changed + content[digit + 1 :],
            "another entry": other.read_bytes(),
        }[damage]
    )
    counted.clear()
    calibrate_noise.__wrapped__.cache_clear()
    with remembered(tmp_path), pytest.warns(CacheWarning):
        assert calibrate_noise(*PLAN, accountant="rdp") == expected
    calibrate_noise.__wrapped__.cache_clear()
    with remembered(tmp_path):
        assert calibrate_noise(*PLAN, accountant="rdp") == expected
    assert counted["calibrations"] == 1


@pytest.mark.soak
def test_every_argument_and_the_code_are_part_of_the_key(tmp_path, counted, monkeypatch):
    plans = [
        PLAN, (3.1, *PLAN[1:]), (3.0, 1e-6, 0.02, 1000), (3.0, 1e-5, 0.03, 1000), (3.0, 1e-5, 0.02, 999),
        (*PLAN, 10.0), (*PLAN, None, "rdp-classic"), (*PLAN, None, "rdp", ENTRIES),
    ]  # fmt: skip
    plans = [plan if len(plan) > 5 else (*plan, *(None, "rdp")[len(plan) - 4 :]) for plan in plans]
    with remembered(tmp_path):
        values = [calibrate_noise(*plan) for plan in plans]
        assert len(set(values)) == len(plans)
        counted.clear()
        assert [calibrate_noise(*plan) for plan in plans] == values
        named = {"delta": PLAN[1], "sample_rate": PLAN[2], "steps": PLAN[3], "accountant": "rdp"}
        assert calibrate_noise(PLAN[0], **named) == values[0]
        assert not counted
        monkeypatch.setattr(cache, "_code_digest", lambda: "another version")
        calibrate_noise.__wrapped__.cache_clear()
        calibrate_noise(*plans[-1])
        assert counted["calibrations"] == 1


@pytest.mark.soak
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_an_epsilon_is_remembered_as_the_accountant_gave_it(tmp_path, accountant):
    expected = equidp.kernel.epsilon.epsilon(ENTRIES, 1e-5, accountant)
    with remembered(tmp_path):
        assert epsilon(iter(ENTRIES), 1e-5, accountant) == expected == epsilon(ENTRIES, 1e-5, accountant)
        assert epsilon([(StepEvent(0.1, 0.0), 1)], 1e-5, accountant) == math.inf
        assert epsilon([(StepEvent(0.1, 0.0), 1)], 1e-5, accountant) == math.inf
        assert epsilon([], 1e-5, accountant) == 0.0


def test_an_accountant_of_ones_own_is_not_remembered(tmp_path, monkeypatch):
    """It may change while its name stays."""
    with remembered(tmp_path):
        for value in (1.0, 2.0):
            monkeypatch.setitem(ACCOUNTANTS, "own", lambda event, delta, value=value: value)
            equidp.kernel.epsilon._with_accountant.cache_clear()
            assert epsilon(ENTRIES, 1e-5, "own") == value


def test_nothing_is_remembered_outside(tmp_path, counted):
    with remembered(tmp_path):
        pass
    calibrate_noise(*PLAN, accountant="rdp")
    assert not entries(tmp_path)
