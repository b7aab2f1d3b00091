"""Messages of commands: progress, and warnings once each."""

from __future__ import annotations

from equidp.cli.messages import progress_bar, warning_printer
from equidp.errors import DataWarning


def test_a_bar_counts_the_steps_of_each_stage_anew(capsys):
    with progress_bar() as show:
        for done, total in ((0, 8), (8, 8), (0, 1000), (400, 1000)):
            show(done, total)
    assert "training" in capsys.readouterr().err


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
