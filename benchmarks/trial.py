"""Memory and time of making a Trainer, which tries the model, beside those of its steps.

    python benchmarks/trial.py [--only BERT] [--physical-batch-size 4]

Each model, with random weights, is tried in one process and trained for a step in another, both on batches of
32 in parts of 4. Memory is the most that was resident beyond what was before, in sizes of the model
(its trained parameters in float32 and the frozen ones); time is of the CPU, in private steps.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import equidp
from equidp.engines import make_engine

BATCH, EXAMPLES, CLASSES = 32, 256, 2
WORDS = 50_257


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens).logits


def layers(hidden: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        parts = nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        return nn.Sequential(*parts, nn.Linear(hidden, CLASSES))

    return make


def table() -> nn.Module:
    class Mean(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values.mean(dim=1)

    return nn.Sequential(nn.Embedding(60_000, 256), Mean(), nn.Linear(256, CLASSES))


def gpt2(width: int, depth: int, heads: int) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        config = transformers.GPT2Config(n_embd=width, n_layer=depth, n_head=heads, n_positions=128)
        return Logits(transformers.GPT2LMHeadModel(config))

    return make


def bert() -> nn.Module:
    import transformers

    return Logits(transformers.BertForSequenceClassification(transformers.BertConfig()))


def bert_lora() -> nn.Module:
    import peft

    config = peft.LoraConfig(r=8, target_modules=["query", "value"], modules_to_save=["classifier"])
    return peft.get_peft_model(bert(), config)


def of_text(outputs: Tensor, tokens: Tensor) -> Tensor:
    """Loss of each text: the sum over its next tokens."""
    return nn.functional.cross_entropy(outputs[:, :-1].transpose(1, 2), tokens[:, 1:], reduction="none").sum(
        1
    )


def of_class(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def numbers() -> tuple[Tensor, Tensor]:
    return torch.randn(EXAMPLES, 64), torch.arange(EXAMPLES) % CLASSES


def texts(words: int, length: int, causal: bool) -> Callable[[], tuple[Tensor, Tensor]]:
    def make() -> tuple[Tensor, Tensor]:
        tokens = torch.randint(1, words, (EXAMPLES, length))
        return tokens, tokens if causal else torch.arange(EXAMPLES) % CLASSES

    return make


SUBJECTS: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Tensor, Tensor]], Any]] = {
    "three layers of 1,024": (layers(1024), numbers, of_class),
    "three layers of 2,048": (layers(2048), numbers, of_class),
    "three layers of 4,096": (layers(4096), numbers, of_class),
    "GPT-2 of width 64, 50,257 words": (gpt2(64, 2, 2), texts(WORDS, 32, True), of_text),
    "table of 60,000 words": (table, texts(60_000, 32, False), of_class),
    "BERT-base, LoRA": (bert_lora, texts(30_000, 32, False), of_class),
    "BERT-base": (bert, texts(30_000, 32, False), of_class),
    "GPT-2 small, 50,257 words": (gpt2(768, 12, 12), texts(WORDS, 32, True), of_text),
}


def resident(*, most: bool) -> int:
    """Bytes that are resident now, or were at most since `forget`."""
    lines = Path("/proc/self/status").read_text().splitlines()
    name = "VmHWM" if most else "VmRSS"
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))


def forget() -> None:
    """Return freed memory to the operating system, and let the most resident restart."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


def trainer(model: nn.Module, data: tuple[Tensor, Tensor], loss: Any, physical: int, engine: Any) -> Any:
    return equidp.Trainer(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        torch.utils.data.TensorDataset(*data),
        policy=equidp.DPSGD(),
        loss=loss,
        batch_size=BATCH,
        steps=2,
        noise_multiplier=1.0,
        delta=1e-3,
        physical_batch_size=physical,
        engine=engine,
    )


def measure(name: str, physical: int, *, tried: bool) -> dict[str, float]:
    """Bytes and seconds of the trial, or of a step without one."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    trainer(nn.Linear(64, CLASSES), numbers(), of_class, physical, "ghost").fit()  # loads what is loaded once
    make, data, loss = SUBJECTS[name]
    model, data = make(), data()
    forget()
    before, start = resident(most=False), time.process_time()
    if tried:
        trainer(model, data, loss, physical, "ghost")
    else:
        made = trainer(model, data, loss, physical, make_engine("ghost", model, loss))
        start = time.process_time()
        made.fit()
    seconds = (time.process_time() - start) / (1 if tried else made.steps)
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    return {"bytes": resident(most=True) - before, "seconds": seconds, "model": size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", default="", help="part of a model's name")
    parser.add_argument("--physical-batch-size", type=int, default=4)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        name, what = asked.measure
        print(json.dumps(measure(name, asked.physical_batch_size, tried=what == "trial")))
        return
    print("model | million parameters | MB | trial: MB | a step: MB | trial less step, in models | s | steps")
    for name in SUBJECTS:
        if asked.only not in name:
            continue
        found = []
        for what in ("trial", "step"):
            command = [sys.executable, __file__, "--physical-batch-size", str(asked.physical_batch_size)]
            ran = subprocess.run(
                [*command, "--measure", name, what], capture_output=True, text=True, check=True
            )
            found.append(json.loads(ran.stdout.splitlines()[-1]))
        trial, step = found
        size, extra = trial["model"], trial["bytes"] - step["bytes"]
        print(
            f"{name} | {size / 4e6:.1f} | {size / 1e6:.0f} | {trial['bytes'] / 1e6:.0f} | "
            f"{step['bytes'] / 1e6:.0f} | {extra / size:.1f} | {trial['seconds']:.1f} | "
            f"{trial['seconds'] / step['seconds']:.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
