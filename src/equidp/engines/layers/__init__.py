"""The table of layer rules. A new rule is one file and one line here."""

from __future__ import annotations

from functools import partial

from torch import nn

from equidp.engines.layers.conv import ConvGradients
from equidp.engines.layers.conv_operands import conv_operands, conv_transpose_operands
from equidp.engines.layers.embedding import (
    EmbeddingBagGradients,
    EmbeddingGradients,
    covers_bag,
    covers_embedding,
)
from equidp.engines.layers.linear import LinearGradients
from equidp.engines.layers.norm import (
    GroupNormCall,
    InstanceNormCall,
    LayerNormGradients,
    RMSNormGradients,
    covers_instance_norm,
)
from equidp.engines.layers.rule import LayerCall, Rule

__all__ = ["RULES", "rule_for"]

_CONV = Rule(partial(LayerCall, partial(ConvGradients, conv_operands)))
_CONV_TRANSPOSE = Rule(partial(LayerCall, partial(ConvGradients, conv_transpose_operands)))
_INSTANCE_NORM = Rule(InstanceNormCall, covers_instance_norm)

RULES: dict[type[nn.Module], Rule] = {
    nn.Linear: Rule(partial(LayerCall, LinearGradients.read)),
    **dict.fromkeys((nn.Conv1d, nn.Conv2d, nn.Conv3d), _CONV),
    **dict.fromkeys((nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), _CONV_TRANSPOSE),
    nn.Embedding: Rule(partial(LayerCall, EmbeddingGradients), covers_embedding),
    nn.EmbeddingBag: Rule(partial(LayerCall, EmbeddingBagGradients), covers_bag),
    nn.LayerNorm: Rule(partial(LayerCall, LayerNormGradients)),
    nn.RMSNorm: Rule(partial(LayerCall, RMSNormGradients)),
    nn.GroupNorm: Rule(GroupNormCall),
    **dict.fromkeys((nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d), _INSTANCE_NORM),
}


def rule_for(module: nn.Module) -> Rule | None:
    """Returns the rule for this module, if its class computes what the rule assumes, from parameters of its own."""
    for layer, rule in RULES.items():
        if (
            isinstance(module, layer)
            and type(module).forward is layer.forward
            and "forward" not in vars(module)
        ):
            own = {name for name, _ in module.named_parameters()}
            return rule if rule.covers(module) and own <= {"weight", "bias"} else None
    return None
