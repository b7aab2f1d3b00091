"""Figures of a diagnosis equal a dense computation; nonsense is refused; the model stays as it was."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import equidp
from equidp.diagnostics import Effort, diagnose
from equidp.errors import DataError, ModelError, PolicyError, SettingError
from equidp.kernel.noise import SeededRandomness
from equidp.kernel.sampling import PoissonSampler
from equidp.policies.dpsgd_f import GroupBounds
from support.dense import full_hessian, gradients
from support.errors import raises_field
from support.toy import toy

EVERYTHING = Effort(
    batches=5, curvature_examples=None, trace_vectors=60, eigenvalue_products=100
)  # fmt: skip
STEP = {"batch_size": 20, "learning_rate": 0.3, "noise_multiplier": 1.5}
POLICIES = {
    "dpsgd": lambda: equidp.DPSGD(0.4),
    "dpsgd-f": lambda: equidp.DPSGDF(0.2),
    "global": lambda: equidp.Global(0.4, 1.0),
    "global-adapt": lambda: equidp.GlobalAdapt(0.4, initial_bound=1.0),
    "automatic": lambda: equidp.Automatic(0.4),
}
WEIGHTS = {
    "dpsgd": lambda v, a: (0.4 / v).clamp(max=1.0),
    "dpsgd-f": lambda v, a: (torch.tensor([0.3, 0.5])[a] / v).clamp(max=1.0),
    "global": lambda v, a: torch.where(v <= 1.0, 0.4, 0.0).double(),
    "global-adapt": lambda v, a: torch.where(v <= 1.0, 0.4, 0.4 / v),
    "automatic": lambda v, a: 0.4 / (v + 0.01),
}
SENSITIVITY = {"dpsgd-f": 0.5}
LEARNT = {"dpsgd-f": GroupBounds(torch.tensor([0.3, 0.5]), torch.zeros(2, 2), torch.tensor(20.0))}


def model_of() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def data_of() -> equidp.GroupedDataset:
    data = toy(80)
    # Groups of unequal size and difficulty.
    return replace(data, inputs=data.inputs.double(), groups=(torch.arange(80) % 4 == 3).long())


@pytest.fixture(params=POLICIES, scope="module")
def diagnosed(request):
    name, model, data = request.param, model_of(), data_of()
    state = LEARNT.get(name)
    given = {"policy_state": state, "effort": EVERYTHING, "seed": 3, **STEP}
    return name, model, data, diagnose(model, POLICIES[name](), data, **given)


def dense_batches(name, model, data) -> list[tuple[Tensor, Tensor]]:
    """g_B and c_B of the batches that seed 3 draws, from per-example gradients."""
    rows = gradients(model, data.inputs, data.targets)
    weights = WEIGHTS[name](rows.norm(dim=1), data.groups)
    return [
        (rows[at].sum(0) / 20, weights[at] @ rows[at] / 20)
        for at in PoissonSampler(80, 20 / 80, 5, SeededRandomness(3))
    ]


def cosine_of(one: Tensor, other: Tensor) -> float:
    return float(one @ other / (one.norm() * other.norm()))


@pytest.mark.soak
def test_excess_risk_and_alignment_are_those_of_a_dense_computation(diagnosed):
    name, model, data, diagnosis = diagnosed
    batches, eta = dense_batches(name, model, data), 0.3
    everyone = gradients(model, data.inputs, data.targets).mean(0)
    for group, row in enumerate(diagnosis.sensitive_groups.to_dict("records")):
        of = data.groups == group
        g = gradients(model, data.inputs[of], data.targets[of]).mean(0)
        h = full_hessian(model, data.inputs[of], data.targets[of])
        terms: dict[str, list[float]] = {}
        for mean, clipped in batches:
            r = clipped.norm() / mean.norm()
            full = clipped / r if r else clipped  # where clipping leaves nothing, nothing is at full length

            def risk(before: Tensor, after: Tensor, g: Tensor = g, h: Tensor = h) -> float:
                """Return the group's loss, to second order, by a step along `after` in place of `before`."""
                return float(
                    eta * g @ (before - after) + eta**2 / 2 * (after @ h @ after - before @ h @ before)
                )

            for key, value in {
                "clipping": risk(mean, clipped),
                "magnitude": risk(mean, r * mean),
                "direction": risk(r * mean, clipped),
                "direction_alternative": risk(mean, full),
                "magnitude_alternative": risk(full, clipped),
                "clipping_published": risk(mean, clipped) + eta * float(g @ (everyone - mean)),
                "nonprivate": float(-eta * g @ everyone + eta**2 / 2 * mean @ h @ mean),
                "direction_first_order": float(eta * g @ (r * mean - clipped)),
                "cosine_before": cosine_of(mean, g),
                "cosine_after": cosine_of(clipped, g),
                "cosine_turned": cosine_of(mean, clipped),
                "batch_norm": float(mean.norm()),
                "clipped_norm": float(clipped.norm()),
                "ratio": float(r),
            }.items():
                terms.setdefault(key, []).append(value)
        for key, values in terms.items():
            there = np.array(values)[
                ~np.isnan(values)
            ]  # a batch that clipping leaves nothing of has no cosine
            assert row[f"sensitive_{key}"] == pytest.approx(there.mean(), rel=1e-8, abs=1e-12), key
            error = np.std(there, ddof=1) / math.sqrt(len(there))
            assert row[f"sensitive_{key}_se"] == pytest.approx(error, rel=1e-6, abs=1e-12), key
        assert row["sensitive_clipping"] == pytest.approx(
            row["sensitive_direction"] + row["sensitive_magnitude"], rel=1e-10
        )


@pytest.mark.soak
def test_curvature_and_noise_are_those_of_a_dense_computation(diagnosed):
    name, model, data, diagnosis = diagnosed
    sensitivity = SENSITIVITY.get(name, 0.4)
    for group, row in enumerate(diagnosis.sensitive_groups.to_dict("records")):
        of = data.groups == group
        h = full_hessian(model, data.inputs[of], data.targets[of])
        ends = torch.linalg.eigvalsh(h)[[0, -1]].tolist()
        assert row["sensitive_smallest_eigenvalue"] == pytest.approx(ends[0], abs=1e-8)
        assert row["sensitive_largest_eigenvalue"] == pytest.approx(ends[1], rel=1e-8)
        assert abs(row["sensitive_trace"] - float(h.trace())) <= 4 * row["sensitive_trace_se"]
        factor = 0.3**2 / 2 * (1.5 * sensitivity) ** 2
        assert row["sensitive_noise"] == pytest.approx(row["sensitive_trace"] * factor / 20**2, rel=1e-10)
        assert row["sensitive_noise_published"] == pytest.approx(row["sensitive_trace"] * factor, rel=1e-10)
        assert row["sensitive_noise_se"] == pytest.approx(
            row["sensitive_trace_se"] * factor / 20**2, rel=1e-10
        )
        assert row["sensitive_excess"] == row["sensitive_clipping"] + row["sensitive_noise"]


@pytest.mark.soak
def test_norms_and_clipping_error_are_those_of_a_dense_computation(diagnosed):
    name, model, data, diagnosis = diagnosed
    rows = gradients(model, data.inputs, data.targets)
    v = rows.norm(dim=1)
    w = WEIGHTS[name](v, data.groups)
    with torch.no_grad():
        losses = nn.functional.cross_entropy(model(data.inputs), data.targets, reduction="none")
    for group, row in enumerate(diagnosis.sensitive_groups.to_dict("records")):
        of = data.groups == group
        b = 20 * float(of.double().mean())
        bias, variance = float((w[of] * v[of] - v[of]).abs().mean()), 1.5 * SENSITIVITY.get(name, 0.4) / b
        expected = {
            "loss": float(losses[of].mean()),
            "group_gradient_norm": float(rows[of].mean(0).norm()),
            "mean_norm": float(v[of].mean()),
            "max_norm": float(v[of].max()),
            "error_bias": bias,
            "error_variance": variance,
            "error_upper": bias + variance,
            "error_lower": (bias + variance) / 2,
            "best_bound": float(np.quantile(v[of], 1 - 1.5 / b, method="inverted_cdf")),
            "best_bound_all": float(np.quantile(v, 1 - 1.5 / 20, method="inverted_cdf")),
        }
        for key, value in expected.items():
            assert row[f"sensitive_{key}"] == pytest.approx(value, rel=1e-8), key
        assert row["examples"] == int(of.sum())
        if name == "dpsgd":
            assert row["sensitive_share_clipped"] == pytest.approx(float((v[of] > 0.4).double().mean()))


def test_pairs_hold_the_papers_bounds(diagnosed):
    name, model, data, diagnosis = diagnosed
    batches, eta, c = dense_batches(name, model, data), 0.3, SENSITIVITY.get(name, 0.4)
    g, lam, p = [], [], []
    for group in (0, 1):
        of = data.groups == group
        g.append(gradients(model, data.inputs[of], data.targets[of]).mean(0))
        lam.append(float(torch.linalg.eigvalsh(full_hessian(model, data.inputs[of], data.targets[of]))[-1]))
        p.append(float(of.double().mean()))
    by_group = diagnosis.sensitive_groups.set_index("group")
    for row in diagnosis.sensitive_pairs.to_dict("records"):
        one, other = "ab".index(row["group"]), "ab".index(row["other"])
        cosines = [
            float(torch.cosine_similarity(mean, g[k], dim=0) - torch.cosine_similarity(clipped, g[k], dim=0))
            * float(clipped.norm() * g[k].norm())
            for k in (one, other)
            for mean, clipped in batches
        ]
        first, second = np.mean(cosines[:5]), np.mean(cosines[5:])
        square = np.mean([float(clipped.norm()) ** 2 for _, clipped in batches])
        bound = eta * (first - second) - eta**2 / 2 * (lam[0] + lam[1]) * square
        assert row["sensitive_direction_bound"] == pytest.approx(bound, rel=1e-8)
        gap = (
            by_group.loc[row["group"], "sensitive_direction"]
            - by_group.loc[row["other"], "sensitive_direction"]
        )
        assert row["sensitive_direction_gap"] == pytest.approx(gap, rel=1e-8)
        norms = [float(each.norm()) for each in g]
        demand = 2.5 * c + norms[other] * (1 + p[other] + p[other] ** 2 / 2)
        assert row["sensitive_norm_condition"] == (norms[one] * p[one] ** 2 / 2 >= demand)
        tran = eta * norms[one] * (norms[one] * (p[one] - p[one] ** 2 / 2) - demand)
        assert row["sensitive_norm_bound"] == pytest.approx(tran, rel=1e-8)
        assert row["sensitive_step_small"] == (eta * max(lam) <= 1)
        assert not row["sensitive_convex"]  # a hidden layer makes it so


@pytest.mark.soak
def test_logistic_regression_is_found_convex():
    torch.manual_seed(0)
    diagnosis = diagnose(nn.Linear(5, 2).double(), equidp.DPSGD(0.4), data_of(), effort=EVERYTHING, **STEP)
    assert diagnosis.sensitive_pairs["sensitive_convex"].all()
    gaps = diagnosis.sensitive_pairs
    assert (gaps["sensitive_direction_bound"] <= gaps["sensitive_direction_gap"]).all()


@pytest.mark.soak
def test_examples_whose_gradient_is_not_finite_are_left_out_and_counted():
    class Explodes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 2).double()

        def forward(self, values):
            return self.layer(values) * torch.where(values[:, :1] > 2.0, torch.inf, 1.0)

    data = data_of()
    bad = data.inputs[:, 0] > 2.0
    assert bad.any()
    table = diagnose(Explodes(), equidp.DPSGD(0.4), data, effort=Effort(batches=2), **STEP).sensitive_groups
    assert table["sensitive_not_finite"].sum() == int(bad.sum())
    assert np.isfinite(
        table[["sensitive_direction", "sensitive_mean_norm", "sensitive_loss"]].to_numpy()
    ).all()


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"policy": equidp.SGD()}, SettingError, "policy"),
        ({"policy": nn.Linear(3, 2)}, PolicyError, "policy"),
        ({"groups": ["c"]}, SettingError, "group"),
        ({"batch_size": 81}, SettingError, "batch_size"),
        ({"learning_rate": "0.1"}, SettingError, "learning_rate"),
        ({"engine": "gost"}, SettingError, "engine"),
        ({"model": equidp.DPSGD()}, ModelError, "model"),
        ({"data": torch.utils.data.TensorDataset(torch.ones(4, 3), torch.arange(4) % 2)}, DataError, "data"),
    ],
    ids=lambda value: "",
)
def test_what_makes_no_sense_is_refused(changes, error, field):
    given = {"model": model_of(), "policy": equidp.DPSGD(0.4), "data": data_of(), **STEP, **changes}
    with raises_field(error, field):
        diagnose(**given)


def test_a_group_without_examples_is_refused_by_name_unless_left_out():
    data = replace(data_of(), group_names=("a", "b", "nobody"))
    with raises_field(DataError, "group", "'nobody'"):
        diagnose(model_of(), equidp.DPSGD(0.4), data, **STEP)
    effort = Effort(batches=2, trace_vectors=2)
    kept = diagnose(model_of(), equidp.DPSGD(0.4), data, groups=["a", "b"], effort=effort, **STEP)
    assert len(kept.sensitive_groups) == 2
    for column in {*kept.sensitive_groups, *kept.sensitive_pairs}:  # all that is raw is called so
        assert column in {"group", "other", "examples", "learning_rate"} or column.startswith("sensitive_")
    assert kept.findings()
