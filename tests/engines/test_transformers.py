"""Models of `transformers`, also with adapters of `peft`, train privately with exact norms and sums.

Their weights are random, from small configurations: nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import equidp
from equidp.engines import make_engine
from equidp.errors import ModelError
from equidp.kernel.inputs import taken
from support.oracle import assert_exact, loss

transformers = pytest.importorskip("transformers", reason="needs the extra: pip install '.[hf]'")
peft = pytest.importorskip("peft", reason="needs the extra: pip install '.[hf]'")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft", "ignore::FutureWarning")

N, LENGTH, WORDS = 8, 6, 40
SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "num_labels": 3,
}


def causal_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Losses of texts, summed over their words, [batch]."""
    return nn.functional.cross_entropy(outputs[:, :-1].transpose(1, 2), targets[:, 1:], reduction="none").sum(
        1
    )


def bert() -> nn.Module:
    config = transformers.BertConfig(vocab_size=WORDS, max_position_embeddings=12, **SMALL)
    return transformers.BertForSequenceClassification(config)


def gpt2() -> nn.Module:
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(vocab_size=WORDS, n_positions=12, n_embd=16, n_layer=1, n_head=2, **ends)
    return transformers.GPT2LMHeadModel(config)


def vit() -> nn.Module:
    config = transformers.ViTConfig(image_size=16, patch_size=8, hidden_dropout_prob=0.1, **SMALL)
    return transformers.ViTForImageClassification(config)


def resnet() -> nn.Module:
    """Pretrained ones have statistics; these are made up."""
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=3
    )
    model = transformers.ResNetForImageClassification(config)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False).running_var.uniform_(0.5, 2.0)
    return equidp.make_compatible(model)[0]


def convnext() -> nn.Module:
    sizes = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_stages": 2, "patch_size": 2, "num_labels": 3}
    return transformers.ConvNextForImageClassification(transformers.ConvNextConfig(**sizes))


def adapted(make: Callable[[], nn.Module], names: list[str], **settings) -> nn.Module:
    model = peft.get_peft_model(make(), peft.LoraConfig(r=2, target_modules=names, **settings))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:  # 0 at the start, where half of the gradients would be 0
            nn.init.normal_(parameter)
    return model


def texts() -> dict[str, Tensor]:
    """Token ids, and the mask of texts that are shorter, one on the left."""
    mask = torch.ones(N, LENGTH, dtype=torch.int64)
    mask[1, 4:], mask[2, 1:], mask[3, :2] = 0, 0, 0
    return {"input_ids": torch.randint(1, WORDS, (N, LENGTH)), "attention_mask": mask}


def ended_texts() -> dict[str, Tensor]:
    """Each ends with its end mark, 2."""
    tokens = torch.randint(3, WORDS, (N, LENGTH))
    tokens[:, -1] = 2
    return {"input_ids": tokens, "attention_mask": torch.ones(N, LENGTH, dtype=torch.int64)}


def bart() -> nn.Module:
    sizes = dict.fromkeys(("encoder_layers", "decoder_layers"), 1)
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 2)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 24)
    marks = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    config = transformers.BartConfig(
        vocab_size=WORDS, d_model=16, max_position_embeddings=12, num_labels=3, **sizes, **marks
    )
    return transformers.BartForSequenceClassification(config)


def tuned(config: type, **settings) -> nn.Module:
    """BERT with scales of `peft` that are no longer those of the start."""
    model = peft.get_peft_model(bert(), config(task_type="SEQ_CLS", **settings))
    for parameter in (each for each in model.parameters() if each.requires_grad):
        nn.init.normal_(parameter, 1.0, 0.3)
    return model


def images() -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(N, 3, 16, 16)}


class Case(NamedTuple):
    model: Callable[[], nn.Module]
    inputs: Callable[[], dict[str, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor] = loss

    def targets(self, inputs: dict[str, Tensor]) -> Tensor:
        return torch.arange(N) % 3 if self.loss is loss else inputs["input_ids"]


QUERIES = ["q_proj", "v_proj"]
CASES = {
    "BERT": Case(bert, texts),
    "GPT-2": Case(gpt2, texts, causal_loss),
    "ViT": Case(vit, images),
    "ResNet": Case(resnet, images),
    "ConvNeXt": Case(convnext, images),
    "BERT, LoRA": Case(lambda: adapted(bert, ["query", "value"], modules_to_save=["classifier"]), texts),
    "GPT-2, LoRA": Case(lambda: adapted(gpt2, ["c_attn"], fan_in_fan_out=True), texts, causal_loss),
    "ViT, LoRA": Case(lambda: adapted(vit, QUERIES, modules_to_save=["classifier"]), images),
    "BART": Case(bart, ended_texts),
    "BERT, IA3": Case(
        lambda: tuned(
            peft.IA3Config,
            target_modules=["key", "value", "output.dense"],
            feedforward_modules=["output.dense"],
        ),
        texts,
    ),
}


def made(case: Case) -> tuple[nn.Module, dict[str, Tensor], Tensor]:
    torch.manual_seed(0)
    model, inputs = case.model(), case.inputs()
    return model, inputs, case.targets(inputs)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_norms_and_sums_equal_one_backward_pass_per_example(case):
    """In single precision, as they are trained, to 1e-5 of the largest; without dropout."""
    model, inputs, targets = made(case)
    assert_exact(model.eval(), inputs, targets, loss=case.loss, tolerance=1e-5)


SIZES = {**SMALL, "vocab_size": WORDS, "max_position_embeddings": 12, "pad_token_id": 0}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PATCHES = {**SMALL, "image_size": 16, "patch_size": 4}


def of_family(name: str, head: str, **settings) -> Callable[[], nn.Module]:
    """Model of a family of `transformers` with random weights."""

    def make() -> nn.Module:
        config = getattr(transformers, f"{name}Config")(**settings)
        return getattr(transformers, f"{name}For{head}")(config)

    return make


def of_texts(name: str, **settings) -> Case:
    return Case(of_family(name, "SequenceClassification", **{**SIZES, **settings}), texts)


def of_next_words(name: str, **settings) -> Case:
    sizes = {each: value for each, value in SIZES.items() if each != "num_labels"}
    return Case(of_family(name, "CausalLM", **{**sizes, **MARKS, **settings}), texts, causal_loss)


def of_images(name: str, **settings) -> Case:
    return Case(of_family(name, "ImageClassification", **{"num_labels": 3, **settings}), images)


def of_words(outputs: Tensor, targets: Tensor) -> Tensor:
    """Loss of each text: the sum over its words' classes."""
    return nn.functional.cross_entropy(outputs.transpose(1, 2), targets % 3, reduction="none").sum(dim=1)


SOUND = {
    "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24,
    "num_labels": 3, "conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer", "do_stable_layer_norm": True, "classifier_proj_size": 8,
}  # fmt: skip
STAGES = {"num_encoder_blocks": 2, "depths": [1, 1], "hidden_sizes": [8, 16], "patch_sizes": [3, 3]}
FAMILIES = {
    "RoBERTa": of_texts("Roberta"),
    "DistilBERT": of_texts("DistilBert", dim=16, n_layers=2, n_heads=2, hidden_dim=24),
    "ALBERT": of_texts("Albert", embedding_size=8, num_hidden_layers=2),
    "ELECTRA": of_texts("Electra", embedding_size=8),
    "DeBERTa": of_texts("DebertaV2", pos_att_type=["c2p", "p2c"], relative_attention=True),
    "ModernBERT": of_texts("ModernBert", cls_token_id=1, sep_token_id=2, **MARKS),
    "Llama": of_next_words("Llama", num_key_value_heads=1),
    "Mistral": of_next_words("Mistral", num_key_value_heads=1, head_dim=8),
    "Qwen2": of_next_words("Qwen2", num_key_value_heads=1),
    "Qwen3": of_next_words("Qwen3", num_key_value_heads=1, head_dim=8),
    "Gemma": of_next_words("Gemma", num_key_value_heads=1, head_dim=8),
    "Phi": of_next_words("Phi"),
    "GPT-NeoX": of_next_words("GPTNeoX"),
    "BLOOM": of_next_words("Bloom", n_layer=1, n_head=2),
    "DeiT": of_images("DeiT", **PATCHES),
    "BEiT": of_images("Beit", **PATCHES, layer_scale_init_value=0.1, drop_path_rate=0.0),
    "DINOv2": of_images("Dinov2", **PATCHES),
    "SegFormer": of_images(
        "Segformer", **STAGES, sr_ratios=[2, 1], strides=[2, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2]
    ),
    "PoolFormer": of_images("PoolFormer", **STAGES, strides=[2, 2], padding=[1, 1]),
    "wav2vec2": Case(
        of_family("Wav2Vec2", "SequenceClassification", **SOUND),
        lambda: {"input_values": torch.randn(N, 400)},
    ),
    "AST": Case(
        of_family(
            "AST", "AudioClassification", **SMALL, patch_size=4, frequency_stride=4, time_stride=4,
            max_length=16, num_mel_bins=16,
        ),
        lambda: {"input_values": torch.randn(N, 16, 16)},
    ),
}  # fmt: skip
FUNCTIONAL_ALONE = {
    "OPT": of_next_words("OPT", word_embed_proj_dim=16, ffn_dim=24),
    "T5": Case(
        of_family(
            "T5", "TokenClassification", vocab_size=WORDS, d_model=16, d_kv=8, d_ff=24, num_layers=1,
            num_heads=2, num_labels=3, pad_token_id=0, decoder_start_token_id=0,
        ),
        texts,
        of_words,
    ),
    "Swin": of_images(
        "Swin", image_size=16, patch_size=2, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=4
    ),
}  # fmt: skip
"""Models that flatten examples and positions, or add one table of positions to all examples."""


@pytest.mark.soak
@pytest.mark.parametrize("name", [*FAMILIES, *FUNCTIONAL_ALONE])
def test_more_families_are_measured_as_by_one_backward_pass_per_example(name):
    case = FAMILIES.get(name) or FUNCTIONAL_ALONE[name]
    model, inputs, targets = made(case)
    if name in FAMILIES:
        assert_exact(model.eval(), inputs, targets, loss=case.loss, tolerance=1e-5)
        return
    with pytest.raises(ModelError):
        make_engine("ghost", model, case.loss)(inputs, targets)
    inputs.pop("attention_mask", None)  # `transformers` decides by its values, which torch.func cannot follow
    assert_exact(model.eval(), inputs, targets, loss=case.loss, engine="functional", tolerance=1e-5)


class Rows(Dataset):
    """Examples one by one, without groups."""

    def __init__(self, inputs: dict[str, Tensor], targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> tuple[dict[str, Tensor], Tensor]:
        return taken(self.inputs, index), self.targets[index]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["BERT", "GPT-2, LoRA", "ResNet"])
def test_they_train_privately_as_they_are(name):
    """With dropout, masks and everything that a Trainer tries before; what is frozen stays as it was."""
    case = CASES[name]
    model, inputs, targets = made(case)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    every = model.named_parameters(remove_duplicate=False)  # also by the names of tied weights
    trained = {name for name, parameter in every if parameter.requires_grad}
    run = equidp.Trainer(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        Rows(inputs, targets),
        method=equidp.DPSGD(clipping_bound=1.0),
        batch_size=4,
        steps=2,
        noise_multiplier=1.0,
        delta=1e-2,
        loss=case.loss,
    ).fit()
    for name, value in run.model.state_dict().items():
        assert torch.isfinite(value).all()
        assert torch.equal(value, before[name]) == (name not in trained), name
