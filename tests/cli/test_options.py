"""Every option of every command parses, also those of earlier versions, and errors show its form."""

from __future__ import annotations

from itertools import pairwise

import pytest
from cyclopts import RepeatArgumentError

from equidp.cli.app import app
from equidp.cli.options import parse_bounds
from equidp.cli.train import _read_notes
from equidp.data import Recipe
from equidp.errors import SettingError
from support.command import people  # noqa: F401 -- a fixture
from support.errors import raises_field

FILE = (
    "--target income --group sex,job --drop id --missing category --bounds age=0:100 --test-share 0.3"
    " --categorical zip --numeric bmi --date born=dayfirst,seen --na none,bmi=x --sep ; --charset latin-1"
    " --thousands point --decimal comma"
)
PLAN = "--model mlp --epochs 2 --batch-size 64 --learning-rate 0.1"
BUDGET = "--budget b.ledger --budget-epsilon 3 --budget-delta 1e-6"
RELEASE = "--individual --set release_epsilon=0.2"
ONCE = {
    "train": f"people.csv --out run {FILE} {PLAN} {BUDGET} {RELEASE}"
    " --method dpsgd-f --epsilon 3 --delta 1e-5 --noise-multiplier 1.1"
    " --set momentum=0.9 --set weight_decay=0.01 --clipping-bound 0.5 --set smoothing=0.9"
    " --set initial_bound=10 --seed 3 --set engine=functional --accountant rdp --set beyond_budget=stop"
    " --set checkpoint_seconds=5 --dry-run --card-notes notes.txt",
    "compare": f"--data people.csv {FILE} {PLAN} {RELEASE} --methods sgd,dpsgd --seeds 2 --epsilon 1,3"
    " --noise-multiplier 1.1 --delta 1e-5 --clipping-bound 0.5 --set smoothing=0.9 --set initial_bound=10 "
    "--gap-tolerance 0.1"
    " --report r.html --json r.json --directory runs --jobs 1 --engine ghost --include-sensitive --diagnose"
    " --diagnose-every 10 --diagnose-groups a,b",
    "inspect": "people.csv --recipe r.toml --target income --group sex --person id --out r --json f.json",
    "account": "--examples 60000 --batch-size 256 --epochs 60 --steps 10 --noise-multiplier 0.8 --epsilon 3"
    " --delta 1e-6 --method dpsgd-f --accountant rdp-classic",
    "methods": "--json",
    "evaluate": "run others.csv --baseline run-sgd --level 0.9 --json figures.json",
    "predict": "run new.csv --keep id,since --out p.csv",
    "ledger show": "run --delta 1e-6",
}
"""What each command took when its options were still written by hand."""
LISTS = {
    *("--group", "--drop", "--categorical", "--numeric", "--date", "--na", "--methods", "--diagnose-groups"),
    *("--keep", "--set"),
}
"""Options whose values may be given one by one."""


def parsed(line: str) -> dict:
    _, bound, _ = app.parse_args(line.split(), print_error=False, exit_on_error=False)
    return bound.arguments


@pytest.mark.parametrize("command", ONCE)
def test_every_option_still_parses(command):
    assert parsed(f"{command} {ONCE[command]}")


@pytest.mark.soak
@pytest.mark.parametrize("command", ONCE)
def test_every_option_is_in_the_help(command, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    app([*command.split(), "--help"], result_action="return_value")
    text = capsys.readouterr().out
    for option in ONCE[command].split():
        if option.startswith("--"):
            assert f"{option} " in text
    assert "Examples:" in text


def test_options_of_a_run_that_continues_parse():
    assert parsed("train --resume run --previous")["resumed"].previous


def test_values_arrive_as_they_were_typed():
    given = parsed(f"train {ONCE['train']}")
    assert given["table"].group == ("sex", "job")
    assert given["table"].whole() == Recipe(
        target="income",
        group=("sex", "job"),
        drop=("id",),
        missing="category",
        bounds=(("age", 0.0, 100.0),),
        test_share=0.3,
        categorical=("zip",),
        numeric=("bmi",),
        date=(("born", "dayfirst"), ("seen", "iso")),
        na=(("*", "none"), ("bmi", "x")),
        thousands=(("*", "."),),
        decimal=(("*", ","),),
        sep=";",
        charset="latin-1",
    )
    for typed in ("--na -999,age=-1", "--na=-999 --na age=-1"):
        assert parsed(f"inspect p.csv {typed}")["table"].whole().na == (("*", "-999"), ("age", "-1"))
    assert parsed("inspect p.csv --thousands ,")["table"].whole().thousands == (("*", ","),)
    assert given["plan"].learning_rate == 0.1
    assert "smoothing=0.9" in given["settings"].set
    assert given["privacy"].target({}).epsilon == 3.0
    given = parsed(f"compare {ONCE['compare']}")
    assert given["wanted"].epsilons == (1.0, 3.0)
    assert given["wanted"].methods == ("sgd", "dpsgd")
    assert given["diagnosis"].plan().groups == ("a", "b")


@pytest.mark.parametrize("command", ONCE)
def test_no_option_of_one_value_is_given_twice(command):
    """A list goes on; of anything else one of the two values would be lost."""
    words = f"{command} {ONCE[command]}".split()
    options = [*(at for at, word in enumerate(words) if word.startswith("--")), len(words)]
    for start, end in pairwise(options):
        if words[start] not in LISTS and (command, words[start]) != ("compare", "--epsilon"):
            with pytest.raises(RepeatArgumentError):
                app.parse_args([*words, *words[start:end]], print_error=False, exit_on_error=False)


def test_columns_may_have_commas_in_their_names():
    drop = ["train", "people.csv", "--drop", 'job,"Hb, g/dL"']
    _, bound, _ = app.parse_args(drop, print_error=False, exit_on_error=False)
    assert bound.arguments["table"].drop == ("job", "Hb, g/dL")


TRAIN = "train people.csv --target income --group sex --epsilon 3 --dry-run"
COMPARE = "compare people.csv --target income --group sex"


@pytest.mark.parametrize(
    ("typed", "toml", "message"),
    [
        (f"{TRAIN} --seed 1.5", "", "expected a whole number"),
        (TRAIN, "batch_size = 100.7", "expected a whole number"),
        (f"{TRAIN} --group-as-input=maybe", "", "--group-as-input is 'maybe'; expected true or false"),
        (f"{COMPARE} --jobs 0", "", "jobs=0; expected a whole number >= 1"),
        (TRAIN, '[train]\nmethod = "sgd"', "Unknown option"),
        (COMPARE, 'methods = ["dpsgdf"]', "dpsgdf"),
        (f"{TRAIN} --epsilon 4", "", "--epsilon is given twice; give it once"),
        (f"{TRAIN} --decimal a=comma --decimal b=comma", "", "--decimal is given twice; give it once"),
        (f"{TRAIN} --bounds a=0:1 --bounds b=0:1", "", "--bounds is given twice"),
        (f"{TRAIN} --thousands a=comma --thousands b=point", "", "--thousands is given twice"),
        (f"{TRAIN} --class-weight no=2 --class-weight yes=8", "", "--class-weight is given twice"),
        ("ledger show", "", "equidp ledger show needs FILE"),
    ],
)
def test_what_a_parser_might_pass_over_is_refused(people, command, typed, toml, message):  # noqa: F811
    (people / "given.toml").write_text(toml)
    code, _, err = command(*typed.split(), *(("--config", "given.toml") if toml else ()), cwd=people)
    assert code == 2
    assert message in err


def test_notes_for_a_card_are_text_of_a_file(tmp_path):
    path = tmp_path / "notes.txt"
    for content in (None, b"", b"\xff\xfe\x00", b"a" * 30_000):
        if content is not None:
            path.write_bytes(content)
        with raises_field(SettingError, "--card-notes"):
            _read_notes(path)
    path.write_text("Purpose: beds.\n\nWho answers: ward 3.")
    assert _read_notes(path) == path.read_text()


def test_bounds_are_ranges_by_column():
    assert parse_bounds("age=0:100, hours=-1.5:99") == {"age": (0.0, 100.0), "hours": (-1.5, 99.0)}
    assert parse_bounds("") == {}
    with raises_field(SettingError, "bounds"):
        parse_bounds("age=0:1,age=0:2")
    for wrong in ("age", "age=5", "age=9:1", "=0:1", "age=0:inf", "age=a:b", "age=0:1:2"):
        with raises_field(SettingError, "bounds"):
            parse_bounds(wrong)


@pytest.mark.parametrize("option", ["--person", "--weight", "--bounds", "--thousands", "--method", "--model"])
def test_an_empty_text_is_no_value(option, tmp_path):
    """A variable that a script leaves unset would drop a promise, such as whom epsilon protects."""
    (tmp_path / "given.toml").write_text(f'{option[2:]} = ""')
    for given in ((option, ""), (f"{option}=",), ("--config", str(tmp_path / "given.toml"))):
        with raises_field(SettingError, option):
            app.parse_args(["train", "people.csv", *given], print_error=False, exit_on_error=False)


@pytest.mark.parametrize(
    ("typed", "closest"),
    [
        ("train p.csv --epsilonn 3", " Did you mean --epsilon?"),
        ("train p.csv --batch_siz=3", " Did you mean --batch-size?"),
        ("evaluate run --epsilon 3", ""),
        ("predict run --target x", ""),
    ],
)
def test_an_unknown_option_is_compared_by_its_words(command, tmp_path, typed, closest):
    """Not by the dashes that all have: --json is not what --epsilon meant."""
    code, _, err = command(*typed.split(), cwd=tmp_path)
    assert (code, " Did you mean" in err, closest in err) == (2, bool(closest), True)


@pytest.mark.parametrize(
    "typed",
    [
        "--date a=iso,a=dayfirst",
        "--date a --date a=iso",
        "--decimal a=comma,a=point",
        "--thousands comma,point",
    ],
)
def test_a_column_is_written_in_one_way(typed):
    with raises_field(SettingError, "date" if "date" in typed else "marks"):
        parsed(f"train p.csv {typed}")["table"].whole()


def test_what_help_says_of_an_option_is_one_paragraph(command, people):  # noqa: F811
    """Docstrings have line ends of their own; a terminal wraps by its width alone."""
    code, out, _ = command("compare", "--help", cwd=people)
    assert code == 0
    assert "such as clipping_bound=1,2,5; several: all combinations." in out
