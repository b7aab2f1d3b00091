"""Fixed features of examples, in place of a source's inputs: nothing is learned, so they cost no privacy."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor

from equidp._parts import is_import_path, own_part
from equidp._validate import unknown_name
from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
from equidp.data.extractors import (
    EFFICIENTNET_LITE0,
    RANDOM_PROCESS,
    SCATTERING,
    Extractor,
    Transform,
    check_side,
    extractor_of,
    output_of,
)
from equidp.data.own import OwnSource
from equidp.data.table import EncodedSource
from equidp.data.views import Views
from equidp.errors import DataError, EquidpError, SettingError, error_text
from equidp.kernel.generators import from_the_system
from equidp.store import key_of
from equidp.tables.cache import Array, mapped_tensor, table_store, write_array

FEATURES: dict[str, Extractor] = {
    "scattering": SCATTERING,
    "random-process": RANDOM_PROCESS,
    "efficientnet-lite0": EFFICIENTNET_LITE0,
}
"""Name -> extractor.

>>> FEATURES["scattering"].transform(torch.rand(2, 1, 28, 28)).shape
torch.Size([2, 81, 7, 7])
"""

_EXPECTED = (
    "a function of inputs [n, ...] that gives features [n, ...], a torch module, an Extractor, or a function "
    "without required arguments that returns one"
)
_PROBES = 4
_BLOCK = 1000  # rows at a time


@runtime_checkable
class SeededSource(DataSource, Protocol):
    """A source whose seed only chooses among its examples: features are computed once for all seeds."""

    def everything(self) -> tuple[GroupedDataset, ...]:
        """Return all examples, in the source's own parts."""

    def choose_examples(self, seed: int, *parts: GroupedDataset) -> DataSplit:
        """Return the seed's split of the parts of `everything`, whose inputs may be features instead."""


@dataclass(frozen=True)
class WithFeatures:
    """A source whose inputs are features of another source's inputs.

    Features are computed once, and kept on disk for later runs and for other processes. A user-defined
    transform must be fixed before the private data is seen: a network trained on other, public data, say.

    Args:
        source: of one tensor of inputs, other than a table.
        features: a name from `FEATURES`, or module:name of a function, of a torch module, which is called in
            evaluation mode, of an `Extractor`, or of a function without required arguments that returns one.
            With @ and a number, images are resized to that many pixels a side: "efficientnet-lite0@112".
            Features of one example may not depend on other examples, which is checked on random numbers.

    Raises:
        SettingError: an unknown name or size, a path that leads nowhere, a package that is not installed, or
            a table.

    >>> from equidp.data import open_source
    >>> source = WithFeatures(open_source("digits"), "scattering")
    >>> source.name, source.split(seed=0).train.inputs.shape
    ('digits, scattering', torch.Size([1229, 81, 2, 2]))
    """

    source: DataSource
    features: str

    def __post_init__(self) -> None:
        check_features(self.features)
        if isinstance(self.source, EncodedSource):
            raise SettingError(
                f"features {self.features!r} are for images and for sources of your own; "
                f"{self.source.name!r} is a table. Leave them out."
            )

    @property
    def name(self) -> str:
        """Name of the source and of the features."""
        return f"{self.source.name}, {self.features}"

    @property
    def highlighted_groups(self) -> tuple[str, str] | None:
        """Highlighted groups of the source."""
        return self.source.highlighted_groups

    @property
    def extractor(self) -> Extractor:
        """Extractor that the features name."""
        return extractor_named(_name_and_side(self.features)[0])

    @property
    def transform(self) -> Transform:
        """Function that maps prepared inputs to features."""
        return self.extractor.transform

    @property
    def pixel_range(self) -> tuple[float, float] | None:
        """Lowest and highest value of the source's pixels; None: not known."""
        return pixel_range_of(self.source)

    def split(self, seed: int) -> DataSplit:
        """Return the source's split of this seed, with features as inputs.

        Raises:
            DataError: inputs that the transform does not accept.
            SettingError: a user-defined transform that fails, or that is not per example.
        """
        source = self.source.source if isinstance(self.source, OwnSource) else self.source
        if isinstance(source, SeededSource):
            found = source.choose_examples(seed, *map(self._with_features, source.everything()))
        else:
            plain = self.source.split(seed)
            found = DataSplit(self._with_features(plain.train), self._with_features(plain.test), plain.notes)
        return replace(found, notes=(*found.notes, self._note(found.train)))

    def _with_features(self, data: GroupedDataset) -> GroupedDataset:
        return replace(data, inputs=_cached_features(self, data.one_tensor))

    def _note(self, found: GroupedDataset) -> str:
        """Sentences on the extractor: licence, training data, and what its training data must not hold."""
        known = self.extractor
        licence = "of a licence that it does not state" if known.licence is None else known.licence
        facts = f"{self.features}, {licence}, {' x '.join(map(str, found.input_shape))} numbers"
        note = f"Inputs are features of each example alone ({facts}), which cost no privacy"
        if known.trained_on == "":
            return f"{note}: nothing was learned for them."
        if known.synthetic:
            return f"{note}: they were learned on {known.trained_on}, among which no example can be."
        origin = "data that it does not state" if known.trained_on is None else known.trained_on
        return (
            f"{note}, provided that the transform was not trained on this data. It was trained on {origin}; "
            "epsilon does not cover examples that are also among these."
        )


def add_features(source: DataSource, features: str | None) -> DataSource:
    """Return a source with features as inputs; the source itself without features, or if it has some."""
    return source if features is None or isinstance(source, WithFeatures) else WithFeatures(source, features)


def extractor_named(name: str) -> Extractor:
    """Return the extractor of a name from `FEATURES`, or of an import path such as "my_module:make_features".

    Raises:
        SettingError: an unknown name, with the closest known one, or a path to nothing.
    """
    if name in FEATURES:
        return FEATURES[name]
    if not is_import_path(name):
        raise unknown_name("features", name, FEATURES)
    part = own_part(name, "features", _is_extractor, _EXPECTED)
    try:
        return extractor_of(part)
    except EquidpError:
        raise
    except Exception as error:
        raise SettingError(
            f"features {name!r} cannot be made: {error_text(error)}.", field="features"
        ) from error


def check_features(features: str) -> None:
    """Raise a SettingError unless features name an extractor that can be made, and perhaps a size."""
    extractor_named(_name_and_side(features)[0]).transform  # noqa: B018


def with_side(features: str | None, side: int | None) -> str | None:
    """Return features with the size of images.

    Raises:
        SettingError: a size without features, or a second size.

    >>> with_side("efficientnet-lite0", 112), with_side("scattering", None)
    ('efficientnet-lite0@112', 'scattering')
    """
    if side is None:
        return features
    if features is None:
        raise SettingError(
            f"a size of features, {side}, without features; name the features, or leave it out.",
            field="feature_size",
        )
    if _name_and_side(features)[1] is not None:
        raise SettingError(
            f"features {features!r} have a size, and {side} is another; leave one of the two out.",
            field="feature_size",
        )
    check_side(side)
    return f"{features}@{side}"


def pixel_range_of(source: Any) -> tuple[float, float] | None:
    """Lowest and highest value of the pixels of a source that declares them; None: not known."""
    own = source.source if isinstance(source, OwnSource) else source
    found: tuple[float, float] | None = getattr(own, "pixel_range", None)
    return found


def _is_extractor(part: Any) -> bool:
    return isinstance(part, Extractor) or (callable(part) and not isinstance(part, type))


def _name_and_side(features: str) -> tuple[str, int | None]:
    """Name of features, and the side that follows @."""
    name, at, side = features.rpartition("@")
    if not at:
        return features, None
    if not side.isdecimal():
        raise SettingError(
            f"features {features!r}; expected a whole number of pixels after @, such as "
            "efficientnet-lite0@112.",
            field="features",
        )
    check_side(int(side))
    return name, int(side)


def check_not_varied(features: str | None, views: Views) -> None:
    """Raise a SettingError if training would augment features as if they were pixels."""
    if features is not None and views.random:
        raise SettingError(
            f"augmentation {views.augmentation!r} varies pixels, and training reads features {features!r} "
            "instead; leave one of the two out."
        )


def _cached_features(source: WithFeatures, inputs: Tensor) -> Tensor:
    """Features of all rows as a memory-mapped tensor, computed now or earlier."""
    compute = _Computation.of(source, tuple(inputs.shape[1:]))
    probe = compute.probe(inputs)
    shape = (len(inputs), *probe.shape[1:])
    content, facts = inputs.cpu().contiguous().numpy(), [compute.side, compute.pixel_range]
    for version in itertools.count():  # user-defined code and weights change under the same name
        key = key_of("features", compute.name, *facts, content, list(shape), version)
        entry = table_store().get_or_make(
            key,
            lambda folder: compute.write(folder, inputs, probe),
            what=f"the features of {source.name!r}",
            needed=4 * int(np.prod(shape)),
        )
        if np.allclose(np.reshape(entry.facts["probe"], probe.shape), probe, rtol=1e-3, atol=1e-4):
            break
    return mapped_tensor(entry.path("features"), "float32", shape)


@dataclass(frozen=True)
class _Computation:
    """Computation of features of inputs of one shape.

    Attributes:
        name: of the features, for messages.
        extractor: that computes them.
        side: that images are resized to; None: they keep their size.
        pixel_range: of the source.
        block: rows at a time.
    """

    name: str
    extractor: Extractor
    side: int | None
    pixel_range: tuple[float, float] | None
    block: int

    @classmethod
    def of(cls, source: WithFeatures, shape: tuple[int, ...]) -> _Computation:
        """Return the computation for inputs of a shape; raise a DataError where the extractor reads none."""
        extractor, (_, given) = source.extractor, _name_and_side(source.features)
        extractor.check(source.features, shape, given, source.pixel_range)
        side = extractor.side(shape, given)
        block = _BLOCK if side is None else extractor.block(side, shape)
        return cls(source.features, extractor, side, source.pixel_range, block)

    def write(self, place: Path, inputs: Tensor, probe: Array) -> dict[str, Any]:
        """Write the features of all rows into a folder, with progress, and return the probe."""
        console = Console(stderr=True)
        with (
            (place / "features").open("wb") as file,
            Progress(console=console, disable=not sys.stderr.isatty(), transient=True) as progress,
        ):
            task = progress.add_task(f"{self.name} features, once", total=len(inputs))
            for rows in inputs.split(self.block):
                with from_the_system():  # noise too small for the probe must not follow from a row's place
                    made = self._make(rows)
                if not np.isfinite(made).all():
                    raise DataError(
                        f"features {self.name!r} are NaN or infinite for some examples; correct them."
                    )
                write_array(file, made)
                progress.update(task, advance=len(rows))
        return {"probe": probe.reshape(-1).tolist()}

    def probe(self, inputs: Tensor) -> Array:
        """Return features of a few made-up rows; refuse features that depend on other rows, or on chance."""
        generator, shape = torch.Generator().manual_seed(0), (_PROBES, *inputs.shape[1:])
        if inputs.is_floating_point():
            rows = torch.rand(shape, generator=generator).to(inputs.dtype)
        else:
            rows = torch.zeros(shape, dtype=inputs.dtype)
        together = self._make(rows)
        alone = np.concatenate([self._make(row) for row in rows.split(1)])
        if not np.allclose(together, alone, rtol=1e-3, atol=1e-4):
            raise SettingError(
                f"features {self.name!r} of an example depend on other examples or on chance; expected what "
                "follows from each example alone, such as a module in evaluation mode, without batch "
                "statistics."
            )
        return together

    def _make(self, rows: Tensor) -> Array:
        transform, prepared = self.extractor.transform, self.extractor.prepare
        try:
            with torch.no_grad():
                made = output_of(transform(prepared(rows, self.side, self.pixel_range)))
        except EquidpError:
            raise
        except Exception as error:
            raise SettingError(
                f"features {self.name!r} fail on inputs of shape {list(rows.shape)}: {error_text(error)}."
            ) from error
        if not isinstance(made, Tensor) or len(made) != len(rows) or not made.is_floating_point():
            given = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
            raise SettingError(
                f"features {self.name!r} give {given} for {len(rows)} inputs; expected a tensor of one row "
                "each, floating point."
            )
        return made.float().contiguous().numpy()
