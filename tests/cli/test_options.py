"""Options of the command line arrive as they were typed, and errors show their form."""

from __future__ import annotations

import pytest

from equidp.cli.app import app
from equidp.cli.settings import parse_set
from equidp.errors import SettingError
from support.command import people  # noqa: F401 -- a fixture
from support.errors import raises_field

TRAIN = "train people.csv --target income --group sex --epsilon 3 --dry-run"
COMPARE = "compare people.csv --target income --group sex"


@pytest.mark.parametrize(
    ("typed", "toml", "message"),
    [
        (f"{TRAIN} --seed 1.5", "", "expected a whole number"),
        (TRAIN, "[training]\nbatch_size = 100.7", "expected a whole number"),
        (f"{COMPARE} --jobs 0", "", "jobs=0; expected a whole number >= 1"),
        (TRAIN, '[train]\nmethod = "sgd"', "unknown section 'train'. Did you mean 'training'?"),
        (f"{TRAIN} --epsilon 4", "", "--epsilon specified multiple times"),
        (f"{TRAIN} --class-weight no=2 --class-weight yes=8", "", "--class-weight specified multiple times"),
        ("verify", "", "parameter RUN requires an argument"),
    ],
)
def test_what_a_parser_might_pass_over_is_refused(people, command, typed, toml, message):  # noqa: F811
    (people / "given.toml").write_text(toml)
    code, _, err = command(*typed.split(), *(("--config", "given.toml") if toml else ()), cwd=people)
    assert code == 2
    assert message in err


@pytest.mark.parametrize("option", ["--person", "--method", "--model"])
def test_an_empty_text_is_no_value(option):
    """A variable that a script leaves unset would drop a promise, such as whom epsilon protects."""
    for given in ((option, ""), (f"{option}=",)):
        with raises_field(SettingError, option):
            app.parse_args(["train", "people.csv", *given], print_error=False, exit_on_error=False)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("training.momentum=0.9", ("training", {"momentum": 0.9}, "")),
        ("training.batch-size=64", ("training", {"batch_size": 64}, "")),
        ("training.class_weight=no=1,yes=8", ("training", {"class_weight": "no=1,yes=8"}, "")),
        ("training.class_weight={no = 1, yes = 8}", ("training", {"class_weight": {"no": 1, "yes": 8}}, "")),
        ("table.sep=;", ("table", {"sep": ";"}, "")),
        ('table.sep="\\t"', ("table", {"sep": "\t"}, "")),
        ("column.zip.kind=text", ("column", {"kind": "text"}, "zip")),
        ("column.age.missing=-999", ("column", {"missing": ("-999",)}, "age")),
        ("column.age.missing=007", ("column", {"missing": ("007",)}, "age")),
        ('column.age.missing=["a", "b"]', ("column", {"missing": ("a", "b")}, "age")),
        ("column.Hb, g/dL.range=[0, 20.5]", ("column", {"range": (0, 20.5)}, "Hb, g/dL")),
        ('column."a.b".decimal=,', ("column", {"decimal": ","}, "a.b")),
        ("card.review_date=2027-01-31", ("card", {"review_date": "2027-01-31"}, "")),
    ],
)
def test_a_field_of_run_toml_is_set_by_its_section_and_name(text, found):
    assert parse_set(text) == found
