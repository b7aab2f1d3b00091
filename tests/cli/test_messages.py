"""Messages of commands: warnings once each."""

from __future__ import annotations

from equidp.cli.messages import warning_printer
from equidp.errors import DataWarning


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
