"""Each error of clipping comes alone, without noise, and with all else equal."""

from __future__ import annotations

import pytest
import torch

from equidp.data import open_source
from equidp.diagnostics.gradients import BatchGradients
from equidp.training.build import build
from equidp.training.plan import Plan
from papers.ablation import ERRORS, ablate

PLAN = Plan(
    model="logistic", learning_rate=0.5, batch_size=40, epochs=2, method_settings={"clipping_bound": 0.2}
)


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


@pytest.mark.soak
def test_no_error_is_plain_sgd_and_both_are_dpsgd_without_noise():
    data = open_source("digits").split(3)
    for error, policy in (("none", "sgd"), ("both", "dpsgd")):
        table = ablate("digits", error, 3, PLAN)
        assert table["epoch"].nunique() == 2
        plan = PLAN.with_changes({"noise_multiplier": 0.0}).for_method(policy).resolve(len(data.train))
        expected = build(plan, data.train, weights_seed=3, seed=3).fit().metrics(data.test)["loss"].to_list()
        assert table["loss"].to_list()[-len(expected) :] == pytest.approx(expected, rel=1e-5)
