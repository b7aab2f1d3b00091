"""Models that run.py takes steps of, on made-up inputs: values do not change the cost of a step.

`OWN` are those of published settings, `TRANSFORMERS` small ones of `transformers`, also with adapters of
`peft`, and `LARGE` such ones at their full sizes, for a GPU. Without dropout: engines draw different masks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from equidp.models import MODELS

TOKENS, VOCABULARY = 64, 1000
IMAGE, LARGE_IMAGE, LARGE_TOKENS = (3, 32, 32), (3, 224, 224), 128


@dataclass(frozen=True)
class Subject:
    """One model on one kind of data.

    Attributes:
        make: makes a fresh model.
        shape: of one input.
        classes: number of classes.
        batch_size: examples in a step, in the mean.
        words: size of the vocabulary, where inputs are tokens.
        published: its name in `equidp.models`, if it has one.
        coarse: whether passes run under autocast in bfloat16.
        checkpointed: whether activations are computed again in the backward pass.
    """

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    batch_size: int
    words: int | None = None
    published: str | None = None
    coarse: bool = False
    checkpointed: bool = False

    def batch(self) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and groups of one batch."""
        generator = torch.Generator().manual_seed(0)
        size = self.batch_size
        inputs = (
            torch.randint(0, self.words, (size, *self.shape), generator=generator)
            if self.words
            else torch.randn(size, *self.shape, generator=generator)
        )
        targets = torch.randint(0, self.classes, (size,), generator=generator)
        return inputs, targets, torch.randint(0, 2, (size,), generator=generator)

    def model(self, device: torch.device) -> nn.Module:
        with device:  # large weights are drawn where they are used
            torch.manual_seed(0)
            model = self.make()
        if self.checkpointed:
            inner = next(each for each in model.modules() if hasattr(each, "gradient_checkpointing_enable"))
            inner.gradient_checkpointing_enable({"use_reentrant": False})
        return model.train()

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16) if self.coarse else nullcontext()


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
    return Subject(name, lambda: MODELS[model](shape, classes), shape, classes, batch_size, published=model)


OWN = (
    _published("logistic regression, Adult (40)", "logistic", (40,), 2),
    _published("MLP 256-256, Adult (40)", "mlp", (40,), 2),
    _published("LeNet-431K, MNIST (28x28)", "lenet", (1, 28, 28), 10),
    _published("tanh CNN 32-16, MNIST (28x28)", "tanh-cnn", (1, 28, 28), 10),
    _published("ResNet-20 GroupNorm, CIFAR-10 (3x32x32)", "resnet20", (3, 32, 32), 10, 128),
    Subject(
        "transformer, 2 layers of 128, 64 tokens", lambda: Transformer(10), (TOKENS,), 10, 128, VOCABULARY
    ),
    Subject("LSTM 128, 64 tokens", lambda: Recurrent(10), (TOKENS,), 10, 128, VOCABULARY),
)

NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 512,
}


class Logits(nn.Module):
    """Model in the form that Opacus takes: one tensor in, one tensor out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs).logits


class WithPositions(Logits):
    """Positions once per example, which Opacus needs."""

    def forward(self, inputs: Tensor) -> Tensor:
        positions = torch.arange(inputs.shape[1], device=inputs.device).expand_as(inputs)
        return self.model(inputs, position_ids=positions).logits


def _bert(wrap: type[Logits] = Logits, classes: int = 2, **sizes: int) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    return wrap(BertForSequenceClassification(BertConfig(num_labels=classes, **NO_DROPOUT, **sizes)))


def _gpt2(wrap: type[Logits] = Logits, classes: int = 2, **sizes: int) -> nn.Module:
    from transformers import GPT2Config, GPT2ForSequenceClassification

    dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    return wrap(GPT2ForSequenceClassification(GPT2Config(num_labels=classes, **dropped, **tokens, **sizes)))


def _vit(classes: int = 2, **sizes: int) -> nn.Module:
    from transformers import ViTConfig, ViTForImageClassification

    return Logits(ViTForImageClassification(ViTConfig(num_labels=classes, **NO_DROPOUT, **sizes)))


def _resnet() -> nn.Module:
    """With frozen statistics, as a pretrained one keeps them."""
    from transformers import ResNetConfig, ResNetForImageClassification

    from equidp import make_compatible

    config = ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64], depths=[2, 2], layer_type="basic", num_labels=3
    )
    model = ResNetForImageClassification(config)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    return Logits(make_compatible(model)[0])


def _convnext() -> nn.Module:
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = ConvNextConfig(hidden_sizes=[48, 96], depths=[2, 2], num_stages=2, patch_size=4, num_labels=3)
    return Logits(ConvNextForImageClassification(config))


def _llama(**sizes: int) -> nn.Module:
    """A Llama whose frozen weights are bfloat16, with adapters in float32."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    config = LlamaConfig(num_labels=2, pad_token_id=0, **sizes)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = Logits(LlamaForSequenceClassification(config))
    finally:
        torch.set_default_dtype(before)
    adapted = _adapted(lambda: model, "q_proj v_proj", "score")
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted


def _adapted(make: Callable[[], nn.Module], names: str, kept: str) -> nn.Module:
    import peft

    turned = "c_attn" in names  # GPT-2's weights are transposed
    config = peft.LoraConfig(r=8, target_modules=names.split(), modules_to_save=[kept], fan_in_fan_out=turned)
    return peft.get_peft_model(make(), config)


def _transformers() -> Iterator[Subject]:
    words = {"vocab_size": VOCABULARY, "max_position_embeddings": TOKENS}
    bert = partial(_bert, classes=3, **SMALL, **words)
    gpt2 = partial(
        _gpt2, classes=3, n_embd=128, n_layer=2, n_head=4, vocab_size=VOCABULARY, n_positions=TOKENS
    )
    vit = partial(_vit, classes=3, image_size=32, patch_size=4, **SMALL)
    texts = {
        "BERT": bert,
        "BERT, positions by example": partial(bert, WithPositions),
        "BERT, LoRA": lambda: _adapted(bert, "query value", "classifier"),
        "GPT-2": gpt2,
        "GPT-2, positions by example": partial(gpt2, WithPositions),
        "GPT-2, LoRA": lambda: _adapted(gpt2, "c_attn", "score"),
    }
    images = {
        "ViT": vit,
        "ViT, LoRA": lambda: _adapted(vit, "q_proj v_proj", "classifier"),
        "ResNet": _resnet,
        "ConvNeXt": _convnext,
    }
    for name, make in texts.items():
        yield Subject(name, make, (TOKENS,), 3, 16, VOCABULARY)
    for name, make in images.items():
        yield Subject(name, make, IMAGE, 3, 16)


def _large() -> Iterator[Subject]:
    """128 tokens or 224 pixels; in bfloat16 but for the last two, which are in float32."""
    text = Subject("", _bert, (LARGE_TOKENS,), 2, 64, 30_000, coarse=True)
    bert = replace(text, name="BERT-base, 110 million, batch 64")
    yield bert
    bert = replace(bert, name="BERT-base, batch 256", batch_size=256)
    yield bert
    yield replace(bert, name="BERT-base, batch 256, checkpointed", checkpointed=True)
    lora = partial(_adapted, _bert, "query value", "classifier")
    yield replace(bert, name="BERT-base, LoRA, batch 256", make=lora)
    gpt2 = replace(text, words=50_257)
    yield replace(gpt2, name="GPT-2 small, 124 million, batch 64", make=_gpt2)
    yield replace(text, name="ViT-B/16, 86 million, batch 64", make=_vit, shape=LARGE_IMAGE, words=None)
    wide = partial(_gpt2, n_embd=1280, n_layer=36, n_head=20)
    wide = replace(gpt2, name="GPT-2 large, 774 million, batch 16", make=wide, batch_size=16)
    llama = replace(text, name="Llama of 7 billion, LoRA, batch 16", make=_llama, batch_size=16, words=32_000)
    for each in (wide, llama):
        yield each
        yield replace(each, name=f"{each.name}, checkpointed", checkpointed=True)
    for size in (64, 256):
        yield replace(bert, name=f"BERT-base in float32, batch {size}", batch_size=size, coarse=False)


TRANSFORMERS, LARGE = tuple(_transformers()), tuple(_large())
KINDS = {"own": OWN, "transformers": TRANSFORMERS, "large": LARGE}
ALL = {subject.name: subject for kind in KINDS.values() for subject in kind}
