"""Each error of clipping comes alone, without noise, and with all else equal."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd
import pytest
import torch

import equidp
from equidp.data.dataset import DataSplit
from equidp.diagnostics.gradients import BatchGradients
from equidp.errors import SettingError
from equidp.training.plan import Plan
from papers.ablation import ERRORS, ablate, ablation_summary
from support.errors import raises_field
from support.toy import toy

PLAN = Plan(
    model="logistic", learning_rate=0.5, batch_size=40, epochs=3, method_settings={"clipping_bound": 0.2}
)


@dataclass(frozen=True)
class Toy:
    name: str = "toy"
    highlighted_groups: tuple[str, str] | None = None

    def split(self, seed: int) -> DataSplit:
        return DataSplit(toy(200, seed), toy(100, seed + 1000))


def test_each_error_is_of_length_or_of_direction_alone():
    generator = torch.Generator().manual_seed(0)
    mean, clipped = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    made = {name: make(BatchGradients(mean, clipped)) for name, make in ERRORS.items()}

    def cosine_with_gradient(vector):
        return float(torch.cosine_similarity(vector, mean, dim=0))

    assert torch.equal(made["none"], mean)
    assert torch.equal(made["both"], clipped)
    assert cosine_with_gradient(made["magnitude"]) == pytest.approx(1)
    assert float(made["magnitude"].norm()) == pytest.approx(float(clipped.norm()))
    assert cosine_with_gradient(made["direction"]) == pytest.approx(cosine_with_gradient(clipped))
    assert float(made["direction"].norm()) == pytest.approx(float(mean.norm()))


def losses(table: pd.DataFrame, error: str) -> list[float]:
    return table[table["error"] == error]["loss"].to_list()


@pytest.mark.soak
def test_no_error_is_plain_sgd_and_both_are_dpsgd_without_noise(tmp_path):
    table = ablate(Toy(), plan=PLAN, seeds=[3], jobs=1)
    assert set(table["error"]) == set(ERRORS)
    assert table.groupby("error")["epoch"].nunique().to_list() == [3] * 4
    data = Toy().split(3)
    for error, policy in (("none", equidp.SGD()), ("both", equidp.DPSGD(0.2))):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(5, 2))
        trainer = equidp.Trainer(
            model,
            torch.optim.SGD(model.parameters(), lr=0.5),
            data.train,
            method=policy,
            batch_size=40,
            epochs=3,
            delta=1e-4,
            noise_multiplier=0.0,
            seed=3,
        )
        expected = trainer.fit().metrics(data.test)["loss"].to_list()
        assert losses(table, error)[-3:] == pytest.approx(expected, rel=1e-5)
    assert losses(table, "magnitude")[-1] != pytest.approx(losses(table, "direction")[-1], rel=1e-3)


@pytest.mark.soak
@pytest.mark.parametrize("method", ["dpsgd-f", "global-adapt"])
def test_methods_that_read_statistics_read_them_exactly(method):
    one, other = (ablate(Toy(), method=method, plan=PLAN, errors=["both"], seeds=1, jobs=1) for _ in range(2))
    pd.testing.assert_frame_equal(one, other)


@pytest.mark.soak
def test_the_summary_is_of_the_last_epoch_over_seeds():
    table = ablate(Toy(), plan=PLAN, errors=["magnitude", "both"], seeds=2, jobs=1)
    summary = ablation_summary(table).set_index(["error", "group"])
    last = table[(table["epoch"] > 2.5) & (table["error"] == "both") & (table["group"] == "b")]["accuracy"]
    assert summary.loc[("both", "b"), "accuracy"] == pytest.approx(last.mean())
    assert summary.loc[("both", "b"), "accuracy_se"] == pytest.approx(last.std() / 2**0.5)
    assert (summary["seeds"] == 2).all()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"method": "sgd"}, "method"),
        ({"method": "dpsg"}, "method"),
        ({"errors": ["length"]}, "error"),
        ({"seeds": 0}, "seeds"),
    ],
)
def test_what_makes_no_sense_is_refused(settings, field):
    with raises_field(SettingError, field):
        ablate(Toy(), plan=PLAN, **settings)
