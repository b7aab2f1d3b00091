"""The model card: what it says is what was spent, measured and kept, and nothing of the training data
beyond."""

from __future__ import annotations

import copy
import math
import re
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser

import pytest
import torch
import yaml
from torch import nn

import equidp
from equidp.errors import DataError, PrivacyWarning, SettingError
from equidp.evaluation.evaluation import evaluate
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event
from equidp.report.card import STATEMENTS, CardContent, write_content
from equidp.report.evaluation import summary_sentence
from equidp.report.format import upper
from equidp.runs.cards import split_noisy_means
from equidp.training.build import build
from equidp.training.initial_weights import mark_fresh
from support.errors import raises_field
from support.toy import make_trainer, toy


@pytest.fixture(scope="module")
def run():
    trainer = make_trainer(method=equidp.DPSGDF(1.0), epochs=3)
    trainer.fit()
    trainer.ledger.release(trainer.run_id, "individual privacy", 30.0, lambda noise: None)
    return trainer.run()


@pytest.fixture(params=["card.html", "card.md"])
def card(request, run, tmp_path):
    path = tmp_path / request.param
    content = CardContent(
        data="toys <b>|",
        evaluation=evaluate(run.model, toy(seed=1)),
        notes=["Means of age are not covered."],
        released={"a": 0.25},
        settings={"weights": "a|b"},
    )
    write_content(run, content, path)
    return path.read_text()


def rows_of_events(card: str) -> list[tuple[Event, int]]:
    """What the table of the guarantee adds up: each row of releases, steps or choices."""
    rows = re.findall(
        r"^\| ([\d,]+) (?:release|step)s?[^|]*\| sample rate ([\d.e-]+), noise multiplier ([\d.e-]+)"
        r"(?:, statistics noise ([\d.e-]+))? \|$",
        card,
        re.MULTILINE,
    )
    return [
        (Event(float(rate), float(noise), float(statistics) if statistics else None), int(count))
        for count, rate, noise, statistics in rows
    ]


def rows_of_settings(plan: equidp.Plan, folder) -> list[tuple[str, str]]:
    """Names and values of a card's settings, of a run by a plan."""
    run = build(plan.with_usual_noise().resolve(300), toy(), weights_seed=0).fit()
    equidp.write_card(run, folder / "card.md")
    settings = (folder / "card.md").read_text().rpartition("## Settings")[2]
    return re.findall(r"^\| ([^|]+) \| ([^|]*) \|$", settings, re.MULTILINE)


@pytest.mark.soak
def test_each_changed_option_of_a_plan_is_one_row_of_the_card(tmp_path):
    options = {"momentum": 0.5, "weight_decay": 0.25, "schedule": "linear", "average": "tail"}
    options |= {"average_share": 0.5, "class_weight": "no=1,yes=4", "loss": _loss}
    usual = rows_of_settings(equidp.Plan(batch_size=30, epochs=1), tmp_path)
    rows = rows_of_settings(equidp.Plan(batch_size=30, epochs=1, **options), tmp_path)
    expected = {
        "model": "logistic",
        "loss": "_loss",
        "epochs": "1",
        "momentum": "0.5",
        "weight decay": "0.25",
        "schedule of the learning rate": "linear",
        "average of the weights": "tail",
        "share of the steps in that average": "0.5",
        "weights of classes (public)": "no 1, yes 4",
        "learning rate": "0.1",
        "expected batch size": "30.0",
        "optimizer": "SGD",
    }
    assert expected.items() <= dict(rows).items()
    assert len({name for name, _ in rows}) == len(rows)
    always = {
        "model",
        "epochs",
        "momentum",
        "weight decay",
        "learning rate",
        "expected batch size",
        "optimizer",
    }
    assert expected.keys() & dict(usual).keys() == always


def _loss(outputs, targets):
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


@pytest.mark.soak
@pytest.mark.parametrize("releases", [1, 3])
def test_the_table_of_the_guarantee_adds_up_to_its_epsilon(tmp_path, releases):
    """Equal releases apart in the ledger, and steps of the same noise as one of them."""
    equal, other = Event(1.0, 16.5), Event(1.0, 70.0, name="counts")
    named = [Event(1.0, 16.5, name=f"release {at}") for at in range(releases)]
    entries = [(named[0], 1), (other, 1), *((each, 1) for each in named[1:]), (Event(0.25, 9.0), 40)]
    entries += [(equal, 2)]  # not named: steps
    given = make_trainer(epochs=1).fit()
    run = replace(given, entries=tuple(entries))
    equidp.write_card(run, tmp_path / "card.md")
    card = (tmp_path / "card.md").read_text()
    assert epsilon(rows_of_events(card), run.delta) == pytest.approx(run.epsilon(), rel=1e-5)
    assert sum(steps for _, steps in rows_of_events(card)) == sum(steps for _, steps in entries)
    named = re.findall(r"^\| 1 release of release \d \| sample rate 1, noise multiplier 16.5", card, re.M)
    assert len(named) == releases


@pytest.mark.soak
def test_the_card_says_epsilon_for_replacing_one_and_why_this_delta(tmp_path):
    run = make_trainer(epochs=1, delta=1e-4).fit()
    equidp.write_card(run, tmp_path / "card.md")
    card = (tmp_path / "card.md").read_text()
    said = float(re.search(r"replaced by another \| epsilon at most ([\d.]+)", card)[1])
    assert 2 * run.epsilon() < said < 4 * run.epsilon()
    assert "a tenth of 1/n" in card  # n = 300
    equidp.write_card(make_trainer(epochs=1, delta=2e-5).fit(), tmp_path / "card.md")
    assert "2e-05: set for this run" in (tmp_path / "card.md").read_text()


@pytest.mark.soak
def test_a_released_figure_that_noise_hides_is_not_shown(tmp_path):
    rows = [
        {"group": "a", "mean": 1.1, "standard_error": 0.2},
        {"group": "few", "mean": 0.0, "standard_error": 1.1},
    ]
    assert split_noisy_means(rows, 2.0) == (rows[:1], rows[1:])
    write_content(make_trainer(epochs=1).fit(), CardContent(too_noisy=["few"]), tmp_path / "card.md")
    assert "No released value of few: too few people" in (tmp_path / "card.md").read_text()


@pytest.mark.soak
def test_the_card_as_text_begins_with_what_hosts_of_models_read(run, tmp_path):
    equidp.write_card(run, tmp_path / "card.md", evaluation=evaluate(run.model, toy(seed=1)))
    read = yaml.safe_load((tmp_path / "card.md").read_text().split("---\n")[1])
    assert (read["library_name"], read["metrics"]) == ("equidp", ["accuracy"])
    assert "differential-privacy" in read["tags"]
    equidp.write_card(make_trainer(method=equidp.SGD(), noise_multiplier=0.0).fit(), tmp_path / "card.md")
    read = yaml.safe_load((tmp_path / "card.md").read_text().split("---\n")[1])
    assert "differential-privacy" not in read["tags"]
    assert "metrics" not in read


@pytest.mark.soak
def test_it_says_all_that_it_should(card, run):
    for part in (
        "differentially private for each training example",
        "differ by one example, added or removed",
        "30 steps",
        "sample rate 0.1, noise multiplier 1, statistics noise 10",
        "a; b",
        "no; yes",
        "Means of age are not covered.",
        "Mean epsilon of a group's members",
        "0.25",
        "Someone who owns several is protected less",
        f" with 2, {upper(run.epsilon(rows=4))} with 4, ",
        f"at most {math.ceil(1e4 * run.risk().true_positive_rates[0]) / 10:.1f} of 1,000 examples that were",
        "dp-accounting",
        "weights (SHA-256 of names and bytes of the state, in its order)",
        "the operating system",
        "DPSGDF",
        "Demographic parity difference:",
        "Recall by group: share of each class's examples",
        "95%",
    ):
        assert part in unescape(card), part
    metrics = run.metrics(toy(seed=1)).set_index("group")
    assert f"{100 * metrics.loc['b', 'accuracy']:.1f}" in card


@pytest.mark.soak
@pytest.mark.parametrize("name", ["card.html", "card.md"])
def test_metrics_by_group_and_what_they_hide_are_on_the_card(run, tmp_path, name):
    test = toy(seed=1)
    equidp.write_card(run, tmp_path / name, test=test)
    text = (tmp_path / name).read_text()
    found = evaluate(run.model, test)
    rows = found.values.set_index(["group", "metric"])
    assert "AUC" in text
    for group in ("a", "b", "all"):
        assert f"{rows.loc[(group, 'auc'), 'value']:.3f}" in text
        assert f"{100 * found.calibration.set_index('group').at[group, 'observed']:.1f}" in text
    assert "Positive class: 'yes'" in unescape(text)
    useless = replace(found, blind_spots=replace(found.blind_spots, uninformative=True))
    equidp.write_card(run, tmp_path / name, evaluation=useless)
    assert "No better than always predicting" in (tmp_path / name).read_text()
    equidp.write_card(run, tmp_path / name, evaluation=evaluate(run.model, test, metric="auc"))
    verdict = (
        f"Tested on 300 examples. Better than a coin (0.5): AUC {rows.loc[('all', 'auc'), 'value']:.3f} ("
    )
    assert verdict in (tmp_path / name).read_text()


def test_only_groups_that_are_clearly_worse_are_named():
    evaluation = evaluate(nn.Linear(5, 2), toy(seed=1))

    def summary(low: float) -> str:
        ends = {"a": (low, low - 0.05, low + 0.05), "b": (0.8, 0.7, 0.9), "all": (0.7, 0.6, 0.8)}
        values = evaluation.values
        values = values.assign(
            **{
                name: [ends[group][at] for group in values["group"]]
                for at, name in enumerate(("value", "low", "high"))
            }
        )
        return summary_sentence(replace(evaluation, values=values))

    assert "Clearly worse for a." in summary(0.5)
    assert "Clearly worse" not in summary(0.6)


@pytest.mark.soak
def test_both_formats_say_the_same_words_in_the_same_order(run, tmp_path):
    """But for captions of figures, which Markdown has not, and its front matter."""
    content = CardContent(
        data="toys <b>|",
        evaluation=evaluate(run.model, toy(seed=1)),
        released={"a": 0.25},
        remarks="One.\n\nTwo.",
        too_noisy=["few"],
    )
    paths = tmp_path / "card.html", tmp_path / "card.md"
    write_content(run, content, *paths)
    html, markdown = (path.read_text() for path in paths)
    html = re.sub(r"<figure>.*?</figure>", "", html[html.index("<h1>") :], flags=re.DOTALL)
    texts = re.findall(r"<(p|li|h\d)\b[^>]*>(.*?)</\1>", html, re.DOTALL)
    of_html = [unescape(re.sub(r"<[^>]+>", "", text)).strip() for _, text in texts]
    markdown = re.sub(r"\A---\n.*?\n---\n|```.*?```", "", markdown, flags=re.DOTALL)
    lines = [line for line in markdown.splitlines() if line and not line.startswith("|")]
    of_markdown = [unescape(re.sub(r"^(#+|-) ", "", line)).replace("\\|", "|") for line in lines]
    assert of_html == of_markdown
    assert len(of_html) > 30


@pytest.mark.soak
def test_a_handful_of_test_examples_have_no_figures(tmp_path):
    """A group of one: its loss is the chance that the model gave to that person's outcome."""
    whole = toy(seed=1)
    few = torch.cat([torch.nonzero(whole.groups == 0).flatten(), torch.nonzero(whole.groups == 1)[:2, 0]])
    run = make_trainer(epochs=1).fit()
    equidp.write_card(run, tmp_path / "card.md", test=whole.subset(few))
    card = (tmp_path / "card.md").read_text()
    assert "Left out of all metrics, including the totals: b. " in card
    assert "| b |" not in card
    assert "Tested on 150 examples." in card
    assert "| a | no |" in card
    assert "| a | 150 | " in card
    equidp.write_card(run, tmp_path / "card.html", test=whole.subset(few))
    assert "<th>b</th>" not in (tmp_path / "card.html").read_text()


@pytest.mark.soak
def test_names_cannot_break_the_page(card):
    assert "<b>|" not in card
    if card.startswith("# "):
        row = next(line for line in card.splitlines() if line.startswith("| weights"))
        assert row == "| weights | a\\|b |"
        return

    class Tags(HTMLParser):
        open: list[str] = []  # noqa: RUF012

        def handle_starttag(self, tag, attrs):
            if tag not in ("meta", "br"):
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    Tags().feed(card)
    assert not Tags.open


@pytest.mark.soak
def test_group_sizes_of_the_training_data_are_not_shown(tmp_path):
    """150 of each group in training, 31 of each in the test set: only the latter may be read off."""
    test = toy(seed=1)
    run = make_trainer().fit()
    equidp.write_card(run, tmp_path / "card.md", test=test.subset(test.groups.argsort()[119:181]))
    text = (tmp_path / "card.md").read_text()
    assert re.search(r"\b31\b", text)
    assert not re.search(r"\b150\b", text)


@pytest.mark.soak
def test_a_person_alone_in_a_group_is_not_revealed_by_class_or_gap(tmp_path):
    """The only test example of a group would show its class by its count, and its error as the fairness
    difference."""
    data = toy(seed=1)
    groups = data.groups.clone()
    groups[0] = 2
    test = equidp.GroupedDataset(data.inputs, data.targets, groups, ("a", "b", "alone"), data.class_names)
    run = make_trainer().fit()
    equidp.write_card(run, tmp_path / "card.md", test=test)
    card = (tmp_path / "card.md").read_text()
    assert "| alone |" not in card
    assert "the totals: alone. " in card
    equidp.write_card(run, tmp_path / "others.md", test=data.subset(torch.arange(1, len(data))))
    gap = re.compile(r"equalized odds difference: .* points")
    assert gap.search(card)[0] == gap.search((tmp_path / "others.md").read_text())[0]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["card.html", "card.md"])
def test_the_card_says_where_the_initial_weights_came_from(tmp_path, name):
    def card(trainer):
        run = trainer.fit()
        equidp.write_card(run, tmp_path / name)
        return " ".join(unescape((tmp_path / name).read_text()).split())

    data = toy()
    text = card(make_trainer(data))
    assert "initial weights" in text
    assert "If they were trained on this data, the epsilon of that training must be added" in text
    assert "Warning" not in text
    model = nn.Linear(5, 2)
    mark_fresh(model)
    assert "fresh: independent of the data" in card(make_trainer(data, model=model))
    raw = nn.Linear(5, 2)
    optimizer = torch.optim.SGD(raw.parameters(), lr=0.1, momentum=0.9)
    raw(data.inputs).sum().backward()
    optimizer.step()
    with pytest.warns(PrivacyWarning, match="the optimizer comes with state"):
        text = card(make_trainer(data, model=raw, optimizer=optimizer))
    assert "If raw gradients of this data are in it, the guarantee does not hold" in text


@pytest.mark.soak
def test_metrics_of_the_training_data_are_refused_in_a_card(tmp_path):
    trainer = make_trainer(toy(), average="tail")
    train, run = trainer.train, trainer.fit()
    same = equidp.GroupedDataset(
        train.inputs.clone(), train.targets, train.groups, train.group_names, train.class_names
    )
    other_order, part = train.subset(torch.randperm(300)), train.subset(torch.arange(40))
    half = equidp.GroupedDataset(
        torch.cat([train.inputs[:50], toy(50, seed=1).inputs]),
        *(each[:100] for each in (train.targets, train.groups)),
        train.group_names,
        train.class_names,
    )
    for data in (train, same, other_order, part, half):
        with raises_field(DataError, "test"):
            equidp.write_card(run, tmp_path / "card.md", test=data)
    assert not list(tmp_path.iterdir())
    equidp.write_card(run, tmp_path / "card.md", test=toy(seed=1))


def test_an_evaluation_of_another_model_is_refused_in_a_card(run, tmp_path):
    other = evaluate(copy.deepcopy(run.model), toy(seed=1))
    equidp.write_card(run, tmp_path / "card.md", evaluation=other)
    changed = copy.deepcopy(run.model)
    next(iter(changed.parameters())).data.add_(1.0)
    with raises_field(DataError, "evaluation"):
        equidp.write_card(run, tmp_path / "card.md", evaluation=evaluate(changed, toy(seed=1)))


@pytest.mark.soak
def test_a_card_of_a_run_before_the_last_step_counts_no_later_ones(tmp_path):
    trainer = make_trainer(toy())
    trainer.step()
    run = trainer.run()
    equidp.write_card(run, tmp_path / "before.md")
    while trainer.step():
        pass
    equidp.write_card(run, tmp_path / "after.md")
    assert (tmp_path / "before.md").read_text() == (tmp_path / "after.md").read_text()


@pytest.mark.parametrize("name", ["card.html", "card.md"])
def test_a_model_without_privacy_says_so(tmp_path, name):
    run = make_trainer(method=equidp.SGD(), noise_multiplier=None).fit()
    equidp.write_card(run, tmp_path / name)
    card = (tmp_path / name).read_text()
    assert "No guarantee: this model was trained without noise" in card
    assert "recompute epsilon" not in card
    assert "No test set was given" in card


def test_a_card_elsewhere_or_of_another_kind_is_refused(run, tmp_path):
    with raises_field(SettingError, "path"):
        equidp.write_card(run, tmp_path / "card.pdf")
    with raises_field(SettingError, "path"):
        equidp.write_card(run, tmp_path / "nowhere" / "card.md")
    assert not list(tmp_path.iterdir())


@pytest.mark.soak
def test_a_card_says_what_each_group_pays_where_bounds_differ(tmp_path, run):
    by_group = make_trainer(steps=4, epochs=None, accountant="rdp", bound_shares={"b": 0.5}).fit()
    equidp.write_card(by_group, tmp_path / "by-group.md")
    card = (tmp_path / "by-group.md").read_text()
    for name, found in by_group.epsilon_by_group().items():
        assert f"| epsilon of group {name} | {found:.6g} |" in card
    equidp.write_card(run, tmp_path / "alike.md")
    assert "epsilon of group" not in (tmp_path / "alike.md").read_text()


def test_the_card_shows_what_people_state_and_names_what_they_do_not(run, tmp_path):
    stated = {"intended_use": "Planning of beds.", "group_reason": "To see who is missed.", "runs_tried": 3}
    equidp.write_card(run, tmp_path / "card.md", title="Readmission", statements=stated)
    card = (tmp_path / "card.md").read_text()
    assert "# Readmission" in card
    assert f"| {STATEMENTS['runs_tried']} | 3 |" in card
    assert "| intended use | Planning of beds. |" in card
    missing = re.search(r"^Not stated: (.*)\.$", card, re.MULTILINE)[1]
    assert missing.split(", ") == [STATEMENTS[name] for name in STATEMENTS if name not in stated]
    with raises_field(SettingError, "statement", "purpose"):
        equidp.write_card(run, tmp_path / "card.md", statements={"purpose": "Beds."})


def test_three_figures_stand_at_the_head_of_a_card(run, tmp_path):
    equidp.write_card(run, tmp_path / "card.md", test=toy(seed=1))
    card = (tmp_path / "card.md").read_text()
    head = card[: card.index("## Guarantee")]
    figures = re.findall(r"^- (\S+) (.*)$", head, re.MULTILINE)
    assert len(figures) == 3
    assert float(figures[0][0]) >= run.epsilon()
    assert figures[2] == ("300", "examples trained on")


def test_a_card_says_that_it_is_no_determination_and_that_a_second_one_can_give_groups_away(run, tmp_path):
    equidp.write_card(run, tmp_path / "card.md", test=toy(seed=1))
    card = (tmp_path / "card.md").read_text()
    assert "This card is not the determination" in card
    assert "A second card of the same test people" in card


def test_equal_risks_of_groups_are_said_once_and_others_in_a_table(run, tmp_path):
    risk = run.risk().values_by_name()
    alike, apart = (tmp_path / name for name in ("alike.md", "apart.md"))
    write_content(run, CardContent(group_risks=dict.fromkeys(run.facts.groups, risk)), alike)
    write_content(run, CardContent(group_risks={"a": dict.fromkeys(risk, 0.001), "b": risk}), apart)
    assert "a member of any group" in alike.read_text()
    assert "| a | 0.001" not in alike.read_text()
    assert "| a | 0.001" in apart.read_text()
