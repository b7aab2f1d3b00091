"""The table of layer rules. A new rule is one class and one line here."""

from __future__ import annotations

from torch import nn

from equidp.engines.layers.call import Call
from equidp.engines.layers.conv import ConvCall, ConvTransposeCall
from equidp.engines.layers.decomposed import OpenedCall, attention_in_full, forward_for, replaced, unrolled
from equidp.engines.layers.embedding import EmbeddingBagCall, EmbeddingCall
from equidp.engines.layers.fallback import FallbackCall
from equidp.engines.layers.linear import LinearCall
from equidp.engines.layers.norm import GroupNormCall, InstanceNormCall, LayerNormCall, RMSNormCall
from equidp.engines.layers.rng_state import RandomState
from equidp.engines.layers.rule import RuledCall
from equidp.engines.layers.tape import Tape

__all__ = [
    "RULES",
    "Call",
    "FallbackCall",
    "OpenedCall",
    "RandomState",
    "RuledCall",
    "Tape",
    "attention_in_full",
    "forward_for",
    "replaced",
    "rule_for",
    "unrolled",
]

RULES: dict[type[nn.Module], type[RuledCall]] = {
    nn.Linear: LinearCall,
    nn.Conv1d: ConvCall,
    nn.Conv2d: ConvCall,
    nn.Conv3d: ConvCall,
    nn.ConvTranspose1d: ConvTransposeCall,
    nn.ConvTranspose2d: ConvTransposeCall,
    nn.ConvTranspose3d: ConvTransposeCall,
    nn.Embedding: EmbeddingCall,
    nn.EmbeddingBag: EmbeddingBagCall,
    nn.LayerNorm: LayerNormCall,
    nn.RMSNorm: RMSNormCall,
    nn.GroupNorm: GroupNormCall,
    nn.InstanceNorm1d: InstanceNormCall,
    nn.InstanceNorm2d: InstanceNormCall,
    nn.InstanceNorm3d: InstanceNormCall,
}


def rule_for(module: nn.Module) -> type[RuledCall] | None:
    """The rule that knows this module: its class computes what the rule assumes, from parameters of its own."""
    for layer, rule in RULES.items():
        if (
            isinstance(module, layer)
            and type(module).forward is layer.forward
            and "forward" not in vars(module)
        ):
            own = {name for name, parameter in module.named_parameters() if parameter is not None}
            return rule if rule.covers(module) and own <= {"weight", "bias"} else None
    return None
