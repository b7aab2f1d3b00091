"""Fixed features of examples, in place of a source's inputs: nothing is learned, so they cost no privacy."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from equidp._parts import is_import_path, own_part
from equidp._validate import unknown_name
from equidp.data.dataset import DataSource, DataSplit, GroupedDataset
from equidp.data.own import OwnSource
from equidp.data.scattering import normalised_scattering
from equidp.data.table import EncodedSource
from equidp.data.views import Views
from equidp.errors import DataError, EquidpError, SettingError
from equidp.kernel.generators import from_the_system
from equidp.store import key_of
from equidp.tables.cache import Array, mapped_tensor, table_store, write_array

Transform = Callable[[Tensor], Tensor]
"""Inputs [n, ...] -> features [n, ...], floating point; each row follows from that row of inputs alone."""

FEATURES: dict[str, Transform] = {"scattering": normalised_scattering}
"""Name -> transform.

>>> FEATURES["scattering"](torch.rand(2, 1, 28, 28)).shape
torch.Size([2, 81, 7, 7])
"""

_EXPECTED = "a function of inputs [n, ...] that gives features [n, ...], or a torch module"
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
        features: a name from `FEATURES`, or module:name of a function or a torch module, which is called in
            evaluation mode. Features of one example may not depend on other examples, which is checked on
            random numbers.

    Raises:
        SettingError: an unknown name, a path that leads nowhere, or a table.

    >>> from equidp.data import open_source
    >>> source = WithFeatures(open_source("digits"), "scattering")
    >>> source.name, source.split(seed=0).train.inputs.shape
    ('digits, scattering', torch.Size([1229, 81, 2, 2]))
    """

    source: DataSource
    features: str

    def __post_init__(self) -> None:
        self.transform  # noqa: B018
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
    def transform(self) -> Transform:
        """Function that maps inputs to features."""
        return features_named(self.features)

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
        note = f"Inputs are features of each example alone ({self.features}), which cost no privacy"
        note += (
            "."
            if self.features in FEATURES
            else ", provided that the transform was not trained on this data."
        )
        return replace(found, notes=(*found.notes, note))

    def _with_features(self, data: GroupedDataset) -> GroupedDataset:
        return replace(
            data, inputs=_cached_features(self.name, self.features, self.transform, data.one_tensor)
        )


def add_features(source: DataSource, features: str | None) -> DataSource:
    """Return a source with features as inputs; the source itself without features, or if it has some."""
    return source if features is None or isinstance(source, WithFeatures) else WithFeatures(source, features)


def features_named(name: str) -> Transform:
    """Return the transform of a name from `FEATURES`, or of an import path such as "my_module:make_features".

    Raises:
        SettingError: an unknown name, with the closest known one, or a path to nothing.
    """
    if name in FEATURES:
        return FEATURES[name]
    if not is_import_path(name):
        raise unknown_name("features", name, FEATURES)
    part = own_part(name, "features", lambda each: callable(each) and not isinstance(each, type), _EXPECTED)
    made: Transform = part.eval() if isinstance(part, nn.Module) else part
    return made


def check_not_varied(features: str | None, views: Views) -> None:
    """Raise a SettingError if training would augment features as if they were pixels."""
    if features is not None and views.random:
        raise SettingError(
            f"augmentation {views.augmentation!r} varies pixels, and training reads features {features!r} "
            "instead; leave one of the two out."
        )


def _cached_features(what: str, name: str, transform: Transform, inputs: Tensor) -> Tensor:
    """Features of all rows as a memory-mapped tensor, computed now or earlier."""
    probe = _probe_transform(name, transform, inputs)
    shape = (len(inputs), *probe.shape[1:])
    content = inputs.cpu().contiguous().numpy()
    for version in itertools.count():  # user-defined code and weights change under the same name
        key = key_of("features", name, content, list(shape), version)
        entry = table_store().get_or_make(
            key,
            lambda folder: _write_features(folder, name, transform, inputs, probe),
            what=f"the features of {what!r}",
            needed=4 * int(np.prod(shape)),
        )
        if np.allclose(np.reshape(entry.facts["probe"], probe.shape), probe, rtol=1e-3, atol=1e-4):
            break
    return mapped_tensor(entry.path("features"), "float32", shape)


def _write_features(
    place: Path, name: str, transform: Transform, inputs: Tensor, probe: Array
) -> dict[str, Any]:
    console = Console(stderr=True)
    with (
        (place / "features").open("wb") as file,
        Progress(console=console, disable=not sys.stderr.isatty(), transient=True) as progress,
    ):
        task = progress.add_task(f"{name} features, once", total=len(inputs))
        for rows in inputs.split(_BLOCK):
            with from_the_system():  # noise too small for the probe must not follow from a row's place
                made = _make_features(name, transform, rows)
            if not np.isfinite(made).all():
                raise DataError(f"features {name!r} are NaN or infinite for some examples; correct them.")
            write_array(file, made)
            progress.update(task, advance=len(rows))
    return {"probe": probe.reshape(-1).tolist()}


def _probe_transform(name: str, transform: Transform, inputs: Tensor) -> Array:
    """Return features of a few made-up rows; refuse features that depend on other rows, or on chance."""
    generator, shape = torch.Generator().manual_seed(0), (_PROBES, *inputs.shape[1:])
    if inputs.is_floating_point():
        rows = torch.rand(shape, generator=generator).to(inputs.dtype)
    else:
        rows = torch.zeros(shape, dtype=inputs.dtype)
    together = _make_features(name, transform, rows)
    alone = np.concatenate([_make_features(name, transform, row) for row in rows.split(1)])
    if not np.allclose(together, alone, rtol=1e-3, atol=1e-4):
        raise SettingError(
            f"features {name!r} of an example depend on other examples or on chance; expected what follows "
            "from each example alone, such as a module in evaluation mode, without batch statistics."
        )
    return together


def _make_features(name: str, transform: Transform, rows: Tensor) -> Array:
    try:
        with torch.no_grad():
            made = transform(rows)
    except EquidpError:
        raise
    except Exception as error:
        raise SettingError(
            f"features {name!r} fail on inputs of shape {list(rows.shape)}: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(made, Tensor) or len(made) != len(rows) or not made.is_floating_point():
        given = f"{made.dtype} {list(made.shape)}" if isinstance(made, Tensor) else type(made).__name__
        raise SettingError(
            f"features {name!r} give {given} for {len(rows)} inputs; expected {_EXPECTED.partition(',')[0]}, "
            "floating point."
        )
    return made.float().contiguous().numpy()
