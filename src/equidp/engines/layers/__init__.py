"""The table of layer rules. A new rule is one file and one line here."""

from __future__ import annotations

from torch import nn

from equidp.engines.layers.conv import CONV, CONV_TRANSPOSE
from equidp.engines.layers.decomposed import has_forward_of
from equidp.engines.layers.embedding import EMBEDDING, EMBEDDING_BAG
from equidp.engines.layers.linear import LINEAR, TRANSPOSED_LINEAR
from equidp.engines.layers.norm import GROUP_NORM, INSTANCE_NORM, LAYER_NORM, RMS_NORM
from equidp.engines.layers.rule import Rule

__all__ = ["RULES", "rule_for"]

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: LINEAR,
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), CONV),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), CONV_TRANSPOSE),
    nn.Embedding: EMBEDDING,
    nn.EmbeddingBag: EMBEDDING_BAG,
    nn.LayerNorm: LAYER_NORM,
    nn.RMSNorm: RMS_NORM,
    nn.GroupNorm: GROUP_NORM,
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), INSTANCE_NORM),
}

OTHERS: dict[str, Rule] = {"transformers.pytorch_utils.Conv1D": TRANSPOSED_LINEAR}
"""Rules of layers of other packages, which are not imported here, by the full names of their classes."""


def rule_for(module: nn.Module) -> Rule | None:
    """Return the rule, if the module computes what it assumes, from its own parameters."""
    for layer, rule in RULES.items():
        if isinstance(module, layer) and has_forward_of(module, layer):
            own = {name for name, _ in module.named_parameters()}
            return rule if own <= {"weight", "bias"} and rule.covers(module) else None
    kind = type(module)
    named = OTHERS.get(f"{kind.__module__}.{kind.__qualname__}")
    return None if "forward" in vars(module) else named
