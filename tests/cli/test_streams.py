"""A full disk behind standard output, a reader that has seen enough, and characters that a terminal lacks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from support.command import QUICK, people  # noqa: F401

TABLE = ("people.csv", "--target", "income", "--group", "sex")
PLAN = ("--noise-multiplier", "3", "--epochs", "2", "--set", "training.sample_rate=1", *QUICK)
TRAIN = ("train", *TABLE, *PLAN)


def shell(line: str, *arguments: str, cwd, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of a shell in which `$@` is equidp with arguments."""
    given = ["bash", "-c", f"set -o pipefail; {line}", "bash", sys.executable, "-m", "equidp", *arguments]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(given, cwd=cwd, env=settings, capture_output=True, text=True, timeout=600)


@pytest.mark.soak
def test_a_reader_that_has_seen_enough_is_no_error(tmp_path):
    done = shell('"$@" | head -1', "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.soak
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device here")
def test_a_training_that_cannot_print_is_finished_or_goes_on(people, tmp_path):  # noqa: F811
    (tmp_path / "people.csv").write_bytes((people / "people.csv").read_bytes())
    done = shell('"$@" > /dev/full', *TRAIN, "--out", "run", cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    if not (tmp_path / "run" / "share" / "SHA256SUMS").is_file():
        assert shell('"$@"', "train", "--resume", "run", cwd=tmp_path).returncode == 0
    assert (tmp_path / "run" / "share" / "SHA256SUMS").is_file()


@pytest.mark.soak
def test_an_interruption_while_a_command_starts_ends_it_in_words(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # A process that was started in the background ignores interruptions until it says otherwise.
    handled = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    code = f"{handled}; from equidp.cli import main; print('up', flush=True); main()"
    command = [sys.executable, "-c", code, "compare", "--seeds", "1", "--jobs", "1"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout.readline() == "up\n"
        time.sleep(0.5)
        started.send_signal(signal.SIGINT)
        _, err = started.communicate(timeout=600)
    assert started.returncode in (128 + signal.SIGINT, -signal.SIGINT)
    assert "Traceback" not in err
