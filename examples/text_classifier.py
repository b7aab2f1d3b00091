"""A text classifier with embeddings, and groups that write differently.

Words become token ids by a public vocabulary; a vocabulary taken from the data would reveal which words it
holds. Token ids are integer inputs.

Run: python examples/text_classifier.py
"""

from __future__ import annotations

import random

import torch
from torch import Tensor, nn

import equidp

PADDING, UNKNOWN = 0, 1
GOOD = {"north": ["good", "great", "lovely"], "south": ["bonny", "grand", "braw"]}
BAD = {"north": ["bad", "awful", "poor"], "south": ["dreich", "glum", "foul"]}
OTHER = [
    "the",
    "food",
    "was",
    "and",
    "our",
    "room",
    "staff",
    "view",
    "very",
    "quite",
    "it",
    "felt",
    "truly",
    "so",
]
WORDS = [*OTHER, *(word for side in (GOOD, BAD) for words in side.values() for word in words)]
VOCABULARY = {word: index + 2 for index, word in enumerate(sorted(WORDS))}
LENGTH = 12


def tokens(text: str) -> list[int]:
    """Token ids of a review, padded or cut to `LENGTH`."""
    ids = [VOCABULARY.get(word, UNKNOWN) for word in text.lower().split()][:LENGTH]
    return ids + [PADDING] * (LENGTH - len(ids))


def reviews(count: int, seed: int) -> equidp.GroupedDataset:
    """Made-up reviews; one in six is written in the words of the south."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        group, label = int(rng.random() < 1 / 6), rng.randrange(2)
        telling = (GOOD if label else BAD)[("north", "south")[group]]
        words = [*rng.choices(OTHER, k=6), *rng.choices(telling, k=2), rng.choice(["zounds", "aye", "well"])]
        rng.shuffle(words)
        rows.append((tokens(" ".join(words)), label, group))
    texts, labels, groups = zip(*rows, strict=True)
    return equidp.GroupedDataset(
        torch.tensor(texts), torch.tensor(labels), torch.tensor(groups), ("north", "south"), ("bad", "good")
    )


class BagOfEmbeddings(nn.Module):
    """The mean of the words' vectors, then one linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(len(VOCABULARY) + 2, 16, padding_idx=PADDING)
        self.head = nn.Linear(16, 2)

    def forward(self, ids: Tensor) -> Tensor:
        known = (ids != PADDING).unsqueeze(-1)
        return self.head((self.words(ids) * known).sum(dim=1) / known.sum(dim=1).clamp_min(1))


def main() -> equidp.Run:
    train, test = reviews(3000, seed=0), reviews(1000, seed=1)
    model = BagOfEmbeddings()
    trainer = equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=2.0),
        train,
        method=equidp.DPSGDFCode(clipping_bound=1.0, smoothing=0.9),
        batch_size=300,
        epochs=15,
        epsilon=4.0,
        delta=1e-5,
    )
    run = trainer.fit()
    print(run.metrics(test).round(3).to_string(index=False))
    print(f"epsilon {run.epsilon():.3f} at delta {run.delta:g}")
    return run


if __name__ == "__main__":
    main()
