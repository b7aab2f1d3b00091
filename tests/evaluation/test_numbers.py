"""Numbers are predicted in the units of the target, and their metrics are scikit-learn's."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error
from torch import nn

import equidp
from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError, SettingError
from equidp.evaluation.evaluation import evaluate
from equidp.evaluation.predictions import predict
from equidp.losses import SquaredError
from equidp.training.build import build
from support.errors import raises_field

BOUNDS = (0.0, 100_000.0)


def incomes(n: int = 300, **more) -> GroupedDataset:
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(n, 3))
    targets = 50_000 + 10_000 * inputs[:, 0] - 5_000 * inputs[:, 1] + 3_000 * rng.normal(size=n)
    tensors = torch.from_numpy(inputs).float(), torch.from_numpy(targets).float(), torch.arange(n) % 2
    return GroupedDataset(*tensors, ("f", "m"), (), target_bounds=BOUNDS, **more)


def trained(data: GroupedDataset, method: str, **plan) -> equidp.Run:
    asked = equidp.Plan(**{"epochs": 10, "batch_size": 50, "learning_rate": 0.5, **plan})
    return build(asked.resolve(method, len(data)), data, seed=0, secure=False).fit()


@pytest.mark.soak
@pytest.mark.parametrize("weighted", [False, True])
def test_without_clipping_and_noise_a_run_is_linear_regression(weighted):
    weights = torch.rand(300, generator=torch.Generator().manual_seed(0)) if weighted else None
    data = incomes(weights=weights)
    run = trained(data, "sgd", epochs=300, batch_size=300, learning_rate=1.0)
    theirs = LinearRegression().fit(data.inputs, data.targets, sample_weight=weights)
    np.testing.assert_allclose(predict(run.model, data.inputs)[:, 0], theirs.predict(data.inputs), atol=20)


@pytest.mark.soak
@pytest.mark.parametrize("method", ["dpsgd", "dpsgd-f", "automatic", "global-adapt"])
def test_private_training_explains_what_there_is_to_explain(method):
    data = incomes(2000)
    found = evaluate(trained(data, method, epochs=20, noise_multiplier=0.5).model, data)
    assert found.groups.set_index("group").at["all", "r2"] > 0.5  # 0.93 without privacy
    assert found.useful


@pytest.mark.soak
def test_metrics_are_those_of_scikit_learn():
    data, model = incomes(), trained(incomes(), "dpsgd", noise_multiplier=1.0).model
    found, answers = evaluate(model, data), predict(model, data.inputs)[:, 0].double().numpy()
    for name, rows in (("f", data.groups == 0), ("m", data.groups == 1), ("all", data.groups >= 0)):
        row = found.groups.set_index("group").loc[name]
        given = data.targets[rows].double().numpy(), answers[rows]
        assert row["rmse"] == pytest.approx(root_mean_squared_error(*given), rel=1e-12)
        assert row["mae"] == pytest.approx(mean_absolute_error(*given), rel=1e-12)
        assert row["r2"] == pytest.approx(r2_score(*given), rel=1e-12)
        assert all(row[f"{each}_low"] < row[each] < row[f"{each}_high"] for each in ("rmse", "mae", "r2"))


@pytest.mark.soak
def test_intervals_hold_their_level():
    """Of 300 samples the true value is outside as often as promised; 30 or more of 300 at 5%: chance 3e-4."""
    rng, missed = np.random.default_rng(1), dict.fromkeys(("rmse", "mae"), 0)
    still = nn.Linear(1, 1)
    nn.init.zeros_(still.weight)
    nn.init.zeros_(still.bias)
    true = {"rmse": 1.0, "mae": np.sqrt(2 / np.pi)}
    for _ in range(300):
        targets = torch.from_numpy(rng.normal(size=100)).float()
        data = GroupedDataset(
            torch.zeros(100, 1), targets, torch.zeros(100).long(), ("a",), (), target_bounds=(-9, 9)
        )
        row = equidp.evaluation.groups.group_values(
            equidp.evaluation.predictions.Predictions.of(predict(still, data.inputs), data.targets, ()),
            data.groups.numpy(),
            ("a",),
            [equidp.evaluation.metrics.METRICS[name] for name in missed],
            0.95,
        ).set_index(["group", "metric"])
        for name in missed:
            low, high = row.loc[("a", name), ["low", "high"]]
            missed[name] += not low <= true[name] <= high
    assert all(count < 30 for count in missed.values())


@pytest.mark.soak
def test_a_model_that_predicts_the_mean_is_uninformative():
    data, mean = incomes(), nn.Linear(3, 1)
    nn.init.zeros_(mean.weight)
    nn.init.constant_(mean.bias, float(data.targets.mean()))
    found = evaluate(mean, data)
    assert not found.useful
    assert found.blind_spots.constant_class == ""
    assert found.blind_spots.constant_value == pytest.approx(float(data.targets.std(correction=0)), rel=1e-5)
    assert found.gaps == {}
    assert found.withholding().plain()["metric"] == "rmse"


@pytest.mark.soak
def test_costs_are_the_increase_of_an_error_and_the_loss_of_r2():
    data, model = incomes(), trained(incomes(), "dpsgd", noise_multiplier=1.0).model
    baseline = trained(incomes(), "sgd", epochs=50).model
    for metric in ("rmse", "mae", "r2"):
        found = evaluate(model, data, baseline=baseline, metric=metric)
        ours, theirs = (evaluate(each, data).groups.set_index("group")[metric] for each in (model, baseline))
        sign = -1 if metric == "r2" else 1
        np.testing.assert_allclose(
            found.costs.set_index("group")["privacy_cost"], sign * (ours - theirs), rtol=1e-9
        )
    with raises_field(SettingError, "metric", "'auc'", "number"):
        evaluate(model, data, metric="auc")
    with raises_field(SettingError, "threshold", "0.5"):
        evaluate(model, data, decision=equidp.evaluation.predictions.Decision(threshold=0.5))


@pytest.mark.soak
def test_targets_outside_the_public_range_count_as_its_ends_in_training_alone():
    loss = SquaredError((0.0, 10.0))
    outputs = torch.tensor([[5.0], [5.0]])
    assert loss(outputs, torch.tensor([1e6, 10.0])).tolist() == [0.5, 0.5]
    data = incomes()
    targets = data.targets.clone()
    targets[0] = 1e9
    assert evaluate(trained(data, "sgd").model, replace(data, targets=targets)).groups["rmse"].max() > 1e7


@pytest.mark.soak
def test_accounts_and_diagnoses_work_on_numbers():
    data = incomes(120)
    plan = equidp.Plan(epochs=1, batch_size=30, noise_multiplier=2.0)
    watch, record = equidp.IndividualAccountant(1), equidp.RunRecord()
    callbacks = [watch, equidp.EpochRecorder(record, data)]
    trainer = build(plan.resolve("dpsgd", 120), data, seed=0, secure=False, callbacks=callbacks)
    start = copy.deepcopy(trainer.model)
    run = trainer.fit()
    assert (
        0
        < watch.report(trainer, accountant="rdp").sensitive_epsilons.max()
        <= run.epsilon(accountant="rdp") * 1.01
    )
    assert {"rmse", "mae", "r2", "loss"} <= set(record.table().columns)
    assert list(run.metrics(data)["group"]) == ["f", "m", "all"]
    step = {"batch_size": 30, "learning_rate": 0.1, "noise_multiplier": 1.0}
    little = equidp.Effort(batches=2, trace_vectors=2, eigenvalue_products=2)
    found = equidp.diagnose(start, equidp.DPSGD(), data, effort=little, **step)
    assert found.sensitive_groups["group"].tolist() == ["f", "m"]


def test_what_is_no_number_and_what_is_for_classes_is_refused():
    data = incomes(40)
    with raises_field(DataError, "targets"):
        GroupedDataset(data.inputs, torch.arange(40), data.groups, ("f", "m"), (), target_bounds=BOUNDS)
    with raises_field(SettingError, "class_weight"):
        trained(data, "dpsgd", batch_size=10, class_weight={"yes": 2})
    with raises_field(SettingError, "train"):
        equidp.audit_step(data, plan=equidp.Plan(batch_size=10))
