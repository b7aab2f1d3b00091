"""A linear model on a table as a scikit-learn pipeline from raw columns to predictions, for skops."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from equidp._extras import require_extra
from equidp.engines.model import call_for_tensor
from equidp.errors import ModelError, SettingError
from equidp.runs.exports.format import ExportedRun
from equidp.tables.cells import MISSING
from equidp.tables.encode import Categories, HashedCategories, Intervals, Numbers, TableEncoder

with require_extra("tables"):
    import pandas as pd
    from sklearn.compose import ColumnTransformer
    from sklearn.decomposition import TruncatedSVD
    from sklearn.impute import MissingIndicator, SimpleImputer
    from sklearn.linear_model import LinearRegression, LogisticRegression
    from sklearn.pipeline import FeatureUnion, Pipeline
    from sklearn.preprocessing import (
        KBinsDiscretizer,
        MinMaxScaler,
        OneHotEncoder,
        PolynomialFeatures,
        StandardScaler,
    )

_TOLERANCE = 1e-6
"""Difference relative to the largest output up to which a model counts as linear."""
_MISSING_NUMBER = 1e300
"""Number in place of a missing one where a column is cut into intervals, far beyond those of tables."""


def write_skops(export: ExportedRun, path: Path) -> None:
    """Write the pipeline; `skops.io.load(path, trusted=["numpy.dtype"])` reads it.

    Raises:
        SettingError: the run has no encoder that an export may hold, or one that scikit-learn does not have.
        ModelError: the model is not linear in its inputs.
    """
    with require_extra("export"):
        import skops.io

    skops.io.dump(_pipeline(export), path)


def _pipeline(export: ExportedRun) -> Pipeline:
    if export.lacks_encoder:
        raise SettingError(
            "a pipeline holds the encoder, and this run's has categories, means or deviations of training "
            "rows, which epsilon does not cover; give --include-sensitive (include_sensitive=True) and the "
            "run's whole folder if they may be public, train on numbers alone with --preprocessing private, "
            "or export as onnx.",
            field="include_sensitive",
        )
    encoder = export.encoder
    if encoder is None:
        raise SettingError(
            f"a pipeline is for a model of a table, and {str(export.kept.folder)!r} was trained on "
            f"{export.kept.config.data.name}; export it as onnx or torch-export.",
            field="to",
        )
    hashed = [column.name for column in encoder.columns if isinstance(column, HashedCategories)]
    if hashed:
        raise SettingError(
            f"private preprocessing reads the texts of {', '.join(map(repr, hashed))} by a hash that "
            "scikit-learn does not have; export as onnx, whose inputs are encoded, or drop these columns.",
            field="to",
        )
    weights, intercepts = _linear_map(export.kept.run.model, export.inputs[0])
    weights = weights * encoder.scales
    if encoder.constant:
        weights, intercepts = weights[:, :-1], intercepts + weights[:, -1]
    return Pipeline([("encoder", _encoder(encoder)), ("model", _model(export, weights, intercepts))])


def _linear_map(model: nn.Module, example: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Return weights [outputs, inputs] and intercepts [outputs] of a linear model, in double precision.

    Raises:
        ModelError: the model is not linear.
    """
    exact = copy.deepcopy(model).double().eval()
    size = example.numel()
    generator = torch.Generator().manual_seed(0)
    probes = 10 * torch.randn((64, size), generator=generator, dtype=torch.float64)
    points = torch.cat([torch.zeros(1, size), torch.eye(size), probes]).double().reshape(-1, *example.shape)
    with torch.no_grad():
        outputs = call_for_tensor(exact, points)
    intercepts, moved, probed = outputs[0], outputs[1 : 1 + size], outputs[1 + size :]
    weights = (moved - intercepts).T
    difference = (probes @ weights.T + intercepts - probed).abs().max()
    if not difference <= _TOLERANCE * outputs.abs().max().clamp(min=1.0):
        raise ModelError(
            "the model is not linear in its inputs; expected one such as logistic. Export it as onnx or "
            "torch-export.",
            field="model",
        )
    return weights.numpy(), intercepts.numpy()


def _model(export: ExportedRun, weights: np.ndarray, intercepts: np.ndarray) -> Any:
    """Return a fitted linear model with the given map: of two classes, scikit-learn keeps the difference."""
    classes = export.kept.facts["class_names"]
    if not classes:
        regression = LinearRegression()
        regression.coef_, regression.intercept_ = weights[0], float(intercepts[0])
        regression.n_features_in_ = weights.shape[1]
        return regression
    if len(classes) == 2:
        weights, intercepts = weights[1:] - weights[:1], intercepts[1:] - intercepts[:1]
    classifier = LogisticRegression()
    classifier.coef_, classifier.intercept_ = weights, intercepts
    classifier.classes_ = np.array(classes)
    classifier.n_features_in_ = weights.shape[1]
    classifier.n_iter_ = np.zeros(1, dtype=np.int32)
    return classifier


def _encoder(encoder: TableEncoder) -> ColumnTransformer:
    """Return transformers that give what `TableEncoder.encode` gives before its scale."""
    parts = [(f"column {at}", _part(each), [each.name]) for at, each in enumerate(encoder.columns)]
    made = ColumnTransformer(parts, sparse_threshold=0.0, verbose_feature_names_out=False)
    made.fit(_made_up_rows(encoder))
    for at, each in enumerate(encoder.columns):
        part = made.named_transformers_[f"column {at}"]
        if isinstance(each, Numbers):
            _set_scales(part, each)
        if isinstance(each, Intervals):
            _set_edges(part, each)
    return made


def _made_up_rows(encoder: TableEncoder) -> pd.DataFrame:
    """Two rows of zeros and of first categories, from which transformers take types alone."""
    return pd.DataFrame(
        {
            each.name: [each.values[0]] * 2 if isinstance(each, Categories) else [0.0, 1.0]
            for each in encoder.columns
        }
    )


def _part(column: Categories | HashedCategories | Numbers | Intervals) -> Any:
    """Return an unfitted transformer of a column."""
    if isinstance(column, Categories):
        return _text_part(column)
    if isinstance(column, Intervals):
        return _interval_part(column)
    assert isinstance(column, Numbers), "hashed texts are refused before"
    return _number_part(column)


def _text_part(column: Categories) -> Pipeline:
    one_hot = OneHotEncoder(categories=[list(column.values)], handle_unknown="ignore", sparse_output=False)
    if not column.marks_missing:
        return Pipeline([("categories", one_hot)])
    missing = SimpleImputer(strategy="constant", fill_value=MISSING)
    return Pipeline([("missing", missing), ("categories", one_hot)])


def _number_part(column: Numbers) -> Pipeline | FeatureUnion:
    """Return clipping, scaling and filling of a column; beside a mark of missing numbers if it has one."""
    steps: list[tuple[str, Any]] = []
    if column.low is not None:
        steps.append(("clip", MinMaxScaler(feature_range=(column.low, column.high), clip=True)))
    steps.append(("scale", StandardScaler()))
    steps.append(("fill", SimpleImputer(strategy="constant", fill_value=column.fill)))
    scaled = Pipeline(steps)
    if not column.flagged:
        return scaled
    return FeatureUnion([("missing", MissingIndicator(features="all")), ("number", scaled)])


def _set_scales(part: Pipeline | FeatureUnion, column: Numbers) -> None:
    scaled = part.named_transformers["number"] if isinstance(part, FeatureUnion) else part
    if column.low is not None:
        clip = scaled.named_steps["clip"]
        clip.scale_, clip.min_ = np.ones(1), np.zeros(1)
        clip.data_min_, clip.data_max_ = np.array([column.low]), np.array([column.high])
        clip.data_range_ = clip.data_max_ - clip.data_min_
    scale = scaled.named_steps["scale"]
    scale.mean_, scale.scale_ = np.array([column.shift]), np.array([column.scale])
    scale.var_ = scale.scale_**2


def _interval_part(column: Intervals) -> FeatureUnion:
    """Return one-hot intervals of each resolution, then the trend, a map of those of the finest one.

    A missing number is the last interval if it has an input.
    """
    blocks = [(f"block {at}", _one_hot_part(column, edges)) for at, edges in enumerate(column.edges)]
    if column.has_trend:
        steps = [*_one_hot_part(column, column.edges[-1]).steps, ("trend", TruncatedSVD(1))]
        blocks.append(("trend", Pipeline(steps)))
    return FeatureUnion(blocks)


def _one_hot_part(column: Intervals, edges: tuple[float, ...]) -> Any:
    count = len(edges) + 1 + column.flagged
    if count == 1:  # of one value alone: an input that is always 1
        return PolynomialFeatures(degree=0)
    bins = KBinsDiscretizer(n_bins=count, encode="onehot-dense", strategy="uniform")
    steps = [("missing", SimpleImputer(strategy="constant", fill_value=_MISSING_NUMBER))]
    return Pipeline([*(steps if column.flagged else []), ("bins", bins)])


def _set_edges(part: FeatureUnion, column: Intervals) -> None:
    of_missing = [_MISSING_NUMBER / 2] if column.flagged else []
    edges_of = {f"block {at}": edges for at, edges in enumerate(column.edges)} | {"trend": column.edges[-1]}
    for name, block in part.transformer_list:
        if isinstance(block, Pipeline):
            bins = block.named_steps["bins"]
            bins.bin_edges_ = np.empty(1, dtype=object)
            bins.bin_edges_[0] = np.array([-np.inf, *edges_of[name], *of_missing, np.inf])
    if column.has_trend:
        trend = column.trend if column.flagged else column.trend[:-1]
        part.named_transformers["trend"].named_steps["trend"].components_ = trend[None]
