"""Augmented views of each sampled example, which count as one example (augmentation multiplicity).

The mean loss of K random views has one gradient, one norm and one clipped contribution. K views therefore
cost as much privacy as one, and their gradient is less noisy (De et al., 2204.13650, section 3.2).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from equidp._validate import check_whole, unknown_name
from equidp.data.dataset import GroupedDataset
from equidp.data.targets import with_weights
from equidp.errors import DataError, SettingError
from equidp.kernel.engine import LossFunction
from equidp.kernel.noise import Randomness
from equidp.kernel.run import Batch
from equidp.losses import Loss

_REACH = 8
"""Largest shift of an image as a fraction of its side, 1 / this number: 4 pixels of 32."""


def _flip_images(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability 1/2."""
    mirrored = torch.rand(len(images), generator=generator) < 0.5
    return torch.where(mirrored.to(images.device)[:, None, None, None], images.flip(3), images)


def _shift_images(images: Tensor, generator: torch.Generator) -> Tensor:
    """Move each image by its own number of pixels in either direction. Its border is continued outwards."""
    count, sides = len(images), images.shape[2:]
    reach = [max(1, side // _REACH) for side in sides]
    wide = pad(images, (reach[1], reach[1], reach[0], reach[0]), mode="replicate")
    places = [
        torch.randint(2 * most + 1, (count, 1), generator=generator) + torch.arange(side)
        for most, side in zip(reach, sides, strict=True)
    ]
    down, right = (each.to(images.device) for each in places)
    at = torch.arange(count, device=images.device)
    return wide.permute(0, 2, 3, 1)[at[:, None, None], down[:, :, None], right[:, None, :]].permute(
        0, 3, 1, 2
    )


AUGMENTATIONS: dict[str, tuple[Callable[[Tensor, torch.Generator], Tensor], ...]] = {
    "none": (),
    "flip": (_flip_images,),
    "shift": (_shift_images,),
    "flip-shift": (_flip_images, _shift_images),
}
"""Name -> operations on images [n, channels, height, width], in order. Nothing depends on data."""


@final
@dataclass(frozen=True)
class Views:
    """Augmented views of each sampled image in training, whose losses are averaged.

    An example and all its views make one contribution, bounded as any other, so epsilon stays the same.
    Predictions are of plain images.

    Attributes:
        count: K views of each image.
        augmentation: name in `AUGMENTATIONS`: "none", "flip", "shift" or "flip-shift".

    Raises:
        SettingError: an unknown name, K < 1, or several views that would all be the same.

    Example:
        >>> import torch, equidp
        >>> labels = torch.arange(32) % 2
        >>> data = equidp.GroupedDataset(torch.rand(32, 1, 8, 8), labels, labels, ("a", "b"), ("no", "yes"))
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
        >>> trainer = equidp.Trainer(
        ...     model, torch.optim.SGD(model.parameters(), lr=0.1), data, batch_size=8,
        ...     steps=2, noise_multiplier=2.0, delta=1e-3, views=4, augmentation="shift",
        ... )
        >>> trainer.fit().facts.views.count
        4
    """

    count: int = 1
    augmentation: str = "none"

    def __post_init__(self) -> None:
        check_whole(1, views=self.count)
        if self.augmentation not in AUGMENTATIONS:
            raise unknown_name("augmentation", self.augmentation, AUGMENTATIONS)
        if self.count > 1 and not self.random:
            raise SettingError(
                f"views={self.count} without an augmentation: they would all be the same. Choose one, such "
                "as flip-shift, or leave views out."
            )

    @property
    def random(self) -> bool:
        """True if training reads augmented examples."""
        return bool(AUGMENTATIONS[self.augmentation])

    def check(self, train: object) -> None:
        """Raise a SettingError unless views can be made of this data."""
        if not self.random:
            return
        if not isinstance(train, GroupedDataset):
            raise SettingError(
                "views and augmentation are for a GroupedDataset; a torch Dataset can augment by itself.",
                field="views",
            )
        shape = train.input_shape if isinstance(train.inputs, Tensor) else ()
        if len(shape) != 3 or not train.one_tensor.is_floating_point():
            raise DataError(
                f"augmentation {self.augmentation!r} is for images [channels, height, width]; an input here "
                f"has shape {list(shape)}. Leave --views and --augmentation out, or give images."
            )

    def refuse(self, purpose: str) -> None:
        """Raise a SettingError, beginning with `purpose`, if training reads random views."""
        if self.random:
            raise SettingError(
                f"{purpose} gradients of examples as they are, and with augmentation {self.augmentation!r} "
                "they are others in each step; train without (--set training.augmentation=none).",
                field="views",
            )

    def loss(self, loss: LossFunction, dtype: torch.dtype) -> LossFunction:
        """Return the loss of sampled examples from the loss of one row, whose targets have this type."""
        return loss if self.count == 1 else Loss.of(loss).by_example(dtype)

    def of(self, batch: Batch, randomness: Randomness) -> Batch:
        """Return the batch that training reads; with several views, its examples have several rows.

        The random numbers follow only from the run's randomness, and each image has its own. They are
        assigned by position, from a generator whose whole state is fresh entropy if the run is not seeded.
        """
        if not self.random:
            return batch
        generator = randomness.generator()
        inputs, targets = batch.inputs, batch.targets
        assert isinstance(inputs, Tensor)
        assert isinstance(targets, Tensor)
        several, image = inputs.dim() == 5, inputs.shape[-3:]
        views = inputs.reshape(-1, *image).repeat_interleave(self.count, dim=0)
        for augment in AUGMENTATIONS[self.augmentation]:
            views = augment(views, generator)
        if self.count == 1:
            return batch._replace(inputs=views.reshape(inputs.shape))
        rows = self.count * (inputs.shape[1] if several else 1)
        if targets.dim() == 1:
            targets = with_weights(targets, torch.ones_like(targets, dtype=torch.float32))
        weighted = targets.reshape(-1, 2).repeat_interleave(self.count, dim=0)
        weighted = weighted * torch.tensor([1.0, 1 / self.count], device=weighted.device)
        return batch._replace(
            inputs=views.reshape(len(inputs), rows, *image), targets=weighted.reshape(len(inputs), rows, 2)
        )
