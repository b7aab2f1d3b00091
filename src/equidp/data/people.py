"""Rows by person: all rows of one person are one example, so that privacy holds for people."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt
import torch

from equidp._extras import require_extra
from equidp._validate import check_whole
from equidp.data.dataset import GroupedDataset
from equidp.errors import DataError, DataWarning
from equidp.kernel.inputs import map_tensors
from equidp.tables.recipe import Recipe
from equidp.tables.split import draw_rows, rows_by_content

with require_extra("tables"):
    import pandas as pd

Codes = npt.NDArray[np.int64]


@final
@dataclass(frozen=True, eq=False)
class PeoplesRows:
    """Training rows of each person in a table.

    Attributes:
        places: [people, m], row indices; a person with fewer than m rows repeats their first one.
        present: [people, m], False at places that repeat the first row.
        left_out: [people], number of their rows that are not trained on. Private.
    """

    places: Codes
    present: npt.NDArray[np.bool_]
    left_out: Codes

    @classmethod
    def choose_rows(cls, people: Any, most_rows: int, seed: int) -> PeoplesRows:
        """Choose at most `most_rows` of each person's rows.

        The choice follows from the seed and from the number and order of that person's rows, and from nothing
        about others. Adding or removing one person changes nobody else's rows.

        Args:
            people: identifier of each row's person, [n]: an array, a column or a tensor, without missing
                values.
            most_rows: m, public, >= 1.
            seed: seed of the choice.

        Raises:
            SettingError: m < 1.
            DataError: as `person_codes`.

        >>> PeoplesRows.choose_rows(["ann", "bob", "ann"], most_rows=2, seed=0).places
        array([[0, 2],
               [1, 1]])
        """
        check_whole(1, ", the most rows of a person", most_rows=most_rows)
        codes = person_codes(people)
        counts = np.bincount(codes)
        positions = np.tile(np.arange(most_rows), (len(counts), 1))
        for count in np.unique(counts[counts > most_rows]):
            drawn = np.random.default_rng([seed, count]).permutation(count)[:most_rows]
            positions[counts == count] = np.sort(drawn)
        present = np.arange(most_rows) < counts[:, None]
        positions = np.where(present, positions, 0)
        starts = np.cumsum(counts) - counts
        places = np.argsort(codes, kind="stable")[starts[:, None] + positions]
        return cls(places, present, np.maximum(counts - most_rows, 0))

    def __len__(self) -> int:
        return len(self.places)

    @property
    def first(self) -> Codes:
        """First training row of each person, [people]."""
        first: Codes = self.places[:, 0]
        return first

    def gather_examples(self, rows: GroupedDataset) -> GroupedDataset:
        """Return people as examples, in the order of `places`, from a dataset whose examples are rows."""
        shape, at = self.places.shape, torch.from_numpy(self.places.reshape(-1))

        def gather(each: torch.Tensor) -> torch.Tensor:
            return each[at.to(each.device)].reshape(*shape, *each.shape[1:])

        inputs, targets = map_tensors(gather, (rows.inputs, rows.targets))
        weights = torch.from_numpy(self.present).to(targets.device, torch.float32)
        if rows.weights is not None:
            weights = weights * gather(rows.weights).to(weights)
        of_rows = gather(rows.groups)
        groups = of_rows[:, 0]
        return replace(
            rows,
            inputs=inputs,
            targets=targets,
            groups=groups,
            weights=weights,
            people=None,
            row_groups=None if bool((of_rows == groups[:, None]).all()) else of_rows,
            repeats_rows=False,
        )

    @property
    def note(self) -> str:
        """Return a sentence for cards and reports."""
        return (
            f"A training example is a person with all their rows, of which at most {self.places.shape[1]:,} "
            "were trained on. Nobody who was trained on was tested on."
        )

    def left_out_message(self) -> str:
        """Return a sentence on the rows left out, only for the owner of the data, or "" if there are none."""
        crowded, left_out = int((self.left_out > 0).sum()), int(self.left_out.sum())
        if not crowded:
            return ""
        m = self.places.shape[1]
        return (
            f"sensitive, not for release: {crowded:,} of {len(self.places):,} people have more than {m:,} "
            f"{'row' if m == 1 else 'rows'}, so {left_out:,} rows are not trained on, drawn for each person "
            "apart. More rows per person keep them, at no cost in epsilon."
        )


def by_person(rows: GroupedDataset, people: Any, most_rows: int, seed: int = 0) -> GroupedDataset:
    """Return the data with people as examples, so that epsilon covers each person with all rows.

    A person's rows share one clipped gradient, the gradient of the sum of their losses. If a person has more
    than `most_rows` rows, `most_rows` of them are drawn, by only that person's rows and the seed. A
    DataWarning tells the owner of the data how many people this affects, and how many rows are left out. A
    person is in the group of the first of these rows. If groups are sampled at several rates, a person is in
    the one with the largest rate among these rows. The batch size, the sampling rate and the default delta
    count people.

    Args:
        rows: data in which each example is a row.
        people: identifier of the person of each row, [n].
        most_rows: public maximum m of rows per person. Memory is used for m rows of each person.
        seed: seed of the draw.

    Raises:
        SettingError: m < 1.
        DataError: identifiers are missing, are not [n], or mix text and numbers, or examples have several
            rows already.

    >>> targets, groups = torch.tensor([0, 1, 1]), torch.tensor([0, 1, 0])
    >>> rows = GroupedDataset(torch.eye(3), targets, groups, ("a", "b"), class_names=("no", "yes"))
    >>> data = by_person(rows, ["ann", "bob", "ann"], most_rows=2)
    >>> len(data), data.targets, data.weights
    (2, tensor([[0, 1],
            [1, 1]]), tensor([[1., 1.],
            [1., 0.]]))
    """
    if not isinstance(rows, GroupedDataset) or rows.rows is not None:
        given = f"{rows.rows} rows an example" if isinstance(rows, GroupedDataset) else type(rows).__name__
        raise DataError(f"rows are {given}; expected an equidp.GroupedDataset of single rows.", field="rows")
    people = person_codes(people)
    if len(people) != len(rows):
        raise DataError(
            f"people has {len(people)} values for {len(rows)} rows; expected one for each row.",
            field="people",
        )
    chosen = PeoplesRows.choose_rows(people, most_rows, seed)
    if message := chosen.left_out_message():
        warnings.warn(message, DataWarning, stacklevel=2)
    return chosen.gather_examples(rows)


def person_codes(people: Any) -> Codes:
    """Return the person of each row by number, [n], from 0 in the order of their first rows.

    Args:
        people: identifier of each row's person, [n]: an array, a column or a tensor.

    Raises:
        DataError: a value is missing, the shape is not [n], or texts and other values are mixed: "1" and 1
            may be one person, and would count as two.

    >>> person_codes(["ann", "bob", "ann"])
    array([0, 1, 0])
    """
    column = people.detach().cpu() if isinstance(people, torch.Tensor) else people
    try:
        if isinstance(column, Mapping | str) or len(column) == 0:
            raise ValueError("not [n]")
        listed = pd.Series(column.numpy() if isinstance(column, torch.Tensor) else column)
        found, labels = pd.factorize(listed)
    except (TypeError, ValueError) as error:
        raise DataError(
            f"people are a {type(people).__name__} ({error}); expected the identifier of each row's person, "
            "[n], such as a column of texts or of whole numbers.",
            field="people",
        ) from error
    codes: Codes = found.astype(np.int64)
    if absent := int((codes < 0).sum()):
        raise DataError(
            f"{absent} of {len(codes)} rows do not say whose they are; fill that in, or remove them.",
            field="people",
        )
    texts = [isinstance(each, str) for each in labels] if listed.dtype.kind == "O" else []
    if any(texts) and not all(texts):
        raise DataError(
            "people are texts in some rows and numbers or other values in others, so that one person may "
            "count as two; give one kind, such as column.astype(str).",
            field="people",
        )
    return codes


def first_rows(data: GroupedDataset) -> GroupedDataset:
    """Return the first row of each example: for a release that reads one row of each person."""
    if data.rows is None:
        return data
    inputs, targets = map_tensors(lambda each: each[:, 0], (data.inputs, data.targets))
    return replace(data, inputs=inputs, targets=targets, weights=None, row_groups=None)


def rows_by_person(
    table: pd.DataFrame, recipe: Recipe, groups: Codes, seed: int
) -> tuple[PeoplesRows, Codes, Codes, Codes]:
    """Return the training rows of each person who is trained on, these rows, all rows of the others, and
    the person of each row, [n].

    Whether a person is in the test set depends on a draw from the seed and the person's identifier, as for
    rows (`rows_by_content`). A person is in the group of the first row that may be trained on. The owner is
    warned about rows that are left out.
    """
    codes, labels = pd.factorize(table[str(recipe.person)])
    people = PeoplesRows.choose_rows(codes, int(recipe.rows_per_person or 1), seed)
    of_person = groups[people.first]
    drawn = draw_rows(pd.DataFrame({"person": pd.Series(labels)}), seed)
    train, test = rows_by_content(drawn, of_person, recipe.test_share)
    trained = PeoplesRows(people.places[train], people.present[train], people.left_out[train])
    if message := trained.left_out_message():
        warnings.warn(message, DataWarning, stacklevel=5)
    return trained, np.unique(trained.places[trained.present]), np.flatnonzero(np.isin(codes, test)), codes
