"""The last block where only one place of each text is read.

A classification head reads the first token of an encoder, or the last of a causal model. Every
token still gives its key and value, but queries, output projection and feed-forward part are
needed at that one place: a sixth of the block's work. Letters in shapes: N texts, T tokens,
D width, H heads, E width of a head.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from atlas.backbones.blocks import Model, Position


def read_bert(block: Model, hidden: Tensor, mask: Tensor, position: Position, at: Tensor) -> Tensor:
    """What a BERT block puts out at place `at` [N] of each text, [N, 1, D]."""
    del position
    here, own = pick(hidden, at), block.attention.self
    seen = _attend(
        own.query(here), own.key(hidden), own.value(hidden), pick_mask(mask, at), own.scaling
    )
    attended = block.attention.output(seen, here)
    out: Tensor = block.output(block.intermediate(attended), attended)
    return out


def read_distilbert(
    block: Model, hidden: Tensor, mask: Tensor, position: Position, at: Tensor
) -> Tensor:
    """What a DistilBERT block puts out at place `at` [N] of each text, [N, 1, D]."""
    del position
    here, own = pick(hidden, at), block.attention
    seen = _attend(
        own.q_lin(here), own.k_lin(hidden), own.v_lin(hidden), pick_mask(mask, at), own.scaling
    )
    attended = block.sa_layer_norm(own.out_lin(seen) + here)
    out: Tensor = block.output_layer_norm(block.ffn(attended) + attended)
    return out


def read_mpnet(
    block: Model, hidden: Tensor, mask: Tensor, position: Position, at: Tensor
) -> Tensor:
    """What an MPNet block puts out at place `at` [N] of each text, [N, 1, D]."""
    here, own = pick(hidden, at), block.attention.attn
    allowed = pick_mask(mask, at)
    if allowed.dtype == torch.bool:
        floor = torch.finfo(hidden.dtype).min
        allowed = torch.zeros_like(allowed, dtype=hidden.dtype).masked_fill(~allowed, floor)
    bias = allowed + pick_mask(position, at)
    scaling = own.attention_head_size**-0.5
    seen = _attend(own.q(here), own.k(hidden), own.v(hidden), bias, scaling)
    attended = block.attention.LayerNorm(own.o(seen) + here)
    out: Tensor = block.output(block.intermediate(attended), attended)
    return out


def read_llama(
    block: Model, hidden: Tensor, mask: Tensor, position: Position, at: Tensor
) -> Tensor:
    """What a Llama block (Mistral, Qwen) puts out at place `at` [N] of each text, [N, 1, D]."""
    _, (cos, sin) = position
    here, own = pick(hidden, at), block.self_attn
    normed = block.input_layernorm(hidden)
    query = _heads(own.q_proj(pick(normed, at)), own.head_dim)
    key = _heads(own.k_proj(normed), own.head_dim)
    if hasattr(own, "q_norm"):
        query, key = own.q_norm(query), own.k_norm(key)
    cos, sin = (angles.expand(len(hidden), -1, -1) for angles in (cos, sin))
    query = _turn(query, pick(cos, at), pick(sin, at))
    value = _heads(own.v_proj(normed), own.head_dim)
    seen = _attend_heads(query, _turn(key, cos, sin), value, pick_mask(mask, at), own.scaling)
    attended = here + own.o_proj(seen)
    out: Tensor = attended + block.mlp(block.post_attention_layernorm(attended))
    return out


def pick(values: Tensor, at: Tensor) -> Tensor:
    """One place of each row: [N, T, D] -> [N, 1, D]."""
    return values[torch.arange(len(values), device=values.device), at][:, None]


def pick_mask(mask: Tensor, at: Tensor) -> Tensor:
    """What one place of each text may see: [N, H or 1, T, T] -> [N, H or 1, 1, T]."""
    return mask.expand(len(at), -1, -1, -1)[torch.arange(len(at), device=at.device), :, at][
        :, :, None
    ]


def _heads(values: Tensor, width: int) -> Tensor:
    """[N, T, D] -> [N, H, T, E]; norms over a head's width do not mind the order."""
    return values.reshape(*values.shape[:2], -1, width).transpose(1, 2)


def _turn(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Heads turned by the angles of their places [N, T, E]."""
    first, second = heads.chunk(2, dim=-1)
    return heads * cos[:, None] + torch.cat([-second, first], dim=-1) * sin[:, None]


def _attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float) -> Tensor:
    """Attention of one place over all, [N, 1, D], for heads whose width follows from scaling."""
    width = round(scaling**-2)
    return _attend_heads(
        _heads(query, width), _heads(key, width), _heads(value, width), mask, scaling
    )


def _attend_heads(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float
) -> Tensor:
    shared = query.shape[1] != key.shape[1]
    seen = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, scale=scaling, enable_gqa=shared
    )
    return seen.transpose(1, 2).flatten(2)
