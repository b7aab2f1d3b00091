"""In a log, progress is a line now and then, with the time left."""

from __future__ import annotations

import signal

import pytest

from equidp.cli.messages import progress_lines, stoppable, termination_in_words, warning_printer
from equidp.errors import DataWarning


def test_a_log_says_how_much_is_done_and_left_at_most_every_so_often(capsys):
    times = iter([0.0, 5.0, 35.0, 35.0, 70.0, 70.0, 75.0, 120.0, 120.0])
    say = progress_lines(every=30.0, clock=lambda: next(times))
    for done in (10, 20, 400, 450, 1000):
        say(done, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "2% done.",  # too little to tell
        "40% done, about 2 minutes left.",
        "100% done.",
    ]


def test_each_stage_of_runs_has_its_own_time_left(capsys):
    times = iter([0.0, 100.0, 130.0, 130.0])
    say = progress_lines(every=30.0, clock=lambda: next(times))
    for done in (0, 2):
        say(done, 8)
    assert capsys.readouterr().err == "25% done, about 90 seconds left.\n"


def test_what_is_done_at_once_says_nothing(capsys):
    say = progress_lines(every=30.0, clock=lambda: 0.0)
    for done in (0, 1000):
        say(done, 1000)
    assert capsys.readouterr().err == ""


def test_a_warning_is_said_once_a_command_and_those_of_others_never(capsys):
    for _ in range(2):  # commands
        show = warning_printer()
        for text, category in (
            ("a", DataWarning),
            ("b", DataWarning),
            ("a", DataWarning),
            ("c", UserWarning),
        ):
            show(category(text), category, "file.py", 1)
    assert capsys.readouterr().err.splitlines() == ["warning: a", "warning: b"] * 2


def test_termination_ends_a_command_in_the_same_words_as_ctrl_c(capsys):
    """With SIGTERM's own exit code; afterwards SIGTERM does what it did before."""
    with pytest.raises(SystemExit) as ended, termination_in_words(), stoppable("stopped. To continue: x"):
        signal.raise_signal(signal.SIGTERM)
    assert ended.value.code == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "stopped. To continue: x\n"
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_a_process_of_several_and_one_with_a_handler_of_its_own_keep_theirs(monkeypatch):
    with monkeypatch.context() as patch:
        patch.setenv("TORCHELASTIC_RUN_ID", "1")
        with termination_in_words():
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    monkeypatch.setattr(signal, "getsignal", lambda number: signal.SIG_IGN)
    monkeypatch.setattr(signal, "signal", lambda *_: pytest.fail("a handler was replaced"))
    with termination_in_words():
        pass
