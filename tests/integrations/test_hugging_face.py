"""PrivateTrainer trains as equidp.Trainer does, within transformers' arguments, callbacks and checkpoints.

Weights are random, from small configurations: nothing is fetched.
"""

from __future__ import annotations

import copy
import math
import traceback
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import equidp
from equidp.errors import CheckpointError, DataError, ModelError, SettingError, TrainingWarning
from equidp.ledger.ledger import Ledger
from equidp.training.collation import Collation
from support.errors import raises_field

transformers = pytest.importorskip("transformers", reason="needs the extra: pip install '.[hf]'")
peft = pytest.importorskip("peft", reason="needs the extra: pip install '.[hf]'")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft", "ignore::FutureWarning")

from huggingface_hub.utils import filter_repo_objects  # noqa: E402

from equidp.integrations.hugging_face import (  # noqa: E402
    Privacy,
    PrivateTrainer,
    RowCollator,
    task_loss,
    warn_of_no_lesson,
)

WORDS, N = 40, 64
NOISY = Privacy(equidp.Plan(noise_multiplier=1.0, delta=1e-4), seed=1)
EXACT = Privacy(equidp.Plan(method=equidp.SGD(), delta=1e-4))


def texts(n: int = N, seed: int = 0) -> list[dict]:
    """Rows of different lengths, whose first word says the class."""
    draw = torch.Generator().manual_seed(seed)
    rows = []
    for place in range(n):
        length = int(torch.randint(3, 8, (1,), generator=draw))
        words = torch.randint(2, 20, (length,), generator=draw).tolist()
        rows.append({"input_ids": [30 + place % 2, *words], "label": place % 2, "note": "not read"})
    return rows


def pad(rows: list[dict], left: bool = False) -> dict:
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(values: list[int], fill: int) -> list[int]:
        more = [fill] * (longest - len(values))
        return more + values if left else values + more

    return {
        "input_ids": torch.tensor([padded(row["input_ids"], 0) for row in rows]),
        "attention_mask": torch.tensor([padded([1] * len(row["input_ids"]), 0) for row in rows]),
        "labels": torch.tensor([row["label"] for row in rows]),
    }


def pad_words(rows: list[dict]) -> dict:
    """For causal models: labels are the words, and padding has none."""
    collated = pad([{**row, "label": 0} for row in rows])
    collated["labels"] = collated["input_ids"].masked_fill(collated["attention_mask"] == 0, -100)
    return collated


def bert() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=WORDS, n_positions=12, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def arguments(folder, **settings):
    given = {"per_device_train_batch_size": 16, "max_steps": 4, "learning_rate": 5e-3, "report_to": []}
    given |= {"save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "seed": 0}
    return transformers.TrainingArguments(str(folder), **{**given, **settings})


def private(folder, model=None, privacy=NOISY, rows=None, collate=pad, **settings) -> PrivateTrainer:
    more = {name: settings.pop(name) for name in ("eval_dataset", "callbacks") if name in settings}
    return PrivateTrainer(
        privacy=privacy, model=model or bert(), args=arguments(folder, **settings), data_collator=collate,
        train_dataset=texts() if rows is None else rows, **more,
    )  # fmt: skip


@pytest.mark.soak
def test_it_trains_to_the_weights_and_the_epsilon_of_a_trainer_with_the_same_seeds(tmp_path):
    """Optimizer and schedule are those of transformers; accumulated batches are parts of one sample."""
    given = private(
        tmp_path,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=-1,
        num_train_epochs=2,
    )
    told = []
    given.log = lambda logs, start_time=None: told.append(logs)
    given.train()
    model, collate = bert(), RowCollator(pad, "labels")
    reference = private(tmp_path / "reference", model=model)
    optimizer = reference.create_optimizer()
    scheduler = transformers.get_scheduler("linear", optimizer, num_warmup_steps=0, num_training_steps=8)
    run = equidp.Trainer(
        model, optimizer, texts(), method=equidp.DPSGD(), batch_size=16, epochs=2, noise_multiplier=1.0,
        delta=1e-4, seed=1, scheduler=scheduler, physical_batch_size=8, collate=collate,
    ).fit()  # fmt: skip
    torch.testing.assert_close(given.model.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert given.run().entries == run.entries
    assert given.run().epsilon() == run.epsilon() == told[-1]["epsilon"]
    assert not any({"loss", "train_loss", "grad_norm"} & set(logs) for logs in told)


@pytest.mark.soak
@pytest.mark.parametrize("adapted", [False, True], ids=["whole", "LoRA"])
def test_a_causal_model_trains_on_the_words_of_a_text(tmp_path, adapted):
    model = gpt2()
    if adapted:
        model = peft.get_peft_model(
            model, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        )
    before = copy.deepcopy(model.state_dict())
    given = private(
        tmp_path, model=model, collate=pad_words, save_strategy="steps", save_steps=2, max_steps=12,
        privacy=Privacy(equidp.Plan(noise_multiplier=0.1, delta=1e-4)),
        per_device_train_batch_size=32,
        eval_strategy="epoch", eval_on_start=True, eval_dataset=texts(32, 1), learning_rate=2e-2,
    )  # fmt: skip
    given.train()
    losses = [each["eval_loss"] for each in given.state.log_history if "eval_loss" in each]
    assert losses[-1] < losses[0]
    moved = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert moved
    assert not adapted or all("lora" in name for name in moved)
    assert (
        tmp_path / "checkpoint-12" / ("adapter_model.safetensors" if adapted else "model.safetensors")
    ).exists()


class At(transformers.TrainerCallback):
    """Does something after a step."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action(control)


def stop(control) -> None:
    control.should_training_stop = True


@pytest.mark.soak
def test_a_stopped_run_goes_on_where_it_was(tmp_path):
    """Without noise, and with all rows in each sample, it ends as one in one go."""
    settings = {"privacy": EXACT, "per_device_train_batch_size": N, "max_steps": 6, "save_steps": 2}
    settings |= {"save_strategy": "steps"}
    whole = private(tmp_path / "whole", **settings)
    assert "epsilon_of_steps_taken" not in whole.train().metrics
    stopped = private(tmp_path / "parts", callbacks=[At(4, stop)], **settings)
    assert stopped.train().metrics["epsilon_of_steps_taken"] == math.inf
    assert stopped.run().facts.steps == 4
    resumed = private(tmp_path / "parts", **settings)
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 6
    torch.testing.assert_close(resumed.model.state_dict(), whole.model.state_dict())
    (tmp_path / "parts" / "checkpoint-6" / "equidp.pt").unlink()
    other = private(tmp_path / "parts", **settings)
    with raises_field(CheckpointError, "checkpoint"):
        other.train(resume_from_checkpoint=True)


def fail(control) -> None:
    raise KeyboardInterrupt


@pytest.mark.soak
def test_a_broken_off_run_goes_on_and_counts_what_it_lost(tmp_path):
    settings = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6}
    broken = private(tmp_path, callbacks=[At(5, fail)], **settings)
    with pytest.raises(KeyboardInterrupt):
        broken.train()
    spent = sum(steps for _, steps in Ledger.read(tmp_path / "_ledger").entries())
    assert spent == 5
    resumed = private(tmp_path, **settings)
    resumed.train(resume_from_checkpoint=True)
    assert [steps for _, steps in resumed.run().entries] == [6]
    assert resumed._get_learning_rate() == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train_sampling_strategy", "group_by_length"),
        ("dataloader_drop_last", True),
        ("max_grad_norm", 0.5),
        ("label_smoothing_factor", 0.1),
        ("auto_find_batch_size", True),
        ("include_num_input_tokens_seen", "all"),
        ("neftune_noise_alpha", 5.0),
        ("debug", "underflow_overflow"),
    ],
)
def test_arguments_that_break_the_guarantee_are_refused_when_it_is_made(tmp_path, name, value):
    with raises_field(SettingError, name):
        private(tmp_path, **{name: value})
    assert not (tmp_path / "_ledger").exists()


@pytest.mark.parametrize("group", ["north", 1.0, None], ids=str)
def test_groups_that_are_no_numbers_are_refused_without_being_printed(group):
    rows = [{**row, "group": group} for row in texts()]
    for column in ("group", "nobody"):
        with raises_field(DataError, "group_column") as caught:
            Collation.of(rows, RowCollator(pad, "labels", column))
        assert "north" not in "".join(traceback.format_exception(caught.value))


class Hub:
    """Stands for the hub, and keeps which files are sent."""

    def __init__(self):
        self.sent = set()

    def create_repo(self, name, **_):
        return SimpleNamespace(repo_id=name)

    def upload_folder(self, *, folder_path, ignore_patterns, **_):
        files = [str(each.relative_to(folder_path)) for each in Path(folder_path).rglob("*")]
        self.sent |= set(filter_repo_objects(files, ignore_patterns=ignore_patterns))
        return SimpleNamespace(is_done=lambda: True, done=lambda: True, result=lambda: None)


@pytest.mark.soak
def test_an_upload_leaves_the_ledger_out(tmp_path, monkeypatch):
    """How many steps its lines pay for follows from the time that samples took."""
    hub = Hub()
    monkeypatch.setattr("transformers.trainer.hf_api", lambda: hub)
    given = private(tmp_path, push_to_hub=True, hub_model_id="me/model", save_strategy="steps", save_steps=2)
    given.train()
    given.push_to_hub()
    assert "model.safetensors" in hub.sent
    assert (tmp_path / "_ledger").exists()
    assert not any("ledger" in name for name in hub.sent)


@pytest.mark.soak
def test_bad_input_is_refused_before_a_step(tmp_path):
    with raises_field(SettingError, "privacy"):
        private(tmp_path, privacy=equidp.DPSGD())

    class Own(PrivateTrainer):
        def compute_loss(self, model, inputs, **settings):
            return 0

    with raises_field(SettingError, "compute_loss"):
        Own(privacy=NOISY, model=bert(), args=arguments(tmp_path))
    with raises_field(SettingError, "label_names"):
        private(tmp_path, label_names=["start", "end"]).train()
    averaging = Privacy(equidp.Plan(noise_multiplier=1.0, delta=1e-4), loss=nn.CrossEntropyLoss(), seed=1)
    with pytest.raises((ModelError, SettingError)):
        private(tmp_path, privacy=averaging).train()
    assert not (tmp_path / "_ledger").exists() or not Ledger.read(tmp_path / "_ledger").entries()


@pytest.mark.parametrize("outcome", [(False, True, []), (True, False, []), (True, True, [1.0, 1.5])])
def test_a_training_that_teaches_nothing_is_warned_of(outcome):
    """No weight moved, weights that are not finite, or a loss on evaluation data that rose."""
    with pytest.warns(TrainingWarning):
        warn_of_no_lesson(*outcome)


def test_losses_of_a_row_are_those_of_its_task():
    model = nn.Module()
    logits, labels = torch.randn(2, 3, 5), torch.tensor([[1, 2, -100], [0, 4, 3]])
    shifted = task_loss(model, shifts=True)(logits, labels)
    each = nn.functional.cross_entropy(logits[1, :-1], labels[1, 1:])
    assert shifted[0] == pytest.approx(float(nn.functional.cross_entropy(logits[0, :1], labels[0, 1:2])))
    assert shifted[1] == pytest.approx(float(each))
    assert task_loss(model, shifts=False)(logits, labels)[1] == pytest.approx(
        float(nn.functional.cross_entropy(logits[1], labels[1]))
    )
    model.config = transformers.BertConfig(num_labels=1)
    assert task_loss(model, shifts=False)(torch.tensor([[2.0]]), torch.tensor([0.5])) == pytest.approx(2.25)
    model.config = transformers.BertConfig(num_labels=2, problem_type="multi_label_classification")
    assert task_loss(model, shifts=False)(torch.zeros(1, 2), torch.tensor([[0, 1]])) == pytest.approx(
        0.6931, rel=1e-3
    )
