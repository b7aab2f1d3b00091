"""The checker of language sees docstrings that begin with questions and functions named by participles."""

from __future__ import annotations

import pytest

from support.language import find_banned_words, find_offences


def lines_found(folder, text: str) -> list[int]:
    (folder / "module.py").write_text(text)
    return [each.line for each in find_offences(folder)]


@pytest.mark.parametrize(
    "first", ["What it is.", "Whether it is.", "How many.", "Of a group.", "As, say, this."]
)
@pytest.mark.parametrize(
    ("form", "line"),
    [
        ('"""{}"""\n', 1),
        ('class Mean:\n    """{}"""\n', 2),
        ('def mean_of(values):\n    """{}"""\n', 2),
        ('SIZE = 3\n"""{}"""\n', 2),
        ('class Mean:\n    size: int\n    """{}"""\n', 3),
        ('class Mean:\n    @property\n    def size(self):\n        """{}"""\n', 4),
    ],
)
def test_docstrings_that_start_with_a_question_are_found(tmp_path, first, form, line):
    assert lines_found(tmp_path, form.format(first)) == [line]


@pytest.mark.parametrize(
    ("form", "lines"), [("def mean_of(values):\n    {}\n", [2]), ("class Mean:\n    {}\n", [])]
)
def test_docstrings_of_functions_in_the_third_person_are_found(tmp_path, form, lines):
    assert lines_found(tmp_path, form.format('"""Returns it."""')) == lines


@pytest.mark.parametrize(
    "first", ["Return the mean.", "Mean of values.", "Often used.", "Whatever is given."]
)
def test_other_docstrings_are_not_found(tmp_path, first):
    assert lines_found(tmp_path, f'"""{first}"""\n') == []


@pytest.mark.parametrize("name", ["kept", "_measured", "told", "__drawn"])
def test_functions_named_by_a_participle_are_found(tmp_path, name):
    assert lines_found(tmp_path, f"def {name}():\n    pass\n\nclass Run:\n    def {name}(self): ...\n") == [
        1,
        5,
    ]


@pytest.mark.parametrize("name", ["keep_run", "released_counts", "seed", "_embed", "read"])
def test_other_functions_are_not_found(tmp_path, name):
    assert lines_found(tmp_path, f"def {name}():\n    pass\n") == []


@pytest.mark.parametrize(("folder", "found"), [("accounting", [1]), ("report", []), ("cli", [])])
def test_functions_that_write_sentences_are_found_below_the_reports(tmp_path, folder, found):
    (tmp_path / folder).mkdir()
    assert lines_found(tmp_path / folder, "def risk_in_words():\n    pass\n") == found


def test_properties_may_be_participles(tmp_path):
    properties = [
        f"    @{kind}\n    def closed(self): ...\n" for kind in ("property", "functools.cached_property")
    ]
    assert lines_found(tmp_path, "class File:\n" + "".join(properties)) == []


@pytest.mark.parametrize(
    "text",
    [
        "The verdict is undecided.",
        "`says nothing` is a verdict: 'says nothing'",
        "A file that may leave.",
        "equidp compare --tau 0.02",
        "compare(reference='plan')",
        "the group that pays most",
        "The worst-off group.",
        "Kept runs are read.",
        "Train anew.",
        "a picture",
        "It cannot be told.",
        "it is settled",
        "a cell that is no number",
        "a constant answer",
    ],
)
def test_words_that_the_glossary_replaced_are_found(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(f"Fine.\n{text}\n")
    assert [each.line for each in find_banned_words([page])] == [2]


@pytest.mark.parametrize("text", ["a direction may leave out mass", "taught", "pictured", "tau in a formula"])
def test_other_words_are_not_found(tmp_path, text):
    page = tmp_path / "page.md"
    page.write_text(f"{text}\n")
    assert not list(find_banned_words([page]))
