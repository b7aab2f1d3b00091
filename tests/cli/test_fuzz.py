"""Every table ends in a finished run, or in one message with nothing left behind; never in a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import tempfile
import warnings
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from equidp.cli import main

ODD_CELLS = (
    *(
        "",
        "?",
        " ",
        '"',
        '""',
        '"a,b"',
        '"open',
        "'",
        "a;b",
        "\t",
        "\\",
        "\x00",
        "é",
        "日本",
        "\ufeff",
        "\u2028",
    ),
    *(
        "0",
        "-1",
        "1e308",
        "-3e300",
        "1e-320",
        "99999999999999999999",
        "inf",
        "nan",
        "NaN",
        "NA",
        "None",
        "null",
    ),
    *(
        "1,5",
        "1 000",
        "0x1F",
        "1_000",
        "true",
        "False",
        "2020-01-01",
        "31/12/1999",
        "=SUM(A1)",
        "[bold]",
        "x" * 300,
    ),
)
ENCODINGS = (*["utf-8"] * 8, "utf-8-sig", "utf-16", "latin-1", "cp1252")
OPTIONS = (
    (),
    ("--missing", "category"),
    ("--set", "column.age.range=[0, 100]"),
    ("--drop", "job"),
    ("--group", "job,sex"),
    ("--set", "table.test_share=0.5"),
    ("--target", "age"),
    ("--group", "age"),
)


@st.composite
def odd_tables(draw) -> bytes:
    """A plain table of people with things done to it."""
    rows = draw(st.sampled_from([0, 1, 9, 10, 30, 30, 60, 60]))
    header = ["age", "job", "sex", "income"]
    table = [
        [str(20 + i % 7), "clerk" if i % 3 else "cook", "F" if i % 2 else "M", "high" if i % 5 < 2 else "low"]
        for i in range(rows)
    ]
    for change in draw(st.lists(st.sampled_from(sorted(CHANGES)), max_size=3)):
        CHANGES[change](draw, header, table)
    separator = draw(st.sampled_from([",", ",", ",", ",", ",", ", ", ";", "\t"]))
    end = draw(st.sampled_from(["\n", "\n", "\n", "\r\n", "\r"]))
    text = end.join(separator.join(row) for row in [header, *table]) + draw(
        st.sampled_from(["", end, end * 3])
    )
    content = text.encode(draw(st.sampled_from(ENCODINGS)), errors="replace")
    if draw(st.integers(0, 19)) == 19:
        content = content[: draw(st.integers(0, len(content)))]
    return content


def _cell(draw, header, table):
    for _ in range(draw(st.integers(1, 4)) if table else 0):
        row = table[draw(st.integers(0, len(table) - 1))]
        if row:
            row[draw(st.integers(0, len(row) - 1))] = draw(st.sampled_from(ODD_CELLS))


def _column(draw, header, table):
    place, value = draw(st.integers(0, 3)), draw(st.sampled_from(ODD_CELLS))
    for row in table:
        if len(row) > place:
            row[place] = value


def _numbers(draw, header, table):
    scale = draw(st.sampled_from([1e17, 1e300, 1e-300, 0.0]))
    for i, row in enumerate(table):
        if row:
            row[0] = repr(scale * (i % 5))


def _lonely(draw, header, table):
    if table and len(table[0]) > 2:
        table[0][2] = "X"


def _name(draw, header, table):
    if header:
        header[draw(st.integers(0, len(header) - 1))] = draw(
            st.sampled_from(["age", "sex", "", "income", *ODD_CELLS])
        )


def _ragged(draw, header, table):
    if table:
        row = table[draw(st.integers(0, len(table) - 1))]
        row.append("extra") if draw(st.booleans()) else row.clear()


def _names_of_rows(draw, header, table):
    for i, row in enumerate(table):
        if len(row) > 1:
            row[1] = f"id{i}"


def _one_class(draw, header, table):
    for row in table:
        if row:
            row[-1] = "low"


CHANGES = {
    "cell": _cell,
    "column": _column,
    "numbers": _numbers,
    "lonely": _lonely,
    "name": _name,
    "ragged": _ragged,
    "names of rows": _names_of_rows,
    "one class": _one_class,
}


def invoke(*arguments: str) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    argv, show = sys.argv, warnings.showwarning
    sys.argv = ["equidp", *arguments]
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            pytest.raises(SystemExit) as end,
        ):
            main()
    finally:
        sys.argv, warnings.showwarning = argv, show
    return end.value.code or 0, out.getvalue(), err.getvalue()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::equidp.errors.DataWarning")
def test_odd_tables(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)  # what a power cut leaves is not the subject here
    seen = {0: 0, 2: 0}

    @given(
        content=odd_tables(),
        options=st.sampled_from(OPTIONS),
        method=st.sampled_from([*["sgd"] * 4, "naive"]),
    )
    @settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
    def check(content, options, method):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "odd.csv").write_bytes(content)
            code, out, err = invoke(
                "train", str(folder / "odd.csv"), "--target", "income", "--group", "sex", *options,
                "--method", method, "--set", "privacy.accountant=rdp", "--batch-size", "5",
                "--epochs", "1", "--out", str(folder / "run"),
                *(("--noise-multiplier", "2") if method != "sgd" else ()),
            )  # fmt: skip
            seen[code] += 1
            assert "Traceback" not in err
            left = {path.name for path in folder.iterdir()} - {"odd.csv"}
            if code == 0:
                assert left == {"run"}
                assert "\n# Prediction of income" in next((folder / "run").rglob("card.md")).read_text()
            else:
                assert err.startswith("error: ")
                assert (out, left) == ("", set())

    check()
    assert min(seen.values()) >= 4, "tables of both kinds, or this would show little"
