"""nn.MultiheadAttention from single products."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from equidp.engines.layers.projection import Block, Projection
from equidp.errors import ModelError

ATTENTION_PARAMETERS = {
    *("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias"),
    *("out_proj.weight", "out_proj.bias"),
}
"""All except those of `add_bias_kv`, which adds parameters to keys and values that are part of no product."""


def attention(
    module: nn.MultiheadAttention,
    project: Projection,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """nn.MultiheadAttention.forward; the same arguments and results."""
    if query.dim() != 3:
        raise ModelError(
            f"MultiheadAttention got queries of shape {list(query.shape)}; expected one sequence per "
            "example, 3 dimensions.",
            field="MultiheadAttention",
        )
    if is_causal and attn_mask is None:
        raise ModelError("is_causal is a hint about attn_mask; give the mask.", field="is_causal")
    batch_dimension = 0 if module.batch_first else 1
    queries, keys, values = (
        each.movedim(batch_dimension, 0).unflatten(-1, (module.num_heads, module.head_dim)).transpose(1, 2)
        for each in _project_inputs(module, project, query, key, value, batch_dimension)
    )
    mask = _mask(queries, keys, key_padding_mask, attn_mask)
    dropped = module.dropout if module.training else 0.0
    weights = None
    if need_weights:
        scores = queries @ keys.transpose(2, 3) / math.sqrt(module.head_dim)
        weights = dropout(torch.softmax(scores if mask is None else scores + mask, dim=-1), dropped)
        read = weights @ values
        weights = weights.mean(dim=1) if average_attn_weights else weights
    else:
        read = scaled_dot_product_attention(queries, keys, values, attn_mask=mask, dropout_p=dropped)
    read = read.transpose(1, 2).flatten(2).movedim(0, batch_dimension)
    bias = None if module.out_proj.bias is None else "out_proj.bias"
    return project(read, Block("out_proj.weight", bias), batch_dimension), weights


def _project_inputs(
    module: nn.MultiheadAttention,
    project: Projection,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    batch_dimension: int,
) -> tuple[Tensor, ...]:
    """Return queries, keys and values. Those that differ are positions of one product, side by side."""
    bias = None if module.in_proj_bias is None else "in_proj_bias"
    block, axis, parts = Block("in_proj_weight", bias), 1 - batch_dimension, (query, key, value)
    if module.in_proj_weight is None:  # three matrices and one bias, a product with 1 at one position
        weights = (f"{each}_proj_weight" for each in "qkv")
        products = [project(*each, batch_dimension) for each in zip(parts, map(Block, weights), strict=True)]
        if bias is None:
            return tuple(products)
        one = torch.ones_like(query.narrow(axis, 0, 1)[..., :1], requires_grad=False)
        shifts = project(one, Block(bias), batch_dimension).chunk(3, dim=-1)
        return tuple(product + shift for product, shift in zip(products, shifts, strict=True))
    if query is key and key is value:
        return project(query, block, batch_dimension).chunk(3, dim=-1)
    joined = project(torch.cat(parts, dim=axis), block, batch_dimension)
    by_part = joined.split([each.shape[axis] for each in parts], dim=axis)
    return tuple(each.chunk(3, dim=-1)[place] for place, each in enumerate(by_part))


def _mask(
    queries: Tensor, keys: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
) -> Tensor | None:
    """Return the terms to add to scores [batch, heads, queries, keys]: -inf at places with a True mask."""
    masks = []
    if attn_mask is not None:
        heads = attn_mask.dim() == 3
        masks.append(attn_mask.unflatten(0, (len(queries), -1)) if heads else attn_mask)
    if key_padding_mask is not None:
        masks.append(key_padding_mask[:, None, None, :])
    added = [
        torch.zeros_like(mask, dtype=queries.dtype).masked_fill(mask, -torch.inf)
        if mask.dtype == torch.bool
        else mask.to(queries.dtype)
        for mask in masks
    ]
    return sum(added[1:], added[0]) if added else None
