"""Lightning's Trainer with a PrivateStrategy trains as equidp.Trainer does, in Lightning's own loop."""

from __future__ import annotations

import os

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import equidp
from equidp.errors import DataError, SettingError
from equidp.ledger.ledger import Ledger

integration = pytest.importorskip(
    "equidp.integrations.lightning",
    reason="needs the extra: pip install '.[lightning]'",
    exc_type=ImportError,
)
lightning, PrivateStrategy = integration.lightning, integration.PrivateStrategy
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*num_workers", "ignore:.*logging interval", "ignore:.*eval mode"),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]

N = 64
PRIVATE = {"noise_multiplier": 1.0, "delta": 1e-4, "seed": 1}
EXACT = {"method": equidp.SGD(), "delta": 1e-4, "seed": 1}


def rows() -> TensorDataset:
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(N, 4, generator=draw)
    return TensorDataset(inputs, (inputs[:, 0] > 0).long())


class Classifier(lightning.LightningModule):
    """What a user has: a mean loss over the batch, an optimizer, a schedule and validation."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(dropout), nn.Linear(8, 2))

    def forward(self, inputs):
        return self.net(inputs)

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        return nn.functional.cross_entropy(self(inputs), targets)

    def validation_step(self, batch, batch_idx):
        inputs, targets = batch
        self.log("val_loss", nn.functional.cross_entropy(self(inputs), targets))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def trainer_of(folder, strategy, **settings):
    given = {"max_epochs": 2, "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    given |= {
        "enable_checkpointing": any("Checkpoint" in type(c).__name__ for c in settings.get("callbacks", ()))
    }
    return lightning.Trainer(
        strategy=strategy, default_root_dir=folder, accelerator="cpu", **{**given, **settings}
    )


def fit(folder, module=None, data=None, private=PRIVATE, loader=None, ckpt_path=None, **settings):
    """Strategy and Lightning's Trainer of a training."""
    strategy = PrivateStrategy(**private)
    trainer = trainer_of(folder, strategy, **settings)
    loader = loader or DataLoader(data or rows(), batch_size=16, shuffle=True)
    trainer.fit(module or Classifier(), loader, DataLoader(rows(), batch_size=32), ckpt_path=ckpt_path)
    return strategy, trainer


def reference(model, data=None, loss=None, engine="functional", **settings):
    """The same by equidp's own Trainer."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    given = {**PRIVATE, "batch_size": 16, "steps": 8, **settings}
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trainer = equidp.Trainer(model, optimizer, data or rows(), engine=engine, scheduler=schedule, **given)
    return trainer.fit()


@pytest.mark.soak
def test_training_step_trains_to_the_weights_and_the_epsilon_of_a_trainer_with_the_same_seeds(tmp_path):
    module = Classifier()
    strategy, trainer = fit(tmp_path, module)
    model = Classifier().net
    run = reference(model)
    torch.testing.assert_close(module.net.state_dict(), model.state_dict(), rtol=1e-5, atol=1e-6)
    assert strategy.run().entries == run.entries
    assert strategy.run().epsilon() == run.epsilon()
    assert strategy.run().model is module
    assert trainer.global_step == 8
    assert float(trainer.callback_metrics["epsilon"]) == pytest.approx(run.epsilon(), rel=1e-6)
    assert "val_loss" in trainer.callback_metrics
    assert not any(name.startswith("train") for name in trainer.callback_metrics)


@pytest.mark.soak
def test_forward_and_a_loss_train_by_an_engine_of_batches(tmp_path):
    module = Classifier()
    loss = nn.CrossEntropyLoss(reduction="none")
    strategy, _ = fit(tmp_path, module, private={**PRIVATE, "loss": loss, "physical_batch_size": 8})
    model = Classifier().net
    reference(model, engine="ghost", physical_batch_size=8)
    torch.testing.assert_close(module.net.state_dict(), model.state_dict(), rtol=0, atol=0)
    assert type(strategy.private_trainer.engine).__name__ == "GhostEngine"


@pytest.mark.soak
def test_callbacks_see_private_gradients_and_can_stop(tmp_path):
    class Stops(lightning.Callback):
        norms: list[float] = []  # noqa: RUF012

        def on_before_optimizer_step(self, trainer, module, optimizer):
            self.norms.append(float(torch.cat([each.grad.flatten() for each in module.parameters()]).norm()))

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.should_stop = trainer.global_step == 3

    strategy, trainer = fit(tmp_path, callbacks=[Stops()])
    run = strategy.run()
    assert (run.facts.steps, trainer.global_step) == (3, 3)
    assert run.epsilon() == strategy.private_trainer.epsilon_so_far(8) > run.epsilon_of_steps_taken()
    assert len(Stops.norms) == 3
    assert min(Stops.norms) > 0


def checkpoints(folder, steps=2):
    return lightning.callbacks.ModelCheckpoint(folder, every_n_train_steps=steps, save_top_k=-1)


@pytest.mark.soak
def test_a_run_goes_on_from_a_checkpoint_to_the_weights_of_one_in_one_go(tmp_path):
    """Without noise, and with all rows in each sample."""
    whole, parts = Classifier(), Classifier()

    def fitted(folder, module, **settings):
        loader = DataLoader(rows(), batch_size=N)
        return fit(
            tmp_path / folder,
            module,
            private=EXACT,
            loader=loader,
            **{"max_steps": 6, "max_epochs": -1, **settings},
        )

    fitted("whole", whole)

    class Stops(lightning.Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            trainer.should_stop = trainer.global_step == 4

    fitted("parts", parts, callbacks=[Stops(), checkpoints(tmp_path / "parts")])
    saved = max(tmp_path.glob("parts/*.ckpt"), key=os.path.getmtime)
    again = Classifier()
    strategy, _ = fitted("parts", again, ckpt_path=saved)
    assert [steps for _, steps in strategy.run().entries] == [6]
    torch.testing.assert_close(again.state_dict(), whole.state_dict())
    loaded = Classifier.load_from_checkpoint(saved, weights_only=True)
    assert loaded.net[0].weight.shape == (8, 4)


@pytest.mark.soak
def test_a_broken_off_run_goes_on_and_counts_what_it_lost(tmp_path):
    class Fails(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 5:
                raise RuntimeError

    with pytest.raises(RuntimeError):
        fit(tmp_path, callbacks=[Fails(), checkpoints(tmp_path)])
    assert sum(steps for _, steps in Ledger.read(tmp_path / "_ledger").entries()) == 5
    saved = max(tmp_path.glob("*.ckpt"), key=os.path.getmtime)
    strategy, trainer = fit(tmp_path, ckpt_path=saved)
    assert [steps for _, steps in strategy.run().entries] == [8]
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0.5 * 0.9**8)


class Logs(Classifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("train_loss", loss)
        return loss


class LogsLater(Classifier):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        if batch_idx == 2:
            self.log_dict({"train_loss": loss})
        return loss


class Skips(Classifier):
    def training_step(self, batch, batch_idx):
        return None


class Manual(Classifier):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False


class Clips(Classifier):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        pass


class Mixes(Classifier):
    def on_after_batch_transfer(self, batch, dataloader_idx):
        inputs, targets = batch
        return (inputs + inputs.roll(1, 0)) / 2, targets


class LogsInForward(Classifier):
    def __init__(self, first: int) -> None:
        super().__init__()
        self.calls, self.first = 0, first

    def forward(self, inputs):
        self.calls += 1
        if self.training and self.trainer.global_step >= self.first:
            self.log("largest", inputs.max())
        return super().forward(inputs)


@pytest.mark.soak
def test_hooks_and_callbacks_get_the_number_of_a_sample_and_no_row_of_it(tmp_path):
    seen = []

    class Watches(lightning.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            seen.append(batch)

    class LogsBatches(Classifier):
        def on_train_batch_end(self, outputs, batch, batch_idx):
            seen.append(batch)
            self.log("mean", 1.0 * batch, on_epoch=True)

    _, trainer = fit(tmp_path, LogsBatches(), callbacks=[Watches()])
    assert [each.tolist() for each in seen] == [number for number in range(1, 9) for _ in "ab"]
    assert trainer.logged_metrics["mean_epoch"] == (5 + 6 + 7 + 8) / 4


def loader(**settings):
    return {"loader": DataLoader(rows(), **settings)}


BY_LOSS = {**PRIVATE, "loss": nn.CrossEntropyLoss(reduction="none")}
REFUSED = {
    "module": [
        ({"module": Logs()}, "log"),
        ({"module": LogsLater()}, "log"),
        ({"module": LogsInForward(0), "private": BY_LOSS}, "log"),
        ({"module": LogsInForward(2), "private": BY_LOSS}, "log"),
        ({"module": Skips()}, "training_step"),
        ({"module": Manual()}, "automatic_optimization"),
        ({"module": Clips()}, "configure_gradient_clipping"),
        ({"module": Mixes()}, "on_after_batch_transfer"),
    ],
    "trainer": [
        ({"accumulate_grad_batches": 2}, "accumulate_grad_batches"),
        ({"gradient_clip_val": 0.5}, "gradient_clip_val"),
        ({"limit_train_batches": 2}, "limit_train_batches"),
        ({"overfit_batches": 1}, "limit_train_batches|overfit_batches"),
        ({"fast_dev_run": True}, "limit_train_batches|fast_dev_run"),
        ({"max_epochs": -1}, "max_epochs"),
        ({"min_steps": 2}, "min_steps"),
        ({"precision": "bf16-true"}, "precision"),
        ({"callbacks": [lightning.callbacks.LearningRateFinder()]}, "callbacks"),
    ],
    "loader": [
        (loader(batch_size=16, sampler=WeightedRandomSampler([1.0] * N, N)), "sampler"),
        (loader(batch_size=16, drop_last=True), "drop_last"),
        (loader(batch_size=None), "batch_size"),
        ({"loader": {"rows": DataLoader(rows(), batch_size=16)}}, "train_dataloaders"),
    ],
}


@pytest.mark.parametrize(
    ("part", "given", "field"),
    [(part, *each) for part, table in REFUSED.items() for each in table],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_breaks_the_guarantee_is_refused(tmp_path, part, given, field):
    with pytest.raises((SettingError, DataError)) as caught:
        fit(tmp_path, **given)
    assert caught.value.field in field.split("|")
    ledger = tmp_path / "_ledger"
    assert part == "module" or not ledger.exists() or not Ledger.read(ledger).entries()
