"""Effects of columns: what each interval, or text, of a column adds to the output of an additive model.

They follow from the released weights alone, so they cost no privacy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from equidp._extras import require_extra
from equidp.evaluation.predictions import predict
from equidp.tables.encode import Categories, HashedCategories, Intervals, TableEncoder

with require_extra("tables"):
    import pandas as pd

Floats = npt.NDArray[np.float64]
Part = tuple[tuple[int, ...], tuple[float, ...]]
"""Places of the inputs of an interval or a text that are not zero, and their values before the scale."""

_BLOCK = 1024
"""Rows of inputs that a model is called on at a time."""
_TRIED = 16
"""Rows on which a model is tried: effects have to add up to its outputs."""


@final
@dataclass(frozen=True, eq=False)
class Effect:
    """Effect of a column on the outputs of a model, for each interval of a number, or for each text.

    Attributes:
        column: name of the column.
        values: [parts, outputs]: with two classes, what a part adds to the log odds of the positive class;
            with more, to each class's logit, beside their mean; for numbers, to the prediction, in its units.
            They are centred: their mean over parts, without the one for missing values, is 0.
        edges: between the intervals, rising; None for texts.
        texts: of the parts of a column of texts, or "cell 48805" for a hashed one; () for numbers.
        missing: True if the last part is for missing numbers.
        public: True if edges or texts are public, or were released with noise that epsilon counts. Otherwise
            they come from training rows, and are not for a card.
    """

    column: str
    values: Floats
    edges: tuple[float, ...] | None
    texts: tuple[str, ...]
    missing: bool
    public: bool

    @property
    def known(self) -> Floats:
        """Values without that of missing numbers, [parts, outputs]."""
        return self.values[:-1] if self.missing else self.values

    @property
    def spread(self) -> float:
        """Root of the mean square over parts, each counted alike; the largest of all outputs."""
        return float(np.sqrt((self.known**2).mean(axis=0)).max())

    def plain(self) -> dict[str, Any]:
        """Return plain values."""
        return {**vars(self), "values": self.values.tolist(), "spread": self.spread}


def column_effects(
    encoder: TableEncoder, model: nn.Module, num_classes: int, positive: int | None = None
) -> tuple[Effect, ...]:
    """Return the effect of each column, the largest spread first; empty unless the model is additive.

    Args:
        encoder: that cuts the columns; another one has no effects.
        model: of its inputs.
        num_classes: of the model.
        positive: of two classes, whose log odds the effects are on; None: the second.

    Example:
        >>> import pandas as pd
        >>> from equidp.tables.intervals import ENCODINGS
        >>> table = pd.DataFrame({"age": [20.0, 30.0, 40.0, 50.0]})
        >>> encoder = TableEncoder.fit(table, np.arange(4), {"age": (0, 80)}, "refuse", ENCODINGS["cut"])
        >>> model = nn.Linear(encoder.width, 2)
        >>> effect = column_effects(encoder, model, 2)[0]
        >>> effect.column, effect.values.shape, effect.edges[:3]
        ('age', (16, 1), (5.0, 10.0, 15.0))
    """
    if encoder.examples is None or not encoder.columns:
        return ()
    parts, start = [], 0
    for column in encoder.columns:
        parts.append([(tuple(start + at for at in places), values) for places, values in _parts_of(column)])
        start += column.width
    rows = [part for of_column in parts for part in of_column]
    outputs = _outputs(model, rows, encoder)
    nothing, outputs = outputs[0], outputs[1:] - outputs[0]
    by_column = np.split(outputs, np.cumsum([len(each) for each in parts])[:-1])
    if not _adds_up(model, encoder, parts, by_column, nothing):
        return ()
    found = [
        _effect(column, _in_logits(added, num_classes, positive), encoder.private)
        for column, added in zip(encoder.columns, by_column, strict=True)
        if len(added)
    ]
    return tuple(sorted(found, key=lambda effect: -effect.spread))


def _parts_of(column: Any) -> list[Part]:
    """Inputs of each part of a column: of an interval, those of its lowest number."""
    if not isinstance(column, Intervals):
        return [((place,), (1.0,)) for place in range(column.width)]
    lowest = [-np.inf, *_edges_of(column), *([np.nan] if column.flagged else [])]  # of each part
    inputs = np.zeros((len(lowest), column.width), dtype=np.float32)
    column.write(pd.Series(lowest), inputs)
    places = [np.flatnonzero(each) for each in inputs]
    return [(tuple(at.tolist()), tuple(each[at].tolist())) for at, each in zip(places, inputs, strict=True)]


def _edges_of(column: Intervals) -> tuple[float, ...]:
    """Edges of all resolutions together."""
    return tuple(sorted({edge for each in column.edges for edge in each}))


def _outputs(model: nn.Module, rows: Sequence[Part], encoder: TableEncoder) -> Floats:
    """Outputs of the model for inputs that are all zero, then for rows with these inputs, scaled."""
    found = []
    whole: list[Part] = [((), ()), *rows]
    scales = torch.from_numpy(encoder.scales)
    for start in range(0, len(whole), _BLOCK):
        part = whole[start : start + _BLOCK]
        inputs = torch.zeros(len(part), encoder.width)
        for row, (places, values) in enumerate(part):
            inputs[row, list(places)] = torch.tensor(values)
        inputs *= scales
        found.append(predict(model, inputs).double().cpu().numpy())
    outputs = np.concatenate(found)
    return outputs.reshape(len(outputs), -1)


def _adds_up(
    model: nn.Module,
    encoder: TableEncoder,
    parts: Sequence[Sequence[Part]],
    added: Sequence[Floats],
    nothing: Floats,
) -> bool:
    """Return whether effects add up to the model's outputs on made-up rows."""
    rng = np.random.default_rng(0)
    rows, sums = [], []
    for _ in range(_TRIED):
        drawn = [int(rng.integers(len(each))) if each else -1 for each in parts]
        chosen = [(each[at], more[at]) for each, more, at in zip(parts, added, drawn, strict=True) if at >= 0]
        inputs = [each for each, _ in chosen]
        rows.append((sum((at for at, _ in inputs), ()), sum((values for _, values in inputs), ())))
        sums.append(nothing + sum(more for _, more in chosen))
    found = _outputs(model, rows, encoder)[1:]
    size = max(1e-6, *(float(np.abs(each).max(initial=0.0)) for each in added), float(np.abs(nothing).max()))
    return bool(np.isfinite(found).all() and np.allclose(found, np.array(sums), rtol=0, atol=1e-3 * size))


def _in_logits(added: Floats, num_classes: int, positive: int | None) -> Floats:
    """Return what parts add to log odds of two classes, or to logits beside their mean."""
    if num_classes == 2:
        yes = 1 if positive is None else positive
        return added[:, [yes]] - added[:, [1 - yes]]
    centred: Floats = added - added.mean(axis=1, keepdims=True)
    return centred


def _effect(column: Any, added: Floats, private: bool) -> Effect:
    cut, missing = isinstance(column, Intervals), isinstance(column, Intervals) and column.flagged
    known = added[:-1] if missing else added
    texts: tuple[str, ...] = ()
    if isinstance(column, Categories):
        texts = column.values
    elif isinstance(column, HashedCategories):
        texts = tuple(f"cell {cell}" for cell in column.cells)
    return Effect(
        column.name,
        added - known.mean(axis=0),
        _edges_of(column) if cut else None,
        texts,
        missing,
        private or getattr(column, "public", False),
    )
