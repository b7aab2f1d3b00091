"""Steps of large models on a GPU: by physical batch, in bfloat16, with checkpointing, with adapters.

    python benchmarks/large_models.py --device cuda [--only BERT] [--rounds 3] [--opacus]

Weights are random and inputs made up: sentences of 128 tokens with two classes, images of 224 pixels. Each is
a whole step on one batch, noise and optimizer included, beside plain SGD on the same batch in the same
precision; memory is the most that was allocated, model and batch included. What does not fit, or cannot be
trained, is printed with its error. `--small` replaces sizes by tiny ones, to try the command itself.
"""

from __future__ import annotations

import argparse
import gc
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
import transformers
from contenders import CONTENDERS, Step
from measure import peak_bytes, step_seconds
from others import Logits, with_adapters
from torch import Tensor, nn

from equidp.training.device import chosen_device, wait_for

TOKENS, CLASSES, PIXELS = 128, 2, 224
PLAIN, OURS, OPACUS = "plain SGD", "equidp ghost, dpsgd, noise from the OS", "Opacus ghost"
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@dataclass(frozen=True)
class Row:
    """One row of the table.

    Attributes:
        make: makes the model.
        batch_size: examples in a step, all of which are in the engine at once.
        words: size of the vocabulary; None: images.
        coarse: whether passes run under autocast in bfloat16.
        checkpointed: whether activations are computed again in the backward pass.
    """

    name: str
    make: Callable[[], nn.Module]
    batch_size: int
    words: int | None
    coarse: bool = False
    checkpointed: bool = False

    def batch(self, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        """Inputs, targets and groups."""
        generator = torch.Generator().manual_seed(0)
        size = self.batch_size
        inputs = (
            torch.randn(size, 3, PIXELS, PIXELS, generator=generator)
            if self.words is None
            else torch.randint(1, self.words, (size, TOKENS), generator=generator)
        )
        targets = torch.arange(size) % CLASSES
        return inputs.to(device), targets.to(device), targets.to(device)

    def precision(self, device: torch.device) -> AbstractContextManager[object]:
        return torch.autocast(device.type, torch.bfloat16) if self.coarse else nullcontext()

    def model(self, device: torch.device) -> nn.Module:
        with device:  # large weights are drawn where they are used
            torch.manual_seed(0)
            model = self.make()
        if self.checkpointed:
            inner = next(each for each in model.modules() if hasattr(each, "gradient_checkpointing_enable"))
            inner.gradient_checkpointing_enable({"use_reentrant": False})
        return model.train()

    @property
    def settings(self) -> str:
        parts = ["bfloat16" if self.coarse else "float32", "checkpointed" if self.checkpointed else ""]
        return ", ".join(filter(None, parts))


def bert(small: bool) -> nn.Module:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2} if small else {}
    config = transformers.BertConfig(num_labels=CLASSES, **NO_DROPOUT, **sizes)
    return Logits(transformers.BertForSequenceClassification(config))


def gpt2(width: int, depth: int, heads: int) -> nn.Module:
    dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = transformers.GPT2Config(
        n_embd=width, n_layer=depth, n_head=heads, num_labels=CLASSES, pad_token_id=0, **dropped
    )
    return Logits(transformers.GPT2ForSequenceClassification(config))


def vit(small: bool) -> nn.Module:
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2} if small else {}
    config = transformers.ViTConfig(num_labels=CLASSES, **NO_DROPOUT, **sizes)
    return Logits(transformers.ViTForImageClassification(config))


def llama(width: int, depth: int, heads: int, inner: int) -> nn.Module:
    """A Llama whose frozen weights are bfloat16, with adapters in float32."""
    config = transformers.LlamaConfig(
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        intermediate_size=inner,
        num_labels=CLASSES,
        pad_token_id=0,
    )
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = Logits(transformers.LlamaForSequenceClassification(config))
    finally:
        torch.set_default_dtype(before)
    adapted = with_adapters(lambda: model, ["q_proj", "v_proj"], "score")
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()
    return adapted


def rows(small: bool) -> Iterator[Row]:
    large = not small
    base = Row("BERT-base, 110 million", partial(bert, small), 16, 30_000)
    sizes = (64, 256) if large else (4,)
    for size in sizes:
        yield replace(base, batch_size=size, coarse=True)
    yield replace(base, batch_size=sizes[-1], coarse=True, checkpointed=True)
    adapted = partial(with_adapters, partial(bert, small), ["query", "value"], "classifier")
    yield replace(base, name="BERT-base, LoRA", make=adapted, batch_size=sizes[-1], coarse=True)
    shape = (768, 12, 12) if large else (64, 2, 2)
    yield Row("GPT-2 small, 124 million", partial(gpt2, *shape), sizes[0], 50_257, coarse=True)
    yield Row("ViT-B/16, 86 million", partial(vit, small), sizes[0], None, coarse=True)
    shape = (1280, 36, 20) if large else (64, 3, 2)
    for checkpointed in (False, True):
        yield Row("GPT-2 large, 774 million", partial(gpt2, *shape), 16, 50_257, True, checkpointed)
    shape = (4096, 32, 32, 11008) if large else (64, 2, 2, 128)
    for checkpointed in (False, True):
        yield Row("Llama of 7 billion, LoRA", partial(llama, *shape), 16, 32_000, True, checkpointed)
    for size in sizes:
        yield replace(base, batch_size=size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1 or auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="part of a model's name")
    parser.add_argument("--opacus", action="store_true", help="also Opacus' ghost clipping")
    parser.add_argument("--small", action="store_true", help="tiny sizes, to try the command")
    asked = parser.parse_args()
    device = chosen_device(asked.device)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    names = (PLAIN, OURS, *([OPACUS] if asked.opacus else []))
    print("model | examples | precision | contender | ms a step | of plain | peak GB | s until first step")
    for row in rows(asked.small):
        if asked.only.lower() in row.name.lower():
            measure(row, names, device, asked.rounds)


def measure(row: Row, names: tuple[str, ...], device: torch.device, rounds: int) -> None:
    """Print a line for each contender, one of which is in memory at a time."""
    plain = None
    for name in names:
        start = f"{row.name} | {row.batch_size} | {row.settings} | {name} |"
        try:
            with row.precision(device):
                model = row.model(device)
                made = time.perf_counter()
                resting = sum(each.numel() * each.element_size() for each in model.parameters())
                step: Step = CONTENDERS[name](model, row.batch(device))
                step()
                wait_for(device)
                first = time.perf_counter() - made
                seconds = step_seconds({name: step}, name, rounds=rounds, device=device)[0][name]
                peak = resting + peak_bytes(step, device)
        except Exception as error:
            print(start, f"cannot: {type(error).__name__}: {str(error).splitlines()[0][:140]}", flush=True)
        else:
            plain = seconds if name == PLAIN else plain
            ratio = f"{seconds / plain:.2f}" if plain else ""
            print(start, f"{1000 * seconds:.1f} | {ratio} | {peak / 1e9:.1f} | {first:.1f}", flush=True)
        model = step = None
        gc.collect()
        if device.type == "cuda":
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
