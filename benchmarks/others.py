"""Step times of models of `transformers`, also with adapters of `peft`, beside plain SGD and Opacus.

    python benchmarks/others.py [--rounds 5] [--only BERT] [--device cuda]

Weights are random and configurations small; inputs are random. Times are multiples of a plain SGD step of the
same batch, medians over rounds in which contenders take turns. What cannot train a model is listed with its
own error. Without dropout: Opacus and equidp draw different masks.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable

import peft
import torch
import transformers
from contenders import OPACUS, steps_for
from measure import step_seconds
from subjects import TOKENS, VOCABULARY, Subject
from torch import Tensor, nn

from equidp.training.device import chosen_device

NAMES = (
    "plain SGD",
    "equidp ghost, dpsgd",
    "equidp functional, dpsgd",
    *(f"Opacus {mode}" for mode in OPACUS),
)
WIDTH, HEADS, LAYERS, CLASSES = 128, 4, 2, 3
SIZES = {
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 4 * WIDTH,
    "num_labels": CLASSES,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
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


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=VOCABULARY, max_position_embeddings=TOKENS, **SIZES)
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    dropped = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    tokens = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), 0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=TOKENS,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        num_labels=CLASSES,
        **dropped,
        **tokens,
    )
    return transformers.GPT2ForSequenceClassification(config)


def vit() -> nn.Module:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(image_size=32, patch_size=4, **SIZES)
    )


def resnet() -> nn.Module:
    """With frozen statistics, as a pretrained one keeps them."""
    from equidp import make_compatible

    config = transformers.ResNetConfig(
        embedding_size=32, hidden_sizes=[32, 64], depths=[2, 2], layer_type="basic", num_labels=CLASSES
    )
    model = transformers.ResNetForImageClassification(config)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    return make_compatible(model)[0]


def convnext() -> nn.Module:
    config = transformers.ConvNextConfig(
        hidden_sizes=[48, 96], depths=[2, 2], num_stages=2, patch_size=4, num_labels=CLASSES
    )
    return transformers.ConvNextForImageClassification(config)


def with_adapters(make: Callable[[], nn.Module], names: list[str], kept: str) -> nn.Module:
    turned = make is gpt2
    config = peft.LoraConfig(r=8, target_modules=names, modules_to_save=[kept], fan_in_fan_out=turned)
    return peft.get_peft_model(make(), config)


def subject(name: str, make: Callable[[], nn.Module], shape: tuple[int, ...] | None) -> Subject:
    return Subject(name, lambda: Logits(make()), shape, CLASSES, batch_size=16)


IMAGE = (3, 32, 32)
SUBJECTS = (
    subject("BERT", bert, None),
    Subject("BERT, positions by example", lambda: WithPositions(bert()), None, CLASSES, batch_size=16),
    subject("GPT-2", gpt2, None),
    Subject("GPT-2, positions by example", lambda: WithPositions(gpt2()), None, CLASSES, batch_size=16),
    subject("ViT", vit, IMAGE),
    subject("ResNet", resnet, IMAGE),
    subject("ConvNeXt", convnext, IMAGE),
    subject("BERT, LoRA", lambda: with_adapters(bert, ["query", "value"], "classifier"), None),
    subject("GPT-2, LoRA", lambda: with_adapters(gpt2, ["c_attn"], "score"), None),
    subject("ViT, LoRA", lambda: with_adapters(vit, ["q_proj", "v_proj"], "classifier"), IMAGE),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps or auto")
    parser.add_argument("--only", default="", help="part of a model's name")
    asked = parser.parse_args()
    device = chosen_device(asked.device)
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for each in SUBJECTS:
        if asked.only not in each.name:
            continue
        steps, refused = steps_for(each, device, NAMES)
        seconds, ratios = step_seconds(steps, "plain SGD", rounds=asked.rounds, device=device)
        size = sum(parameter.numel() for parameter in each.make().parameters()) / 1e6
        print(f"{each.name}, {size:.1f} million parameters, batches of {each.batch_size}")
        for name in steps:
            print(f"  {name:32} {1000 * seconds[name]:8.1f} ms  {ratios[name]:6.2f}")
        for name, why in refused.items():
            print(f"  {name:32} cannot: {why}")


if __name__ == "__main__":
    main()
