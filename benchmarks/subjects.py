"""Models, and batches of the papers' shapes. Inputs are random: values do not change the cost of a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from equidp.models import MODELS

TOKENS, VOCABULARY = 64, 1000


@dataclass(frozen=True)
class Subject:
    """One model on one kind of data.

    Attributes:
        make: makes a fresh model.
        shape: of one input; None: a row of `TOKENS` tokens.
        classes: number of classes.
        batch_size: examples in a step.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...] | None
    classes: int
    batch_size: int

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and groups of one batch."""
        generator = torch.Generator().manual_seed(0)
        size = self.batch_size
        inputs = (
            torch.randint(0, VOCABULARY, (size, TOKENS), generator=generator)
            if self.shape is None
            else torch.randn(size, *self.shape, generator=generator)
        )
        targets = torch.randint(0, self.classes, (size,), generator=generator)
        return inputs, targets, torch.randint(0, 2, (size,), generator=generator)

    def resting_bytes(self) -> int:
        """Bytes of the model and one batch, which live between steps."""
        tensors = [*self.make().parameters(), *self.batch()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


class Transformer(nn.Module):
    """Two encoder layers of width 128 over 64 tokens, averaged."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 128)
        layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(128, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.body(self.words(tokens)).mean(dim=1))
        return outputs


class Recurrent(nn.Module):
    """An LSTM of 128 over 64 tokens, read at its last step."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, 64)
        self.body = nn.LSTM(64, 128, batch_first=True)
        self.out = nn.Linear(128, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.body(self.words(tokens))[0][:, -1])
        return outputs


def _published(name: str, model: str, shape: tuple[int, ...], classes: int, batch_size: int = 256) -> Subject:
    return Subject(name, lambda: MODELS[model](shape, classes), shape, classes, batch_size)


SUBJECTS = [
    _published("logistic regression, Adult (40)", "logistic", (40,), 2),
    _published("MLP 256-256, Adult (40)", "mlp", (40,), 2),
    _published("LeNet-431K, MNIST (28x28)", "lenet", (1, 28, 28), 10),
    _published("tanh CNN 32-16, MNIST (28x28)", "tanh-cnn", (1, 28, 28), 10),
    _published("ResNet-20 GroupNorm, CIFAR-10 (3x32x32)", "resnet20", (3, 32, 32), 10, 128),
    Subject("transformer, 2 layers of 128, 64 tokens", lambda: Transformer(10), None, 10, 128),
    Subject("LSTM 128, 64 tokens", lambda: Recurrent(10), None, 10, 128),
]
