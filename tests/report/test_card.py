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
from torch import nn

import equidp
from equidp.errors import DataError, PrivacyWarning, SettingError
from equidp.evaluation.evaluation import evaluate
from equidp.kernel.epsilon import epsilon
from equidp.kernel.event import Event
from equidp.report.card import STATEMENTS, CardContent, write_content
from equidp.report.format import upper
from equidp.runs.cards import split_noisy_means
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
        f"epsilon is {upper(run.epsilon(rows=2))} for two examples",
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
def test_the_card_says_where_the_initial_weights_came_from(tmp_path):
    def card(trainer):
        equidp.write_card(trainer.fit(), tmp_path / "card.md")
        return " ".join((tmp_path / "card.md").read_text().split())

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


def test_a_model_without_privacy_says_so(tmp_path):
    run = make_trainer(method=equidp.SGD(), noise_multiplier=None).fit()
    equidp.write_card(run, tmp_path / "card.md")
    card = (tmp_path / "card.md").read_text()
    assert "No guarantee: this model was trained without noise" in card
    assert "recompute epsilon" not in card
    assert "No test set was given" in card


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
