"""Figures of README and docs are those of the file of claims, and a wrong or a new figure is found."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import claims as script
import pytest
from claims import FILE, ROOT, Claim, ClaimError, Claims, Exemption, Figure, Place, read_values

CLAIMS = Claims.load()
QUICK = [claim for claim in CLAIMS.claims if claim.quick]
PAGES = sorted({place.page for claim in CLAIMS.claims for place in claim.places})
ACCURACIES = [claim for claim in CLAIMS.claims if claim.kind == "accuracy" and claim.measured]


def by_name(claim: Claim) -> str:
    return claim.name


@pytest.mark.parametrize("claim", CLAIMS.claims, ids=by_name)
def test_pages_kept_results_and_code_say_what_the_file_of_claims_says(claim):
    assert list(script.differences(claim, ROOT)) == []


def test_every_number_of_the_readme_is_a_claim_or_claims_nothing():
    assert script.unsupported_numbers("README.md", CLAIMS) == []


def test_no_exemption_is_left_over():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [each for each in CLAIMS.exemptions if not script.re.search(each.pattern, page)] == []


def test_the_file_is_written_as_it_is_read():
    assert (ROOT / FILE).read_text(encoding="utf-8") == CLAIMS.text()


@pytest.mark.parametrize("claim", ACCURACIES, ids=by_name)
def test_accuracies_are_means_of_five_seeds_and_more_with_room_for_two_standard_errors(claim):
    assert len(claim.seeds) >= 5
    assert all(figure.tolerance >= 2 * figure.error for figure in claim.figures.values())


def test_what_soak_runs_trains_and_takes_three_minutes_of_one_core_at_most():
    assert any(claim.kind == "accuracy" for claim in QUICK)
    assert sum(claim.seconds for claim in QUICK) <= 180


@pytest.mark.soak
@pytest.mark.parametrize("claim", QUICK, ids=by_name)
def test_quick_commands_give_what_they_are_said_to_give(claim, real_data, tmp_path):
    """Measured twice, means were a quarter of a standard error apart, and three are allowed; `equidp compare`
    gives the same each time."""
    assert list(script.moved_figures(claim, script.measure(claim, ROOT, tmp_path))) == []


@pytest.mark.soak
def test_soak_alone_finds_a_page_that_differs_too():
    assert [sentence for claim in CLAIMS.claims for sentence in script.differences(claim, ROOT)] == []


@pytest.fixture
def checkout(tmp_path) -> Path:
    """Root with a copy of the file of claims and of all pages with claims."""
    for name in (FILE, *PAGES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def stated(claim: Claim) -> bool:
    """True where the README states a figure of the claim."""
    return any(place.page == "README.md" for place in claim.places)


@pytest.mark.parametrize("claim", [claim for claim in CLAIMS.claims if stated(claim)], ids=by_name)
def test_a_wrong_figure_of_the_readme_is_found(claim, checkout):
    page, place = checkout / "README.md", next(place for place in claim.places if place.page == "README.md")
    text = page.read_text(encoding="utf-8")
    for group in range(1, 1 + len(script.expected_numbers(claim, place))):
        start, end = script.stated_numbers(claim, place, text).span(group)
        page.write_text(f"{text[:start]}9{text[start:end]}{text[end:]}", encoding="utf-8")
        assert any("README.md" in each for each in script.differences(claim, checkout))
    page.write_text(text.replace(text[start:end], ""), encoding="utf-8")
    assert any("README.md" in each for each in script.differences(claim, checkout))


@pytest.mark.parametrize(
    "sentence",
    ["It is 17% better.", "It takes .5 seconds.", "It is twice as fast.", "| `x` | 3 |", "**2.0**"],
)
def test_a_new_figure_of_the_readme_without_a_claim_is_found(sentence, checkout):
    page = checkout / "README.md"
    page.write_text(f"{page.read_text(encoding='utf-8')}\n{sentence}\n", encoding="utf-8")
    assert len(script.unsupported_numbers("README.md", CLAIMS, checkout)) == 1


def test_code_and_links_claim_nothing(tmp_path):
    (tmp_path / "page.md").write_text(
        "`--epsilon 3` [is](2.md)\n```console\nequidp --epsilon 3\n```\n2023 is new"
    )
    exempt = Claims(exemptions=(Exemption("20[0-9]{2} is", "a year"),))
    assert script.unsupported_numbers("page.md", exempt, tmp_path) == []
    assert script.unsupported_numbers("page.md", Claims(), tmp_path) == ["page.md:5: 2023"]


@pytest.mark.parametrize(
    ("read", "text", "values"),
    [
        ("json rows[method=a, group=all].value", '{"rows": [%s]}', [1.0, 3.0]),
        ("json [method=a,seed=1].value", "[%s]", [3.0]),
        ("match is ([\\d,.]+) and", "it is 1,234.5 and more", [1234.5]),
        ("count ^yes", "yes\nno\nyes", [2.0]),
        (
            "cell Speed | equidp, dpsgd | 2",
            "## Speed of all\n\n| | s | x |\n| equidp, dpsgd | 1 | 2.5 (a) |\n",
            [2.5],
        ),
        ("code equidp.training.plan:Plan.epochs", "", [20.0]),
    ],
)
def test_outputs_are_read(read, text, values):
    records = (
        '{"method": "a", "group": "all", "seed": 0, "value": 1},'
        '{"method": "b", "group": "all", "seed": 0, "value": 2},'
        '{"method": "a", "group": "all", "seed": 1, "value": 3}'
    )
    assert read_values(read, text.replace("%s", records)) == values


def test_numbers_are_means_with_the_standard_error_over_seeds():
    outputs = ['{"a": 0.5, "b": 0.25}', '{"a": 0.7, "b": 0.25}']
    figure = Figure("json a", "json b", scale=100).measured(outputs, "accuracy")
    assert (figure.value, figure.error) == (35.0, 10.0)
    assert figure.tolerance >= 2 * figure.error
    assert f"{figure:.1f} {figure.standard_error:.0f} {Figure('', value=-0.25):~.2f}" == "35.0 10 -.25"


@pytest.fixture
def small(tmp_path) -> Path:
    """Root with a page and a claim of the mean of 1, 2 and 3, which states 7."""
    claim = Claim(
        "mean", command="python -c 'print({seed} + 1)'", seeds=(0, 1, 2), measured="2026-01-01",
        places=(Place("page.md", "It is {mean:.1f}%, ± {mean.standard_error:.2f}"),),
        figures={"mean": Figure("match ^(.+)$", value=7.0)},
    )  # fmt: skip
    (tmp_path / FILE).parent.mkdir()
    Claims((claim,)).save(tmp_path)
    (tmp_path / "page.md").write_text("Before 7.0%.\nIt is\n7.0%, ± 0.00 of all 7.0%.\n")
    return tmp_path


def test_a_figure_that_a_command_does_not_give_is_found(small):
    (sentence,) = script.check(Claims.load(small), ["mean"], small, small / "runs")
    assert "mean is 2" in sentence


def test_a_page_and_the_file_are_rewritten_by_what_the_command_gives(small):
    script.rewrite(Claims.load(small), [], small, small / "runs")
    (claim,) = Claims.load(small).claims
    assert claim.figures["mean"].value == 2.0
    assert claim.measured > "2026-01-01"
    assert (small / "page.md").read_text() == "Before 7.0%.\nIt is\n2.0%, ± 0.58 of all 7.0%.\n"
    assert script.check(Claims.load(small), ["mean"], small, small / "runs") == []


def test_a_stopped_measurement_goes_on_from_its_finished_runs(small):
    (claim,) = Claims.load(small).claims
    failing = replace(
        claim, command="python -c 'print({seed} + 1); assert {seed} < 2 or open(\"go\")'", adds=""
    )
    with pytest.raises(ClaimError, match="ended with 1"):
        script.measure(failing, small, small / "runs")
    kept = sorted((small / "runs").glob("*/*/outcome.json"))
    assert [path.parent.name for path in kept] == ["seed-0", "seed-1"]
    for path in kept:
        path.write_text(path.read_text().replace('"output": "', '"output": "10'))
    (kept[0].parents[1] / "seed-2" / "go").touch()
    assert script.measure(failing, small, small / "runs").figures["mean"].value == pytest.approx(
        (101 + 102 + 3) / 3
    )
    assert list((small / "runs").iterdir()) == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"figures": {"mean": Figure("match never")}}, "nothing in the output"),
        ({"figures": {"mean": Figure("guess it")}}, "expected json"),
        ({"figures": {"mean": Figure("cell Speed | x | 1")}}, "no table"),
    ],
)
def test_an_output_without_the_figure_is_refused(change, message, small):
    (claim,) = Claims.load(small).claims
    with pytest.raises(ClaimError, match=message):
        script.measure(replace(claim, **change), small, small / "runs")


def test_a_name_of_no_claim_is_refused():
    with pytest.raises(ClaimError, match="no claim is mena"):
        CLAIMS.named(["mena"])
