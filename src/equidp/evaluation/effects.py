"""Effects of columns: what each interval, or text, of a column adds to the output of a linear model.

They follow only from the released weights, so they cost no privacy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from equidp._extras import require_extra
from equidp.engines.model import call_model, device_of, one_tensor, preserve_modes
from equidp.tables.encode import Categories, Intervals, TableEncoder

with require_extra("tables"):
    import pandas as pd

Floats = npt.NDArray[np.float64]
_TRIED = 16
"""Number of rows on which a model is tried: effects must add up to its outputs."""


@final
@dataclass(frozen=True, eq=False)
class Effect:
    """Effect of a column on the outputs of a model, for each interval of a number, or for each text.

    Attributes:
        column: name of the column.
        values: [parts, outputs]. With two classes, what a part adds to the log odds of the positive class.
            With more classes, what it adds to each class's logit, relative to their mean. For numbers, what
            it adds to the prediction, in its units. The mean over parts, without the part for missing values,
            is 0.
        edges: between the intervals, rising, or None for texts.
        texts: texts of the parts of a column of texts, or "cell 48805" for a hashed one, or () for numbers.
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
        """Values without the value of missing numbers, [parts, outputs]."""
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
    """Return the effect of each column, the largest spread first, or empty unless the model is linear.

    They are on the log odds of the positive one of two classes (None: the second). An encoder that does not
    cut columns has none.

    Example:
        >>> import pandas as pd
        >>> from equidp.tables.fit import fit_encoder
        >>> from equidp.tables.intervals import BINNINGS
        >>> table = pd.DataFrame({"age": [20.0, 30.0, 40.0, 50.0]})
        >>> encoder = fit_encoder(table, np.arange(4), {"age": (0, 80)}, "refuse", BINNINGS["cut"])
        >>> model = nn.Linear(encoder.width, 2)
        >>> effect = column_effects(encoder, model, 2)[0]
        >>> effect.column, effect.values.shape, effect.edges[:3]
        ('age', (16, 1), (5.0, 10.0, 15.0))
    """
    weights = None if encoder.examples is None or not encoder.columns else _weights(model, encoder.width)
    if weights is None:
        return ()
    weights *= encoder.scales[:, None]
    if num_classes == 2:
        yes = 1 if positive is None else positive
        weights = weights[:, [yes]] - weights[:, [1 - yes]]
    else:
        weights = weights - weights.mean(axis=1, keepdims=True)
    effects, start = [], 0
    for column in encoder.columns:
        if column.width:
            rows = weights[start : start + column.width]
            effects.append(_effect(column, rows, encoder.private))
        start += column.width
    return tuple(sorted(effects, key=lambda effect: -effect.spread))


def _weights(model: nn.Module, width: int) -> Floats | None:
    """Return the weights of a linear model, [inputs, outputs]. None: another one, or it diverged."""
    device = device_of(model)

    def outputs(inputs: Tensor) -> Tensor:
        return one_tensor(call_model(model, inputs.to(device)))

    with preserve_modes(model):
        model.eval()
        weights = torch.autograd.functional.jacobian(lambda row: outputs(row[None])[0], torch.zeros(width)).T
        tried = torch.randn(_TRIED, width, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            found, nothing = outputs(tried).cpu(), outputs(torch.zeros(1, width)).cpu()
    size = max(1e-6, float(found.abs().max()))
    linear = torch.allclose(found, nothing + tried @ weights.cpu(), rtol=0, atol=1e-3 * size)
    return weights.cpu().double().numpy() if linear and bool(torch.isfinite(weights).all()) else None


def _effect(column: Any, weights: Floats, private: bool) -> Effect:
    """Effect of a column whose inputs have these weights, [inputs, outputs]."""
    edges: tuple[float, ...] | None = None
    texts: tuple[str, ...] = ()
    missing = False
    if isinstance(column, Intervals):
        edges, missing = tuple(sorted({edge for each in column.edges for edge in each})), column.flagged
        lowest = [-np.inf, *edges, *([np.nan] if missing else [])]  # of each part
        weights = column.encode(pd.Series(lowest)) @ weights
    elif isinstance(column, Categories):
        texts = tuple(f"cell {each}" for each in column.values) if column.hashed else column.values
    known = weights[:-1] if missing else weights
    public = private or getattr(column, "public", False)
    return Effect(column.name, weights - known.mean(axis=0), edges, texts, missing, public)
