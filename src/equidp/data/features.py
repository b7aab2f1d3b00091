"""Fixed features of examples instead of a source's inputs: nothing is learned, so they cost no privacy."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor, nn

from equidp._validate import unknown_name
from equidp.data.cache import Array, image_store, mapped_tensor, write_array
from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
from equidp.data.efficientnet import efficientnet_lite0, enlarged_side, prepare_images
from equidp.data.own import OwnSource
from equidp.data.scattering import SMALLEST, normalised_scattering
from equidp.data.table import ColumnSource
from equidp.data.views import Views
from equidp.errors import DataError, SettingError
from equidp.kernel.generators import from_the_system
from equidp.store import key_of

Transform = Callable[[Tensor], Tensor]
"""Inputs [n, ...] -> features [n, ...], floating point. Each row is a function of only that row of inputs."""

NETWORK = "efficientnet-lite0"
FEATURES: dict[str, Callable[[], Transform]] = {
    "scattering": lambda: normalised_scattering,
    NETWORK: efficientnet_lite0,
}
"""Name -> function that makes the transform."""
_TRAINED_ON = "ImageNet-1k (ILSVRC 2012: 1.28 million photographs from the web)"


@dataclass(frozen=True)
class WithFeatures:
    """A source whose inputs are features of another source's inputs, computed once and kept on disk.

    Args:
        source: source of one tensor of inputs, other than a table.
        features: name from `FEATURES`. A network's name may have a number of pixels per side, such as
            "efficientnet-lite0@112". Or your own torch module, which is called in evaluation mode, or
            function of inputs, fixed before the private data is seen.

    Raises:
        SettingError: an unknown name or size, a package that is not installed, or a table.

    >>> from equidp.data import open_source
    >>> source = WithFeatures(open_source("digits"), "scattering")
    >>> source.name, source.split(seed=0).train.inputs.shape
    ('digits, scattering', torch.Size([1229, 81, 2, 2]))
    """

    source: DataSource
    features: str | Transform

    def __post_init__(self) -> None:
        if isinstance(self.features, str):
            check_features(self.features)
        if isinstance(self.source, ColumnSource):
            raise SettingError(
                f"features {self.label!r} are for images and for sources of your own; "
                f"{self.source.name!r} is a table. Leave them out.",
            )

    @property
    def label(self) -> str:
        """Name of the features."""
        if isinstance(self.features, str):
            return self.features
        return str(getattr(self.features, "__name__", type(self.features).__name__))

    @property
    def name(self) -> str:
        """Name of the source and of the features."""
        return f"{self.source.name}, {self.label}"

    @property
    def highlighted_groups(self) -> tuple[str, str] | None:
        """Highlighted groups of the source."""
        return self.source.highlighted_groups

    @property
    def normalised(self) -> bool:
        """True if features are known to have norm 1."""
        return isinstance(self.features, str) and self.features.partition("@")[0] == NETWORK

    @property
    def transform(self) -> Transform:
        """Function or torch module, the latter in evaluation mode."""
        if isinstance(self.features, str):
            return _make_transform(self.features.partition("@")[0])
        return self.features.eval() if isinstance(self.features, nn.Module) else self.features

    def split(self, seed: int) -> DataSplit:
        """Return the source's split of this seed, with features as inputs.

        Raises:
            DataError: inputs that the transform does not accept.
            SettingError: your own transform does not work per example.
        """
        source: Any = self.source.source if isinstance(self.source, OwnSource) else self.source
        if hasattr(source, "choose_examples"):  # a seed only chooses examples: computed once for all seeds
            found: DataSplit = source.choose_examples(seed, *map(self._with_features, source.everything()))
        else:
            plain = self.source.split(seed)
            found = DataSplit(self._with_features(plain.train), self._with_features(plain.test), plain.notes)
        return replace(found, notes=(*found.notes, self._note(found.train)))

    def _with_features(self, data: GroupedDataset) -> GroupedDataset:
        return replace(data, inputs=_cached_features(self, data.one_tensor))

    def _note(self, found: GroupedDataset) -> str:
        named = isinstance(self.features, str)
        licence = "Apache-2.0" if named else "of a licence that it does not state"
        facts = f"{self.label}, {licence}, {' x '.join(map(str, found.input_shape))} numbers"
        note = f"Inputs are features computed from each example separately ({facts}), which costs no privacy"
        if named and not self.normalised:
            return f"{note}: nothing was learned for them."
        origin = _TRAINED_ON if named else "data that it does not state"
        return (
            f"{note}, provided that the transform was not trained on this data. It was trained on {origin}; "
            "epsilon does not cover examples that are also among these."
        )


def check_features(features: str) -> None:
    """Raise a SettingError unless features name a transform that can be made, and perhaps a size."""
    name = features.partition("@")[0]
    if name not in FEATURES:
        raise unknown_name("features", name, FEATURES)
    _side(features)
    _make_transform(name)


def add_features(source: DataSource, features: str | None) -> DataSource:
    """Return a source with features as inputs; the source itself without features, or if it has some."""
    return source if features is None or isinstance(source, WithFeatures) else WithFeatures(source, features)


def check_not_varied(features: str | None, views: Views) -> None:
    """Raise a SettingError if training would augment features as if they were pixels."""
    if features is not None and views.random:
        raise SettingError(
            f"augmentation {views.augmentation!r} varies pixels, and training reads features {features!r} "
            "instead; leave one of the two out."
        )


@lru_cache
def _make_transform(name: str) -> Transform:
    return FEATURES[name]()


def _side(features: str) -> int | None:
    """Pixels a side that follow @."""
    name, at, side = features.partition("@")
    if at and not (name == NETWORK and side.isdecimal() and SMALLEST <= int(side) <= 1024):
        raise SettingError(
            f"features {features!r}; expected {SMALLEST} to 1,024 pixels after @, such as {NETWORK}@112.",
            field="features",
        )
    return int(side) if at else None


def _cached_features(source: WithFeatures, inputs: Tensor) -> Tensor:
    """Features of all rows as a memory-mapped tensor, computed now or earlier."""
    inner = source.source.source if isinstance(source.source, OwnSource) else source.source
    pixel_range, side, block = getattr(inner, "pixel_range", None), 0, 1000
    if source.normalised:
        side = _side(source.label) or enlarged_side(max(inputs.shape[1:]))
        block = max(1, 2**20 // (3 * side * side))  # images that nearly fit into a core's cache

    def compute(rows: Tensor) -> Array:
        with torch.no_grad():
            made = source.transform(prepare_images(rows, side, pixel_range) if side else rows)
        if not isinstance(made, Tensor) or len(made) != len(rows) or not made.is_floating_point():
            given = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            raise SettingError(
                f"features {source.label!r} give {given} for {len(rows)} inputs; expected a tensor of one "
                "row each, floating point."
            )
        return made.float().contiguous().numpy()

    def write(folder: Path) -> dict[str, Any]:
        console = Console(stderr=True)
        with (folder / "features").open("wb") as file:
            for rows in track(
                inputs.split(block), f"{source.label} features, once", console=console, transient=True,
                disable=not sys.stderr.isatty(),
            ):  # fmt: skip
                with from_the_system():  # noise too small for the probe must not follow from a row's place
                    made = compute(rows)
                if not np.isfinite(made).all():
                    raise DataError(f"features {source.label!r} are NaN or infinite for some examples.")
                write_array(file, made)
        return {"probe": probe.reshape(-1).tolist()}

    probe = _probe(source.label, compute, inputs)
    shape = (len(inputs), *probe.shape[1:])
    facts = source.label, pixel_range, inputs.cpu().contiguous().numpy(), list(shape)
    for version in itertools.count():  # your own network may change under its name
        entry = image_store().get_or_make(
            key_of("features", *facts, version),
            write,
            what=f"the features of {source.name!r}",
            needed=4 * int(np.prod(shape)),
        )
        if np.allclose(np.reshape(entry.facts["probe"], probe.shape), probe, rtol=1e-3, atol=1e-4):
            break
    return mapped_tensor(entry.path("features"), "float32", shape)


def _probe(label: str, compute: Callable[[Tensor], Array], inputs: Tensor) -> Array:
    """Return features of a few made-up rows; reject features that depend on other rows, or on chance."""
    rows = torch.zeros((4, *inputs.shape[1:]), dtype=inputs.dtype)
    if inputs.is_floating_point():
        rows = torch.rand(rows.shape, generator=torch.Generator().manual_seed(0)).to(inputs.dtype)
    together = compute(rows)
    if not np.allclose(together, np.concatenate([compute(row) for row in rows.split(1)]), 1e-3, 1e-4):
        raise SettingError(
            f"features {label!r} of an example depend on other examples or on chance; expected a function "
            "of one example, without batch statistics."
        )
    return together
