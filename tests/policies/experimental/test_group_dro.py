"""Group-DRO weighs up the group of the largest released mean loss, and trains like any other method."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor, nn

import equidp
from equidp.errors import SettingError
from equidp.kernel.bounding import example_rows, example_weights
from equidp.kernel.ledger import MemoryLedger
from equidp.kernel.policy import Setting
from equidp.policies import DPSGD, GroupDRO
from support.errors import raises_field
from support.toy import make_trainer, toy

SETTING = Setting(3, 64.0, 1.0)


def released(counts: list[float], means: list[float], largest: float) -> Tensor:
    """The exact sum of rows of groups of these counts and mean losses, [6]."""
    sums = torch.tensor([counts, [count * mean / largest for count, mean in zip(counts, means, strict=True)]])
    return sums.flatten() / 2**0.5


def test_shares_move_by_the_exponentiated_gradient_of_released_mean_losses():
    """q_a exp(eta L_a) over their sum (Sagawa et al. 2020, Algorithm 1), and weights q_a / count, the
    largest 1."""
    policy = GroupDRO(0.7, group_learning_rate=0.5, largest_loss=4.0, smoothing=0.0)
    state, q = policy.init(SETTING), torch.full((3,), 1 / 3)
    counts, means = [40.0, 16.0, 8.0], [0.5, 1.0, 3.0]
    for _ in range(2):
        state = policy.update(state, released(counts, means, 4.0))
        q = q * torch.exp(0.5 * torch.tensor(means))
        q = q / q.sum()
    torch.testing.assert_close(state.shares, q)
    expected = q / torch.tensor(counts)
    expected = expected / expected.max()
    weights = example_weights(policy, state, torch.full((3,), 0.7), torch.arange(3))
    torch.testing.assert_close(weights, expected)
    assert policy.sensitivity(state) == 0.7
    torch.testing.assert_close(policy.released(state)["clipping_bound"], 0.7 * expected)


def test_decay_forgets_what_groups_lost_before():
    policy = GroupDRO(group_learning_rate=1.0, group_decay=0.5, smoothing=0.0)
    state = policy.init(SETTING)
    for _ in range(60):
        state = policy.update(state, released([20.0] * 3, [1.0, 2.0, 3.0], 5.0))
    torch.testing.assert_close(state.shares, (2 * torch.tensor([1.0, 2.0, 3.0])).softmax(dim=0))


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=5),
    st.integers(0, 2),
)
def test_a_row_is_at_most_one_long_before_the_kernel_bounds_it_whatever_the_loss(losses, group):
    policy = GroupDRO()
    examples = torch.ones(len(losses)), torch.full((len(losses),), group), (torch.tensor(losses),)
    rows = example_rows(policy, policy.init(SETTING), *examples)
    lengths = rows.norm(dim=1)
    assert (lengths[~lengths.isnan()] <= 1 + 1e-6).all()
    assert torch.equal(lengths.isnan(), torch.tensor(losses).isnan())
    assert not rows.reshape(-1, 2, 3)[:, :, [each for each in range(3) if each != group]].any()


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=6, max_size=6))
def test_weights_are_between_0_and_1_and_the_largest_is_1_whatever_noise_did(sums):
    policy = GroupDRO(group_learning_rate=1.0)
    state = policy.init(SETTING)
    for _ in range(3):
        state = policy.update(state, torch.tensor(sums))
    weights = policy.released(state)["group_weight"]
    assert torch.isfinite(weights).all()
    assert (weights >= 0).all()
    assert weights.max() == 1


def hard() -> equidp.GroupedDataset:
    """Group b, a fifth of the data, is separated by another line."""
    data = toy(600)
    groups = (torch.arange(600) % 5 == 0).long()
    targets = torch.where(groups == 1, (data.inputs[:, 0] + data.inputs[:, 1] > 0).long(), data.targets)
    return replace(data, groups=groups, targets=targets)


@pytest.mark.soak
def test_the_group_that_loses_most_gets_more_weight_and_loses_less():
    """Without noise."""
    data = hard()

    def worst_loss(policy) -> float:
        given = {"noise_multiplier": 0.0, "steps": 300, "epochs": None, "secure": False, "seed": 1}
        trainer = make_trainer(policy=policy, train=data, batch_size=120, **given)
        run = trainer.fit()
        losses = nn.functional.cross_entropy(run.model(data.inputs), data.targets, reduction="none")
        return max(float(losses[data.groups == group].mean()) for group in range(2))

    assert worst_loss(GroupDRO(1.0, group_learning_rate=0.1)) < 0.95 * worst_loss(DPSGD(1.0))


@pytest.mark.soak
@pytest.mark.parametrize("part", [None, 7])
def test_losses_are_the_same_with_either_engine_and_in_parts(part):
    states = []
    for engine in ("ghost", "functional"):
        trainer = make_trainer(
            policy=GroupDRO(0.5), engine=engine, secure=False, seed=3, physical_batch_size=part
        )
        trainer.fit()
        states.append(trainer.policy_state)
    for first, second in zip(*states, strict=True):
        torch.testing.assert_close(first, second, rtol=1e-4, atol=1e-5)


@pytest.mark.soak
def test_the_loss_of_a_person_is_the_sum_over_their_rows():
    """Thirty people of three equal rows each, all drawn, without noise."""
    rows = replace(toy(30), groups=torch.zeros(30, dtype=torch.int64))
    repeated = rows.subset(torch.arange(30).repeat_interleave(3))
    people = equidp.by_person(repeated, [number // 3 for number in range(90)], most_rows=3)
    trainer = make_trainer(
        policy=GroupDRO(smoothing=0.0, largest_loss=10.0),
        train=people,
        noise_multiplier=0.0,
        batch_size=30,
        steps=1,
        epochs=None,
    )
    start = nn.functional.cross_entropy(trainer.model(rows.inputs), rows.targets, reduction="none")
    trainer.fit()
    counts, losses = trainer.policy_state.sums
    assert float(counts[0]) == pytest.approx(30.0, rel=1e-5)
    assert float(losses[0]) * 10 == pytest.approx(3 * float(start.detach().sum()), rel=1e-4)


@pytest.mark.soak
def test_a_resumed_run_goes_on_with_the_same_shares(tmp_path):
    ledger = MemoryLedger()

    class Stops(equidp.Callback):
        def after_step(self, trainer):
            if trainer.steps_done == 5:
                trainer.stop(KeyboardInterrupt())

    given = {"policy": GroupDRO(0.5), "secure": False, "seed": 3, "steps": 12, "epochs": None}
    stopped = make_trainer(ledger=ledger, callbacks=[Stops(), equidp.Checkpoints(tmp_path)], **given)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit()
    resumed = make_trainer(ledger=ledger, **given)
    equidp.Checkpoints(tmp_path).restore(resumed)
    for there, now in zip(stopped.policy_state, resumed.policy_state, strict=True):
        assert torch.equal(there, now)
    assert resumed.fit().facts.steps == 12


@dataclass(frozen=True)
class Hard(equidp.DPSGD):
    """DP-SGD on examples in proportion to their losses, up to 1."""

    loss_readers: ClassVar[tuple[str, ...]] = ("weight",)

    def weight(self, state: Any, norm: Tensor, group: Tensor, loss: Tensor) -> Tensor:  # type: ignore[override]
        return loss.clamp(0.0, 1.0) * super().weight(state, norm, group)


@pytest.mark.soak
def test_policies_whose_weights_read_losses_train_and_are_refused_where_losses_are_not_kept():
    """An account of single examples and canaries of an audit have none; a diagnosis and a record do."""
    data = toy()
    record = equidp.RunRecord()
    trainer = make_trainer(policy=Hard(), callbacks=[equidp.EpochRecorder(record, data)])
    trainer.fit()
    assert record.table()["share_clipped"].notna().all()
    little = equidp.Effort(batches=2, trace_vectors=2, eigenvalue_products=2)
    settings = {"batch_size": 50, "learning_rate": 0.1, "noise_multiplier": 1.0, "effort": little}
    found = equidp.diagnose(trainer.model, Hard(), data, **settings)
    assert found.sensitive_groups["sensitive_share_clipped"].notna().all()
    ledger = MemoryLedger()
    accountant = equidp.IndividualAccountant(interval=1)
    with raises_field(SettingError, "policy"):
        make_trainer(policy=Hard(), ledger=ledger, callbacks=[accountant]).fit()
    assert ledger.steps == 0
    with raises_field(SettingError, "method"):
        equidp.audit_step(data, Hard(), plan=equidp.Plan(batch_size=100), runs=300)


def test_a_loss_whose_value_follows_from_the_batch_is_refused_before_anything_is_spent():
    """Its gradients are those of single examples; its values, which statistics would read, are not."""

    def centred(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return losses - losses.detach().mean()

    def of_groups(outputs: Tensor, targets: Tensor) -> Tensor:
        losses = nn.functional.cross_entropy(outputs, targets, reduction="none")
        return torch.stack([losses[targets == each].mean() for each in range(2)]).max()

    ledger = MemoryLedger()
    for loss, field in ((centred, "losses"), (of_groups, "loss")):
        with raises_field(equidp.ModelError, field):
            make_trainer(policy=GroupDRO(), loss=loss, ledger=ledger)
    assert ledger.steps == 0
