"""`equidp train --choose` is charged whole before the first try, and never made again for free."""

from __future__ import annotations

import json
import logging
import re
import sys
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import equidp
from equidp.accounting.calibration import calibrate_choice
from equidp.accounting.target import Target
from equidp.data import Recipe
from equidp.errors import BudgetError, DataError, SettingError
from equidp.kernel.epsilon import epsilon
from equidp.kernel.ledger import ChoiceEvent, MemoryLedger, StepEvent
from equidp.kernel.noise import SeededRandomness, SystemRandomness
from equidp.ledger.format import read_ledger
from equidp.runs import layout
from equidp.runs.begin import begin, check_new
from equidp.runs.config import BudgetFile, RunData, TrainConfig
from equidp.runs.experimental import private_choice as choice
from equidp.runs.experimental.private_choice import (
    PrivateChoice,
    choose,
    combinations,
    drawn_out,
    finish_choice,
    is_charged,
    is_chosen,
    prepare_choice,
    read_chosen,
    split_held_out,
    train_choice,
    worst_group,
)
from equidp.runs.releases import IndividualRelease
from equidp.runs.saved import open_run
from equidp.runs.train import train
from equidp.training.plan import Plan
from support.errors import raises_field
from support.toy import DropsInEvaluation, make_trainer, save_patients, toy

DELTA = 1e-4
PLAN = equidp.Plan(batch_size=100, epochs=1, delta=DELTA)
SPACE = {"learning_rate": [0.5, 2.0]}
TABLE = ("people.csv", "--target", "ill", "--group", "sex", "--epochs", "1", "--delta", "1e-4")


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    return save_patients(tmp_path_factory.mktemp("people"), ill_above=45)


@pytest.fixture
def config(people):
    recipe = Recipe(target="ill", group=("sex",), bounds=(("age", 0.0, 100.0),))
    return TrainConfig(
        RunData(str(people), recipe),
        "dpsgd",
        PLAN,
        Target(3.0, accountant="rdp"),
        releases=(PrivateChoice(2, SPACE),),
    )


def begun(config, folder):
    """Arguments of `train_choice` for a run that was begun in this folder."""
    prepared, held_out = prepare_choice(config)
    return folder, begin(prepared, folder), held_out


@pytest.mark.soak
def test_the_best_is_kept_with_its_price_and_nothing_else(config, tmp_path, command):
    folder = tmp_path / "run"
    run, _ = train_choice(*begun(config, folder))
    entries = read_ledger(folder / layout.LEDGER).entries
    ((event, count),) = entries
    assert isinstance(event, ChoiceEvent)
    assert (event.mean, count) == (2.0, 1)
    assert 2.99 < epsilon(entries, DELTA) <= 3.0
    kept, chosen = open_run(folder), read_chosen(folder)
    assert chosen["settings"] in combinations(config, 720)
    assert layout.read_config(folder)[1].learning_rate == chosen["settings"]["learning_rate"]
    for name, value in run.model.state_dict().items():
        assert torch.equal(kept.run.model.state_dict()[name], value)
    assert not list(folder.glob(layout.CHECKPOINTS))
    assert not (folder / layout.RECORD).exists()
    card = (folder / layout.CARD).read_text()
    assert "a private choice: a random number of tries, 2 on average" in card
    assert "RdpAccountant().compose(event)" in card
    code, out, _ = command("ledger", "show", folder, cwd=tmp_path)
    assert code == 0
    assert "1 choice: a private choice" in out
    for again in (lambda: train(folder), lambda: train_choice(folder, *prepare_choice(config))):
        with raises_field(DataError, "resume"):
            again()


@pytest.mark.soak
def test_a_choice_that_is_killed_is_spent_and_not_made_again(config, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    arguments = begun(config, folder)

    def killed(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(equidp.Trainer, "fit", killed)
    with pytest.raises(KeyboardInterrupt):
        train_choice(*arguments)
    monkeypatch.undo()
    assert read_ledger(folder / layout.LEDGER).entries[0][1] == 1
    assert not (folder / layout.MODEL).exists()
    with raises_field(DataError, "resume"):
        train_choice(*arguments)


def stopped_at(step, config, folder, monkeypatch):
    """Stop a choice at one step: "begin", "fit" (a try) or "write_cards" (after the last try)."""
    arguments = begun(config, folder)

    def stop(*_, **__):
        raise KeyboardInterrupt

    if step != "begin":
        with monkeypatch.context() as patched:
            patched.setattr(*((equidp.Trainer, "fit") if step == "fit" else (choice, step)), stop)
            with pytest.raises(KeyboardInterrupt):
                train_choice(*arguments)


@pytest.mark.parametrize(
    ("step", "charged", "finishable"),
    [("begin", False, False), ("fit", True, False), ("write_cards", True, True)],
)
def test_advice_on_a_stopped_choice_follows_from_what_it_spent(
    step, charged, finishable, config, tmp_path, monkeypatch
):
    """Resuming works where messages propose it, and all commands on the folder say the same."""
    folder, budget = tmp_path / "run", tmp_path / "budget"
    asked = replace(config, budget=BudgetFile(budget, epsilon=4.0, delta=DELTA))
    stopped_at(step, asked, folder, monkeypatch)
    assert is_charged(folder, asked) is charged
    assert is_chosen(folder) is finishable
    assert bool(read_ledger(budget).entries) is charged
    for refused, error in (
        (lambda: check_new(folder), SettingError),
        (lambda: layout.refuse_unfinished(folder), DataError),
        (lambda: train(folder), DataError),
    ):
        with pytest.raises(error) as caught:
            refused()
        assert (layout.resume_command(folder) in str(caught.value)) is finishable
        assert ("is spent" in str(caught.value)) is (charged and not finishable)
        assert ("Nothing is charged" in str(caught.value)) is not charged


def test_a_choice_is_charged_from_the_line_of_its_budget_on(config, tmp_path, monkeypatch):
    """The budget is charged before the run's own ledger, and a kill may come between the two."""
    folder, budget = tmp_path / "run", tmp_path / "budget"
    asked = replace(config, budget=BudgetFile(budget, epsilon=4.0, delta=DELTA))
    spend = choice.LedgerFile.spend

    def spend_until_the_run_is_charged(ledger, *given):
        if ledger.path == folder / layout.LEDGER:
            raise KeyboardInterrupt
        spend(ledger, *given)

    arguments = begun(asked, folder)
    with monkeypatch.context() as patched:
        patched.setattr(choice.LedgerFile, "spend", spend_until_the_run_is_charged)
        with pytest.raises(KeyboardInterrupt):
            train_choice(*arguments)
    assert read_ledger(folder / layout.LEDGER).entries == ()
    assert read_ledger(budget).entries
    assert is_charged(folder, asked)


def test_a_choice_that_lacks_its_card_alone_gets_it_without_spending(config, tmp_path, monkeypatch):
    folder, budget = tmp_path / "run", tmp_path / "budget"
    asked = replace(config, budget=BudgetFile(budget, epsilon=4.0, delta=DELTA))
    stopped_at("write_cards", asked, folder, monkeypatch)
    before, weights = read_ledger(folder / layout.LEDGER).entries, (folder / layout.MODEL).read_bytes()
    finish_choice(folder)
    assert read_ledger(folder / layout.LEDGER).entries == read_ledger(budget).entries == before
    assert (folder / layout.MODEL).read_bytes() == weights
    assert open_run(folder).run.epsilon() <= 3.0
    assert {path.stat().st_mtime % 86_400 for path in [*folder.iterdir(), budget]} == {0.0}
    assert not layout.how_to_continue(folder).endswith(layout.resume_command(folder))
    with raises_field(SettingError, "folder", "finished"):
        check_new(folder)


def test_a_card_that_is_written_again_says_the_same(config, tmp_path):
    folder = tmp_path / "run"
    train_choice(*begun(config, folder))
    written = (folder / layout.CARD).read_text()
    finish_choice(folder)
    assert (folder / layout.CARD).read_text() == written


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"tries": 1}, "choose"),
        ({"space": {"learning_rate": [0.5]}}, "choose_from"),
        ({"space": {"learning_rat": [0.5, 1]}}, "setting to choose"),
        ({"space": {"epochs": [1, 2]}}, "epochs"),
        ({"space": {"learning_rate": 0.5}}, "learning_rate"),
        ({"target": Target()}, "epsilon"),
        ({"method": "sgd"}, "epsilon"),
        ({"releases": (PrivateChoice(2, SPACE), IndividualRelease(0.1))}, "individual"),
    ],
)
def test_what_cannot_be_chosen_is_refused(config, changed, field):
    def prepare() -> None:
        own = {name: changed[name] for name in ("tries", "space") if name in changed}
        further = {"releases": (PrivateChoice(**{"tries": 2, "space": SPACE, **own}),)} if own else changed
        prepare_choice(TrainConfig(**{**vars(config), **further}))

    with raises_field(SettingError, field):
        prepare()


def test_a_training_loss_of_the_method_alone_is_refused_too():
    plan = Plan(by_method={"dpsgd": {"training_loss": 0.1}})
    with raises_field(SettingError, "training_loss"):
        PrivateChoice(2).check(3.0, "dpsgd", plan)


@pytest.mark.soak
def test_commands_say_what_a_choice_would_try_and_cost(command, people, tmp_path):
    code, out, err = command(
        "train", *TABLE, "--epsilon", "3", "--choose", "2", "--dry-run", cwd=people.parent
    )
    assert code == 0, err
    assert "Settings to choose among, 9 in all" in out
    recommended = r"dpsgd: model additive, clipping bound ([\d.]+), learning rate ([\d.]+)"
    found = re.search(f"auto takes {recommended}", out)
    bound, rate = map(float, found.groups())
    assert f"learning_rate {rate / 4}, clipping_bound {bound / 4}\n" in out
    assert f"learning_rate {4 * rate}, clipping_bound {4 * bound}\n" in out
    assert 2.99 < float(out.partition("The whole choice: epsilon ")[2].split()[0]) <= 3.0
    asked = ("--method", "dpsgd", "--choose", "2", "--dry-run")
    code, out, err = command("train", *TABLE, "--epsilon", "3", *asked, cwd=people.parent)
    assert code == 0, err
    assert "auto" not in out
    assert re.search(f"Training by {recommended}", out).groups() == found.groups()
    assert f"learning_rate {rate / 4}, clipping_bound {bound / 4}\n" in out
    for options, told in (
        (("--choose-from", "none.toml"), "--choose-from is for --choose"),
        (("--choose", "2", "--choose-from", "none.toml"), "cannot be read: No such file"),
        (("--choose", "0"), "expected a whole number >= 2"),
    ):
        code, _, err = command(
            "train", *TABLE, "--epsilon", "3", *options, "--out", tmp_path / "run", cwd=people.parent
        )
        assert (code, told in err) == (2, True), err


@pytest.mark.soak
def test_a_budget_pays_for_the_whole_choice_once(config, tmp_path):
    asked = replace(config, budget=BudgetFile(tmp_path / "budget", epsilon=4.0, delta=DELTA))
    train_choice(*begun(asked, tmp_path / "run"))
    assert read_ledger(tmp_path / "budget").entries == read_ledger(tmp_path / "run" / layout.LEDGER).entries
    with raises_field(BudgetError, "budget"):
        prepare_choice(asked)


@pytest.mark.soak
def test_no_file_tells_when_the_tries_began(config, tmp_path, monkeypatch):
    """The time between two files, or from the ledger's line to the model, is the number of tries."""
    budget, made, held = tmp_path / "budget", {}, []
    choose = choice.choose

    def seen(*given, **named):
        made.update({path.name: path.stat().st_ino for path in folder.iterdir()})
        held.extend(path.open("rb") for path in folder.iterdir() if path.is_file())  # no inode is used again
        return choose(*given, **named)

    monkeypatch.setattr(choice, "choose", seen)
    folder = tmp_path / "run"
    config = replace(config, budget=BudgetFile(budget, epsilon=4.0, delta=DELTA))
    train_choice(*begun(config, folder))
    files = [*folder.iterdir(), folder, budget, tmp_path / "budget.seal"]
    (moment,) = {path.stat().st_mtime for path in files}
    assert moment % 86_400 == 0
    kept = [path.name for path in folder.iterdir() if path.stat().st_ino == made.get(path.name)]
    for file in held:
        file.close()
    assert kept == []
    for path in (folder / layout.LEDGER, budget):
        lines = [json.loads(line.rpartition(" ")[0]) for line in path.read_text().splitlines()]
        assert all(len(line.get("time", "")) <= len("2026-11-25") for line in lines)
        assert [line["time"] for line in lines if "choice" in line or "run" in line] == ["", ""]
    assert not any(
        json.loads(line.rpartition(" ")[0]).get("time")
        for line in (folder / layout.LEDGER).read_text().splitlines()
    )
    assert read_ledger(folder / layout.LEDGER).entries == read_ledger(budget).entries
    assert open_run(folder)


SCORE = StepEvent(1.0, 5.0)


def made_up(n: int = 200) -> equidp.GroupedDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(n, 2, generator=generator)
    return equidp.GroupedDataset(
        inputs, (inputs[:, 0] > 0).long(), torch.arange(n) % 2, ("a", "b"), ("no", "yes")
    )


FIT, HELD_OUT = split_held_out(made_up(), drawn_out(200, SeededRandomness(0)))
RATES = (0.1, 0.5, 2.0)
ASKED = [Plan(learning_rate=rate, batch_size=len(FIT) // 4, epochs=1) for rate in RATES]
PLANS = [plan.resolve("dpsgd", len(FIT)) for plan in ASKED]
RATE, STEPS = PLANS[0].sample_rate, PLANS[0].steps
EVENT = ChoiceEvent(((StepEvent(RATE, 1.0), STEPS), (SCORE, 1)), 3.0)


def chosen(event=EVENT, ledger=None, plans=PLANS):
    ledger = MemoryLedger() if ledger is None else ledger
    return choose(plans, FIT, HELD_OUT, event, ledger, seed=0, randomness=SeededRandomness(1))


def test_a_row_more_changes_the_part_of_no_other_row():
    whole = made_up(201)
    fewer, more = (
        split_held_out(whole.subset(torch.arange(n)), drawn_out(n, SeededRandomness(0))) for n in (200, 201)
    )
    for some, with_one_more in zip(fewer, more, strict=True):
        assert torch.equal(some.inputs, with_one_more.inputs[: len(some)])
    assert sum(map(len, more)) == 201
    assert 5 < len(fewer[1]) < 40  # fails once in 10^4 seeds; this one is fixed
    with raises_field(SettingError, "num_examples", "20"):
        drawn_out(10, SeededRandomness(0))


def test_a_person_counts_once_by_the_first_row():
    """Right in the first row, wrong in the others; and a group that is wrong in the first."""
    inputs = torch.tensor([1.0, -1.0, -1.0] * 300).reshape(300, 3, 1)
    targets = torch.ones(300, 3, dtype=torch.int64)
    targets[200:, 0] = 0
    groups = torch.arange(300) // 200
    held_out = equidp.GroupedDataset(inputs, targets, groups, ("a", "b"), ("no", "yes"))
    model = torch.nn.Linear(1, 2, bias=False)
    with torch.no_grad():
        model.weight[:] = torch.tensor([[-1.0], [1.0]])
    run = equidp.Run(model, (), 1e-5, held_out.training_loss())
    assert worst_group(run, held_out.subset(torch.arange(200)), 1e-3, SeededRandomness(0)) == pytest.approx(1)
    assert worst_group(run, held_out, 1e-3, SeededRandomness(0)) == pytest.approx(0, abs=1e-3)


@pytest.mark.soak
def test_the_best_of_all_tries_is_released_and_was_paid_for(monkeypatch):
    tried = []

    def scored(run, held_out, noise_multiplier, _, *, together):
        assert (held_out, noise_multiplier, together) == (HELD_OUT, SCORE.noise_multiplier, True)
        tried.append(run.facts.learning_rate)
        return run.facts.learning_rate

    monkeypatch.setattr(choice, "worst_group", scored)
    monkeypatch.setattr(choice, "number_of_tries", lambda *_: 8)
    ledger = MemoryLedger()
    found = chosen(ledger=ledger)
    assert len(tried) == 8
    assert len(set(tried)) > 1
    assert found.score == max(tried) == RATES[found.place] == found.run.facts.learning_rate
    assert found.run.entries == ledger.entries == ((EVENT, 1),)
    assert found.run.epsilon(1e-5) == epsilon([(EVENT, 1)], 1e-5, "rdp")


class _Empty(MemoryLedger.__mro__[1]):  # a Ledger that cannot pay
    entries, session, by_session = (), "none.none", {}

    def spend(self, event):
        raise BudgetError("nothing is left")

    def expect(self, event, steps): ...

    def settle(self): ...


def test_nothing_is_trained_that_cannot_be_paid(monkeypatch):
    monkeypatch.setattr(equidp.Trainer, "fit", lambda *_: pytest.fail("trained"))
    with pytest.raises(BudgetError, match="nothing is left"):
        chosen(ledger=_Empty())


@pytest.mark.soak
def test_a_choice_that_is_stopped_stays_paid(monkeypatch):
    def stopped(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(equidp.Trainer, "fit", stopped)
    ledger = MemoryLedger()
    with pytest.raises(KeyboardInterrupt):
        chosen(ledger=ledger)
    assert ledger.entries == ((EVENT, 1),)


@pytest.mark.parametrize(
    "tried",
    [
        ((StepEvent(RATE, 1.5), STEPS), (SCORE, 1)),
        ((StepEvent(RATE, 1.0), STEPS - 1), (SCORE, 1)),
        ((StepEvent(RATE, 1.0), STEPS), (SCORE, 1), (SCORE, 1)),
        ((StepEvent(RATE, 1.0), STEPS), (StepEvent(0.5, 5.0), 1)),
    ],
)
def test_plans_that_cost_something_else_are_refused_before_anything_is_spent(tried):
    ledger = MemoryLedger()
    with raises_field(SettingError, "tried"):
        chosen(replace(EVENT, tried=tried), ledger)
    assert ledger.entries == ()


def test_the_score_is_that_of_the_worst_group_that_can_be_judged():
    data = made_up(1000)
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]))
        model.bias.zero_()
    run = equidp.Run(model, (), 1e-5, torch.nn.CrossEntropyLoss(reduction="none"))
    wrong = data.targets.clone()
    wrong[1::4] = 1 - wrong[1::4]  # half of group b
    data = replace(data, targets=wrong)
    assert worst_group(run, data, 0.01, SeededRandomness(0)) == pytest.approx(0.5, abs=1e-3)
    few = data.subset(torch.cat([torch.arange(0, 1000, 2), torch.tensor([1, 3, 5])]))
    # Three people of group b beside noise of deviation 5: not judged.
    assert worst_group(run, few, 5.0, SeededRandomness(0)) > 0.9


def test_the_score_holds_the_noise_that_is_paid_for():
    """Of one group, half of 100 are right: with noise of deviation 5 in both counts, the score is 1/2 with a
    deviation of 5 / 100 / sqrt(2) to first order."""
    data = made_up(100)
    answers = torch.arange(100) % 2
    data = replace(data, targets=answers, groups=torch.zeros_like(answers), group_names=("people",))
    model = torch.nn.Linear(2, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.tensor([0.0, 1.0]))
    run = equidp.Run(model, (), 1e-5, torch.nn.CrossEntropyLoss(reduction="none"))
    scores = np.array([worst_group(run, data, 5.0, SeededRandomness(seed)) for seed in range(400)])
    assert scores.mean() == pytest.approx(0.5, abs=0.01)
    assert scores.std() == pytest.approx(0.05 / 2**0.5, rel=0.15)


def test_one_row_counts_in_one_cell(monkeypatch):
    seen = []

    def counts(codes, cells, **_):
        seen.append(codes)
        return torch.bincount(torch.from_numpy(codes), minlength=cells).double().numpy()

    monkeypatch.setattr(choice, "private_counts", counts)
    data = made_up(40)
    run = equidp.Run(torch.nn.Linear(2, 2), (), 1e-5, torch.nn.CrossEntropyLoss(reduction="none"))
    worst_group(run, data, 1.0, SeededRandomness(0))
    worst_group(run, data.subset(torch.arange(39)), 1.0, SeededRandomness(0))
    assert [codes.shape for codes in seen] == [(40,), (39,)]
    assert (seen[0][:39] == seen[1]).all()


class FollowsLargest(torch.nn.Linear):
    """Answers by the largest number of all rows that it is given."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return torch.stack([inputs.max().expand(len(inputs)), torch.zeros(len(inputs))], dim=1)


@pytest.mark.parametrize(("together", "right"), [(False, 0.5), (True, 0.0)])
def test_each_example_is_alone_for_a_score_where_that_is_asked_for(together, right):
    """Half of the rows are negative: the model is right on them where it sees no other row."""
    inputs = torch.where(torch.arange(40) % 2 == 0, 1.0, -1.0).unsqueeze(1)
    targets = torch.ones(40, dtype=torch.int64)
    data = equidp.GroupedDataset(inputs, targets, torch.zeros_like(targets), ("people",), ("no", "yes"))
    loss = torch.nn.CrossEntropyLoss(reduction="none")
    run = equidp.Run(FollowsLargest(1, 2), (), 1e-5, loss)
    found = worst_group(run, data, 0.01, SeededRandomness(0), together=together)
    assert found == pytest.approx(right, abs=0.01)


@pytest.mark.parametrize(("engine", "together"), [("functional", False), ("ghost", True)])
def test_scores_of_tries_isolate_examples_where_the_engine_does(engine, together, monkeypatch):
    seen = []

    def watch(*arguments, **settings):
        seen.append(settings["together"])
        return worst_group(*arguments, **settings)

    monkeypatch.setattr(choice, "worst_group", watch)
    fit, held = split_held_out(toy(), torch.arange(300) % 3 == 0)
    plan = Plan(batch_size=50, epochs=0.5).resolve("dpsgd", len(fit))
    event = ChoiceEvent(((plan.step_event(), plan.steps), (StepEvent(1.0, 5.0), 1)), 1.0)
    randomness = SeededRandomness(0)
    choose([plan], fit, held, event, MemoryLedger(), seed=0, randomness=randomness, engine=engine)
    assert set(seen) == {together}


@pytest.mark.soak
def test_the_whole_choice_costs_the_target():
    noise = calibrate_choice(2.0, 1e-5, 0.1, 50, 4.0, 10.0, (SCORE,), ((StepEvent(1.0, 30.0), 1),))
    step = StepEvent(0.1, noise, 10 * noise)
    event = ChoiceEvent(((step, 50), (SCORE, 1)), 4.0)
    assert 1.99 < epsilon([(event, 1), (StepEvent(1.0, 30.0), 1)], 1e-5, "rdp") <= 2.0
    with raises_field(SettingError, "target_epsilon", "0.01"):
        calibrate_choice(0.01, 1e-5, 0.1, 50, 4.0, None, (SCORE,))


@pytest.mark.parametrize("secure", [True, False])
def test_what_a_model_draws_for_a_score_follows_from_its_randomness(secure, monkeypatch):
    """Dealt out in order of place under a known seed, one row more would change how all others count."""
    codes, private_counts = [], choice.private_counts
    monkeypatch.setattr(
        choice,
        "private_counts",
        lambda each, *rest, **named: codes.append(each) or private_counts(each, *rest, **named),
    )
    trained = make_trainer(model=torch.nn.Sequential(DropsInEvaluation(), torch.nn.Linear(5, 2))).fit()
    for _ in range(2):
        torch.manual_seed(0)
        worst_group(trained, toy(), 1.0, SystemRandomness() if secure else SeededRandomness(0))
    assert np.array_equal(*codes) is not secure


class Talking(torch.nn.Linear):
    """Prints, logs and warns as it is made and as it runs."""

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__(shape[0], classes)
        print("made")

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        print("run", file=sys.stderr)
        logging.getLogger("talking").error("run")
        warnings.warn("run", UserWarning, stacklevel=1)
        return super().forward(inputs)


@pytest.mark.soak
def test_what_tries_print_log_and_warn_of_does_not_tell_how_many_there_were(monkeypatch, capfd, caplog):
    plans = [replace(plan, plan=replace(plan.plan, model=Talking)) for plan in PLANS]
    seen = []
    for tries in (1, 4):
        monkeypatch.setattr(choice, "number_of_tries", lambda mean, randomness, tries=tries: tries)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            chosen(plans=plans)
        seen.append((capfd.readouterr(), len(warned), len(caplog.records)))
        caplog.clear()
    assert seen[0] == seen[1]
    assert seen[0][0].out.count("made") == len(plans)  # each was made once before
    logging.getLogger("talking").error("heard again")
    assert len(caplog.records) == 1
