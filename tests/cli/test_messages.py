"""In a log, progress is a line now and then, with the time left."""

from __future__ import annotations

from equidp.cli.messages import progress_lines, warning_printer
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
