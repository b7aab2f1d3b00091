"""Published settings of the named datasets: plain values for the fields of `equidp.Plan`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from equidp._parts import is_import_path
from equidp.data.dataset import DataSource
from equidp.data.own import OwnSource

Settings = Mapping[str, Any]

_XU_CENSUS: Settings = {
    "model": "logistic", "learning_rate": None, "epochs": 20, "clipping_bound": 0.5, "delta": 1e-6,
    "weight_decay": 0.01,
}  # fmt: skip


def _esipova(plan: Settings, *, adapt: Settings, fixed: Settings) -> Settings:
    """Add settings of Esipova et al.'s global methods. Their sigma_s is 10, not 10 sigma."""
    ratio = {"statistics_ratio": 10.0 / plan.get("noise_multiplier", 1.0)}
    return {**plan, "by_method": {"global-adapt": {**adapt, **ratio}, "global": fixed}}


_MNIST: Settings = {"epochs": 60, "noise_multiplier": 0.8, "learning_rate": 0.01, "delta": 1e-6}
_MNIST_GLOBAL: dict[str, Settings] = {
    "adapt": {"learning_rate": 0.1, "tolerance": 0.7},
    "fixed": {"clipping_bound": 20.0, "strict_bound": 100.0},
}
# Xu et al. have no global method, so Esipova et al.'s settings for MNIST are used.
_XU_MNIST = _esipova({"model": "lenet", **_MNIST}, **_MNIST_GLOBAL)
_ESIPOVA_TABLE: Settings = {"epochs": 20, "clipping_bound": 0.5, "delta": 1e-6}

PUBLISHED: dict[str, Settings] = {
    # Our own: with 13 eights in training, counts are noise unless samples are large and counts averaged.
    "digits": {
        "model": "logistic", "learning_rate": 2.0, "epochs": 60, "noise_multiplier": 2.0, "delta": 1e-4,
        "smoothing": 0.9, "by_method": {"global-adapt": {"learning_rate": 8.0, "initial_bound": 10.0}},
    },
    "mnist": _XU_MNIST,
    "mnist-unit": _XU_MNIST,
    "mnist-esipova": _esipova({"model": "tanh-cnn", **_MNIST}, **_MNIST_GLOBAL),
    "adult": _XU_CENSUS,
    "dutch": _XU_CENSUS,
    "adult-esipova": _esipova(
        {"model": "mlp", "learning_rate": 0.01, **_ESIPOVA_TABLE},
        adapt={"learning_rate": 0.2}, fixed={"learning_rate": 0.2},
    ),
    "dutch-esipova": _esipova(
        {"model": "logistic", "learning_rate": 0.5, **_ESIPOVA_TABLE},
        adapt={"learning_rate": 0.5}, fixed={"learning_rate": 0.5},
    ),
}  # fmt: skip
"""Name of a dataset -> settings of its plan. Any other data starts from the defaults of `equidp.Plan`."""


def published_settings(data: str | DataSource) -> Settings:
    """Return the published settings of a named dataset, or of a source that has them, or {} without any.

    Raises:
        SettingError: the text is not the name of a dataset.
    """
    if isinstance(data, str):
        if data not in PUBLISHED:
            from equidp.data.sources import check_data_name

            check_data_name(data)
        data = OwnSource(data) if is_import_path(data) else data
    name = data if isinstance(data, str) else data.name
    own: Settings | None = getattr(data, "published", {})
    return {} if own is None else PUBLISHED.get(name) or own
