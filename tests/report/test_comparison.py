"""The report says what the figures say, and needs no other file."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from rich.console import Console

from equidp.comparison.recommend import Recommendation, Standing
from equidp.comparison.result import Comparison
from equidp.data.dataset import ALL
from equidp.display import points
from equidp.evaluation.costs import equal_cost, summary
from equidp.evaluation.metrics import METRICS
from equidp.report import comparison as html, words
from equidp.report.comparison import print_comparison
from equidp.report.format import upper
from equidp.report.summary import summarise
from support.made_up import made_up, with_setup

CLEAR = {"dpsgd": {"a": 0.02, "b": 0.40}, "fair": {"a": 0.03, "b": 0.05}}


def findings_of(comparison: Comparison) -> list[str]:
    return words.finding_sentences(summarise(comparison))


def test_clear_differences_are_named_with_their_figures():
    pays, narrows, holds = findings_of(made_up(CLEAR, spread=0.001))
    assert re.fullmatch(
        r"Under dpsgd, privacy costs group b most: (39|40)\.\d points of accuracy, "
        r"where group a loses [12]\.\d\.",
        pays,
    )
    assert re.fullmatch(
        r"fair narrows the largest gap between groups from 3[78]\.\d to [12]\.\d points\.", narrows
    )
    assert (
        ": within tolerance under fair; exceeds tolerance under dpsgd (95% intervals over 5 seeds)" in holds
    )


def test_findings_are_silent_where_seeds_differ_by_more():
    pays, narrows, holds = findings_of(
        made_up({"dpsgd": {"a": 0.1, "b": 0.11}, "fair": {"a": 0.1, "b": 0.1}}, spread=0.1)
    )
    assert "no group clearly loses more" in pays
    assert "No method" in narrows
    assert "inconclusive" in holds


def test_one_seed_supports_no_finding():
    pays, narrows, holds = findings_of(made_up(CLEAR, seeds=1))
    assert "One run shows no tendency" in pays
    assert "In this one run" in narrows
    assert "cannot be judged from one seed" in holds


def test_one_seed_without_a_difference_names_nobody():
    """Neither a group that pays most where all pay the same, nor a method that narrows a gap where there is
    none."""
    same = {"dpsgd": {"a": 0.1, "b": 0.1}, "fair": {"a": 0.1, "b": 0.2}}
    pays, narrows, _ = findings_of(made_up(same, seeds=1, spread=0.0))
    assert "costs no group more than the others" in pays
    assert "No method has a smaller gap between groups than dpsgd (0.0 points)" in narrows


@pytest.fixture(scope="module", params=["one seed", "epsilons"])
def comparison(request):
    return {
        "one seed": lambda: made_up(CLEAR, seeds=1),
        "epsilons": lambda: made_up(CLEAR, epsilons=(1.0, 3.0, 8.0)),
    }[request.param]()


@pytest.fixture(scope="module")
def page(comparison):
    return html.render(comparison)


@pytest.mark.soak
def test_the_page_needs_nothing_else_and_is_always_the_same(comparison, page):
    references = re.findall(r"(?:src|href|url)\s*[=(]\s*[\"']?([^\"')\s>]+)", page)
    assert all(reference.startswith("#") for reference in references)
    assert "<script" not in page
    assert page == html.render(comparison)
    assert "nan" not in re.sub(r"<svg.*?</svg>", "", page, flags=re.DOTALL).lower().replace("finance", "")


@pytest.mark.soak
def test_the_page_states_every_figure_and_the_guarantee(comparison, page):
    for row in summarise(comparison).overview:
        assert points(row.value) in page
        assert row.verdict in page
        if row.worst_group:
            assert points(row.gap.value) in page
    for promise in (
        "one training example",
        "Poisson sample",
        "1e-05",
        "does not cover",
        "without privacy",
        "A note on preparation.",
    ):
        assert promise in page


@pytest.mark.soak
def test_odd_names_are_text_and_not_markup(tmp_path):
    odd = made_up({"dpsgd": {"<b>&'": 0.3, "$x_1$ [red]": 0.02}, "fair": {"<b>&'": 0.1, "$x_1$ [red]": 0.02}})
    page = html.render(odd)
    assert "<b>&'" not in page
    assert "&lt;b&gt;" in page
    console = Console(record=True, width=120, file=(tmp_path / "out").open("w"))
    print_comparison(odd, console)
    assert "$x_1$ [red]" in console.export_text()


@pytest.mark.soak
def test_the_terminal_shows_the_figures(comparison, tmp_path):
    console = Console(record=True, width=100, file=(tmp_path / "out").open("w"))
    print_comparison(comparison, console)
    text = console.export_text()
    for heading in ("largest loss", "largest gap"):
        assert heading in text
    row = summarise(comparison).overview[1]
    assert points(row.gap.value) in text
    assert row.verdict.split()[0] in text


@pytest.mark.soak
@pytest.mark.usefixtures("no_plots")
def test_page_and_terminal_show_the_differences_from_a_named_method(tmp_path):
    comparison = made_up(CLEAR)
    assert "Differences from" not in html.render(comparison)
    named = replace(comparison, setup=replace(comparison.setup, against="dpsgd"))
    page, console = html.render(named), Console(record=True, width=80, file=(tmp_path / "out").open("w"))
    print_comparison(named, console)
    text = console.export_text()
    means = [points(row) for row in named.differences()["mean"]]
    for shown in (page, text):
        assert "Differences from dpsgd" in shown
        assert all(mean in shown for mean in means)
    assert f"fair accuracy, worst group {means[1]}" in " ".join(text.split())


@pytest.mark.soak
@pytest.mark.usefixtures("no_plots")
def test_a_report_replaces_the_old_one_whole(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(html, "render", lambda comparison: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        html.write_report(made_up(CLEAR), path)
    assert path.read_text() == "old"
    monkeypatch.undo()
    html.write_report(made_up(CLEAR), path)
    assert path.read_text().startswith("<!DOCTYPE html>")
    assert len(list(tmp_path.iterdir())) == 1


def test_groups_with_few_test_examples_are_named():
    comparison = made_up(CLEAR, spread=0.001)
    *_, caution = findings_of(with_setup(comparison, test_group_sizes=(4, 200)))
    assert caution.startswith("Few test examples: a 4. One more or one fewer correct prediction")


def test_what_rounds_to_nothing_has_no_sign():
    assert points(-0.0004) == points(0.0004) == "0.0"
    assert points(-0.0006) == "-0.1"


def test_a_number_rounded_up_is_never_below_the_truth():
    for value in (3.00331, 2.9999999, 0.25, 1e-6, 9.9983e-7):
        assert value * (1 - 1e-9) <= float(upper(value)) <= value * 1.01
    assert upper(3.00331) == "3.004"
    assert upper(float("inf")) == "∞"


def with_results(comparison: Comparison, **columns: object) -> Comparison:
    return replace(comparison, results=comparison.results.assign(**columns))


@pytest.mark.soak
def test_a_method_no_better_than_one_answer_is_named():
    """Its models may give no other: then what it costs a group is how often the other classes are right
    there."""
    comparison = made_up({"dpsgd": {"a": 0.01, "b": 0.01}, "dpsgd-f": {"a": 0.0, "b": 0.1}}, spread=0.001)
    informative = comparison.results["method"] != "dpsgd"
    comparison = with_results(
        with_setup(comparison, most_frequent_class=("no", 0.9)), informative=informative
    )
    *_, holds, sentence = findings_of(comparison)
    assert "exceeds tolerance under dpsgd-f; uninformative under dpsgd (" in holds
    assert sentence.startswith(
        "Always predicting 'no' would be correct for 90.0% of the test examples. By accuracy, dpsgd is no "
        "better"
    )
    assert 'class="left within-tolerance"' not in html.render(comparison)
    useless = with_results(comparison, informative=comparison.results["method"] != "sgd")
    said = " ".join(findings_of(useless))  # on costs against a reference that tells nothing
    assert said.startswith("The non-private reference, sgd, is no better than one constant prediction")
    assert "within tolerance" not in said


@pytest.mark.soak
def test_with_several_epsilons_each_sentence_names_its_own():
    sentences = findings_of(made_up(CLEAR, epsilons=(1.0, 3.0), spread=0.001))
    assert [sentence.split(":")[0] for sentence in sentences] == ["At epsilon 1", "At epsilon 3"]
    assert all("at a tolerance of" in sentence for sentence in sentences)


def test_predicted_risks_that_are_off_are_said():
    comparison = made_up(CLEAR, spread=0.001)
    private = comparison.results["method"] != "sgd"
    shares = {"mean_predicted": 0.08 - 0.061 * private, "observed": 0.08}
    *_, sentence = findings_of(with_results(comparison, **shares))
    assert "8.0% happened, and on average dpsgd 1.9%, fair 1.9% were predicted" in sentence


@pytest.mark.soak
def test_a_group_that_no_model_learns_is_said():
    """Trial 4: eights at 0.0% under every method, plain SGD too, and no word of it."""
    comparison = made_up(CLEAR, spread=0.001)
    never = comparison.results["group"] == "b"
    none = with_results(comparison, accuracy=comparison.results["accuracy"].where(~never, 0.0))
    (sentence,) = [each for each in findings_of(none) if "no model here learns it" in each]
    assert sentence.startswith("Accuracy is 0.0 in group b under every method, sgd without privacy too")
    own = none.results["method"] == "sgd"
    learnt = with_results(none, accuracy=none.results["accuracy"].where(~(own & never), 0.4))
    assert not any("no model here learns it" in each for each in findings_of(learnt))


@pytest.mark.soak
def test_a_metric_of_losses_is_in_its_own_unit(tmp_path):
    comparison = replace(made_up(CLEAR, spread=0.001), metric=METRICS["log_loss"])
    comparison = with_results(comparison, log_loss=1 - comparison.results["accuracy"])
    pays, narrows, _ = findings_of(comparison)
    assert "costs group b most: 0.400 of log loss, where group a loses 0.02" in pays
    assert narrows.endswith("of log loss.")
    page = html.render(comparison)
    assert "privacy cost, log loss" in page
    console = Console(record=True, width=100, file=(tmp_path / "out").open("w"))
    print_comparison(comparison, console)
    assert "costs and gaps in log loss against sgd" in " ".join(console.export_text().split())


def recommendation(**fields) -> str:
    comparison = made_up(CLEAR, spread=0.001)
    vars(comparison)["_recommendations"] = (Recommendation(**fields),)
    (sentence,) = words.recommendation_sentences(summarise(comparison))
    return sentence


def test_a_recommendation_says_how_sure_it_is_and_how_the_others_compare():
    fair, poor = Standing("fair", 0.851, 0.02, 0.0), Standing("poor", 0.7, 0.0, 0.152)
    dpsgd = Standing("dpsgd", 0.85, 0.1, 0.001)
    given = {"epsilon": None, "method": "fair", "chosen": fair, "seeds": 5}
    assert recommendation(**given, worse=(poor,), wider=(dpsgd,)) == (
        "Take fair: accuracy 85.1, largest gap between groups 2.0 points. This is clear. Clearly worse in "
        "accuracy: poor (15.2). With a clearly larger gap: dpsgd (10.0)."
    )
    unsure = recommendation(**{**given, "epsilon": 1.0}, alike=(dpsgd,), uninformative=("silent",))
    assert unsure.startswith("At epsilon 1: take fair: accuracy")
    assert "This is not certain; more seeds would help. Not clearly different" in unsure
    assert "No better than one constant prediction: silent." in unsure
    beaten = recommendation(**given, beaten=(replace(poor, by="fair"),))
    assert "another method is on average at least as good in every group: poor, behind fair." in beaten
    assert "by more than the tolerance on average: poor" in recommendation(**given, far_behind=(poor,))
    assert "No other method was compared." in recommendation(**given)
    many = tuple(replace(poor, label=str(at)) for at in range(6))
    assert "3 (15.2), and 2 more." in recommendation(**given, worse=many)


def test_no_method_is_taken_where_one_has_the_gap_and_another_the_accuracy():
    mine, dpsgd = Standing("mine", 0.78, 0.28, 0.02), Standing("dpsgd", 0.8, 0.3, 0.0)
    said = recommendation(epsilon=3.0, seeds=5, alike=(mine, dpsgd))
    assert said.startswith(
        "At epsilon 3: no method is clearly the one to take. mine has the smallest gap (gap 28.0, accuracy "
        "78.0), and dpsgd the best accuracy (gap 30.0, accuracy 80.0)"
    )
    assert "take mine" not in said


def test_no_recommendation_says_why():
    one = "One run of each method supports no recommendation; use more seeds."
    assert recommendation(epsilon=None, seeds=1) == one
    assert recommendation(epsilon=3.0, seeds=5, uninformative=("dpsgd",)) == (
        "At epsilon 3: no method can be recommended: no private model is better than one constant prediction."
    )


COSTLY = {
    "dpsgd": {"a": 0.021, "b": 0.402, "c": 0.113},
    "naive": {"a": 0.034, "b": 0.251, "c": 0.127},
    "fair": {"a": 0.038, "b": 0.057, "c": 0.049},
}


class _Tables(HTMLParser):
    """Rows of each table: per cell, its own text and its small print."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tables: list[list[list[list[str]]]] = []
        self._part: int | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append(["", ""])
            self._part = 0
        elif tag == "small":
            self._part = 1

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._part = None

    def handle_data(self, data: str) -> None:
        if self._part is not None:
            self.tables[-1][-1][-1][self._part] += data


def _shown(metric: str, value: float) -> object:
    """What a rounded figure must lie near: points to a tenth, losses to three digits or a thousandth."""
    return (
        pytest.approx(100 * value, abs=0.0501)
        if metric in ("accuracy", "privacy_cost")
        else pytest.approx(value, abs=6e-4, rel=6e-3)
    )


def _columns_by_metric(comparison: Comparison) -> list[tuple[str, list[list[list[str]]]]]:
    tables = _Tables(html.render(comparison)).tables
    return list(zip(("accuracy", "privacy_cost", "loss", "excessive_risk"), tables[1:5], strict=True))


@pytest.mark.soak
@pytest.mark.parametrize("seeds", [1, 5])
@pytest.mark.usefixtures("no_plots")
def test_each_cell_of_the_pages_detail_tables_is_the_frames(seeds):
    comparison = made_up(COSTLY, seeds=seeds)
    frame = summary(comparison.costs()).set_index(["group", "method"])
    checked = 0
    for metric, (heading, *rows) in _columns_by_metric(comparison):
        methods = [text for text, _ in heading[2:]]
        assert set(COSTLY) <= set(methods)
        assert [row[0][0] for row in rows] == ["a", "b", "c", ALL]
        for (group, _), _, *cells in rows:
            for method, (mean, interval) in zip(methods, cells, strict=True):
                expected = frame.loc[(group, method)]
                assert float(mean) == _shown(metric, expected[f"{metric}_mean"])
                assert bool(interval) == (seeds > 1)
                if interval:
                    low, high = map(float, interval.split(" to "))
                    assert low == _shown(metric, expected[f"{metric}_low"])
                    assert high == _shown(metric, expected[f"{metric}_high"])
                checked += 1
    assert checked >= 4 * 4 * len(COSTLY)


@pytest.mark.soak
@pytest.mark.usefixtures("no_plots")
def test_each_row_of_the_pages_summary_is_the_frames():
    comparison = made_up(COSTLY)
    frame = summary(comparison.costs()).set_index(["group", "method"])
    verdicts = equal_cost(comparison.costs()).set_index("method")
    for row in _Tables(html.render(comparison)).tables[0][2:]:
        (method, _), (epsilon, _), (accuracy, _), (cost, _), (hardest, _), (gap, interval), (verdict, _) = row
        worst = frame["privacy_cost_mean"].xs(method, level="method").drop(ALL)
        assert float(epsilon) == pytest.approx(frame.loc[(ALL, method), "epsilon"])
        assert float(accuracy) == _shown("accuracy", frame.loc[(ALL, method), "accuracy_mean"])
        assert float(cost) == _shown("privacy_cost", frame.loc[(ALL, method), "privacy_cost_mean"])
        name, most = hardest.split(": ")
        assert name == worst.idxmax()
        assert float(most) == _shown("privacy_cost", worst.max())
        assert float(gap) == _shown("privacy_cost", verdicts.loc[method, "gap_mean"])
        low, high = map(float, interval.split(" to "))
        assert low == _shown("privacy_cost", verdicts.loc[method, "gap_low"])
        assert high == _shown("privacy_cost", verdicts.loc[method, "gap_high"])
        assert verdict == verdicts.loc[method, "verdict"]
