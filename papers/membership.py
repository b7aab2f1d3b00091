"""Membership inference by group: does a model show who was in its training data?

Three attacks: a threshold on the loss (Yeom et al. 2018; by group as in Yu et al., Appendix D), and the
likelihood-ratio attack with shadow models (LiRA, Carlini et al. 2022), online (Algorithm 1: shadows with and
without the example) and offline (equation 4: shadows without it alone). Attacks show what leaks at least;
epsilon bounds what leaks at most.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import joblib
import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from scipy import stats
from sklearn.metrics import roc_auc_score, roc_curve
from torch import Tensor, nn

from equidp import DataError, GroupedDataset, Risk, SettingError
from equidp.evaluation.groups import by_group
from equidp.evaluation.intervals import check_level
from equidp.evaluation.predictions import predict

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

FALSE_POSITIVE_RATES = (0.001, 0.01)
"""Rates at which true-positive rates are shown, as `Risk.values_by_name` has them."""
_RESAMPLES = 200
_FEW_SHADOWS = 64  # with fewer, one variance for all examples (Carlini et al., section VI.B)
_SMALLEST_SPREAD = 1e-6


def scaled_confidences(outputs: Tensor, targets: Tensor) -> Floats:
    """Return log(p / (1 - p)) of each true class's probability p, [n], from logits [n, classes].

    Carlini et al., section V.A.
    """
    outputs = outputs.double()
    chosen = outputs.gather(1, targets.unsqueeze(1)).squeeze(1)
    others = outputs.scatter(1, targets.unsqueeze(1), -torch.inf).logsumexp(dim=1)
    return (chosen - others).numpy()


def online_scores(confidences: Floats, shadows: Floats, inside: Bools) -> Floats:
    """Return the log likelihood ratio of member against other, [n].

    The likelihoods are Gaussians fitted to the shadow models with and without each example.

    Args:
        confidences: of the target model, [n].
        shadows: of the shadow models, [shadows, n].
        inside: which shadow model was trained with which example, [shadows, n].
    """
    member = stats.norm.logpdf(confidences, *_fit_shadows(shadows, inside))
    ratio: Floats = member - stats.norm.logpdf(confidences, *_fit_shadows(shadows, ~inside))
    return ratio


def offline_scores(confidences: Floats, shadows: Floats, inside: Bools) -> Floats:
    """Return how many deviations the confidence lies above shadow models without the example, [n]."""
    mean, spread = _fit_shadows(shadows, ~inside)
    return (confidences - mean) / spread


def _fit_shadows(shadows: Floats, chosen: Bools) -> tuple[Floats, Floats]:
    """Return mean and deviation over the chosen shadows of each example, [n]."""
    kept = np.where(chosen, shadows, np.nan)
    mean = np.nanmean(kept, axis=0)
    squares, freedom = np.nansum((kept - mean) ** 2, axis=0), np.maximum(chosen.sum(axis=0) - 1, 1)
    if len(shadows) < _FEW_SHADOWS:
        squares, freedom = np.full(len(mean), squares.sum()), freedom.sum()
    return mean, np.maximum((squares / freedom) ** 0.5, _SMALLEST_SPREAD)


def sensitive_attack_table(
    scores: Floats,
    members: Bools,
    groups: npt.NDArray[np.int64],
    group_names: Sequence[str],
    *,
    level: float = 0.95,
    seed: int = 0,
    risks: Mapping[str, Risk] | None = None,
) -> pd.DataFrame:
    """Return the success of an attack by its scores, in each group and in all.

    Args:
        scores: [n]; a higher score means that the attack takes the example for a member.
        members, groups: [n].
        group_names: one per group.
        level: of the intervals, percentiles of a bootstrap over members and over others.
        seed: of the halves and of the bootstrap.
        risks: by group, or "all", what no attack exceeds; adds columns that end in _at_most.

    Returns:
        Rows by group, then "all": group, members, others, and with _low and _high success_rate (mean share of
        members and of others classified right on one half, by the best threshold of the other half), auc,
        tpr_at_0.1%_fpr and tpr_at_1%_fpr (share of members found by the best threshold that takes at most
        that share of others for members). NaN for a group with fewer than 4 members or others.
    """
    check_level(level)
    rows = []
    for name, chosen in by_group(groups, group_names):
        inside, outside = scores[chosen & members], scores[chosen & ~members]
        figures = _with_intervals(inside, outside, level, np.random.default_rng(seed))
        if risks is not None:
            figures |= _at_most(risks.get(name))
        rows.append({"group": name, "members": len(inside), "others": len(outside), **figures})
    return pd.DataFrame(rows)


def _at_most(risk: Risk | None) -> dict[str, float]:
    """Return upper bounds on all attacks, by the names of the figures; NaN where none is known."""
    names = ("success_rate", *(f"tpr_at_{100 * rate:g}%_fpr" for rate in FALSE_POSITIVE_RATES))
    found = {} if risk is None else {**risk.values_by_name(), "success_rate": (1 + risk.advantage) / 2}
    return {f"{name}_at_most": found.get(name, np.nan) for name in names}


def _with_intervals(
    inside: Floats, outside: Floats, level: float, generator: np.random.Generator
) -> dict[str, float]:
    enough = min(len(inside), len(outside)) >= 4
    if not enough:
        inside = outside = np.zeros(4)
    # Halves are drawn once, and each is resampled by itself: no example is in both.
    halves = [np.array_split(generator.permutation(values), 2) for values in (inside, outside)]
    found = _figures(halves)
    again = pd.DataFrame(
        _figures([[generator.choice(half, len(half)) for half in pair] for pair in halves])
        for _ in range(_RESAMPLES)
    )
    ends = again.quantile([(1 - level) / 2, (1 + level) / 2])
    return {
        f"{name}{ending}": value if enough else np.nan
        for name, figure in found.items()
        for ending, value in (("", figure), ("_low", ends[name].iloc[0]), ("_high", ends[name].iloc[1]))
    }


def _figures(halves: list[list[Floats]]) -> dict[str, float]:
    """Return figures of members' scores and others' scores, each in two halves."""
    (one, other), (first, second) = halves
    truth = np.repeat([True, False], [len(one) + len(other), len(first) + len(second)])
    scores = np.concatenate([one, other, first, second])
    false_rate, true_rate, _ = roc_curve(truth, scores, drop_intermediate=False)
    threshold = _best_threshold(one, first)
    figures = {
        "success_rate": float(((other >= threshold).mean() + (second < threshold).mean()) / 2),
        "auc": float(roc_auc_score(truth, scores)),
    }
    for rate in FALSE_POSITIVE_RATES:
        figures[f"tpr_at_{100 * rate:g}%_fpr"] = float(true_rate[false_rate <= rate].max())
    return figures


def _best_threshold(inside: Floats, outside: Floats) -> float:
    truth = np.repeat([True, False], [len(inside), len(outside)])
    false_rate, true_rate, thresholds = roc_curve(truth, np.concatenate([inside, outside]))
    return float(thresholds[np.argmax(true_rate - false_rate)])


def sensitive_membership_inference(
    data: GroupedDataset,
    train: Callable[[GroupedDataset, int], nn.Module],
    *,
    shadow_models: int = 16,
    seed: int = 0,
    level: float = 0.95,
    jobs: int | None = None,
    risks: Mapping[str, Risk] | None = None,
) -> pd.DataFrame:
    """Train a target model on half of the data, attack it, and return how well the attacks work by group.

    Keep the figures to yourself: they follow from raw data, and no ledger is charged for the shadow models.

    Args:
        data: members are a random half of it.
        train: (data, seed) -> a classifier trained on that data with that seed; its outputs are logits.
        shadow_models: an even number >= 4; each example is in the training data of exactly half of them. 16
            give a rough estimate, 256 the published one.
        seed: of the halves; models are trained with seed, seed + 1, ...
        level: of the intervals.
        jobs: processes; None: one per core.
        risks: by group, or "all", what no attack on a model that `train` makes exceeds, such as `Run.risk()`.

    Returns:
        `sensitive_attack_table` for each attack, with the column attack first: loss-threshold, lira-online,
        lira-offline.

    Raises:
        SettingError: shadow_models or level out of range.
        DataError: fewer than 8 examples.

    >>> targets, groups = torch.arange(8) % 2, torch.zeros(8).long()
    >>> data = GroupedDataset(torch.randn(8, 2), targets, groups, ("a",), class_names=("no", "yes"))
    >>> train = lambda data, seed: nn.Linear(2, 2)
    >>> table = sensitive_membership_inference(data, train, shadow_models=4, jobs=1)
    >>> table["attack"].unique().tolist()
    ['loss-threshold', 'lira-online', 'lira-offline']
    """
    check_level(level)
    if not (shadow_models >= 4 and shadow_models % 2 == 0):
        raise SettingError(f"shadow_models={shadow_models}; expected an even number >= 4.")
    if len(data) < 8:
        raise DataError(f"{len(data)} examples; expected at least 8 to divide into members and others.")
    data.check_single_rows("membership inference")
    data = data.to("cpu")
    generator = np.random.default_rng(seed)
    members = generator.permutation(len(data)) < len(data) / 2
    places = generator.random((shadow_models, len(data))).argsort(axis=0)
    inside = places < shadow_models / 2
    outputs = joblib.Parallel(n_jobs=jobs or joblib.cpu_count())(
        joblib.delayed(_outputs)(data, chosen, train, seed + at)
        for at, chosen in enumerate([members, *inside])
    )
    confidences = np.stack([scaled_confidences(each, data.targets) for each in outputs])
    losses = torch.nn.functional.cross_entropy(outputs[0].double(), data.targets, reduction="none")
    scores = {
        "loss-threshold": -losses.numpy(),
        "lira-online": online_scores(confidences[0], confidences[1:], inside),
        "lira-offline": offline_scores(confidences[0], confidences[1:], inside),
    }
    tables = [
        sensitive_attack_table(
            score, members, data.groups.numpy(), data.group_names, level=level, seed=seed, risks=risks
        ).assign(attack=name)
        for name, score in scores.items()
    ]
    table = pd.concat(tables, ignore_index=True)
    return table[["attack", *(column for column in table if column != "attack")]]


def _outputs(
    data: GroupedDataset, chosen: Bools, train: Callable[[GroupedDataset, int], nn.Module], seed: int
) -> Tensor:
    model = train(data.subset(torch.from_numpy(np.flatnonzero(chosen))), seed)
    return predict(model, data.inputs)
