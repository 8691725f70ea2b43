"""The layer written out plainly, for comparison: dense tables, library parts, token loops."""

import torch
from torch.nn.functional import conv1d, normalize, rms_norm, silu

from atlas.memory.layer.attention import join_heads, split_heads
from atlas.memory.rules.naive import run_naive
from atlas.memory.rules.rule import Tokens
from atlas.memory.rules.state import initial_state
from tests.memory.layer.helpers import HEAD_WIDTH, HEADS, WIDTH


def split(x):
    return split_heads(x, HEADS)


def turned(x, base):
    """Rotary positions as they are usually written: complex numbers, absolute places."""
    half = x.shape[-1] // 2
    places = torch.arange(x.shape[-2], dtype=torch.float64)[:, None]
    angles = places * base ** (-torch.arange(half, dtype=torch.float64) / half)
    result = torch.complex(x[..., :half], x[..., half:]) * torch.polar(angles * 0 + 1, angles)
    return torch.cat([result.real, result.imag], -1)


def dense_attention(layer, x, persistent, context=None):
    """One table of all pairs; persistent tokens before it, without a place."""
    own = layer.attention
    q = split(own.q_proj(x))
    sources = [x] if context is None else [x, context]
    p_k, p_v = (split(p(persistent)) for p in (own.k_proj, own.v_proj))
    scores, values = [q @ p_k.mT], [p_v]
    places = torch.arange(x.shape[1])
    ago = places[:, None] - places
    for source in sources:
        k = turned(split(own.k_proj(source)), own.rope_base)
        near = turned(q, own.rope_base) @ k.mT
        scores.append(near.masked_fill((ago < 0) | (ago >= own.window), -torch.inf))
        values.append(split(own.v_proj(source)))
    weights = (torch.cat(scores, -1) / HEAD_WIDTH**0.5).softmax(-1)
    return join_heads(weights @ torch.cat(values, 2))


def plain_memory(layer, x, memory):
    """What the memories say, and M of the whole text after it."""
    settings, tokens = layer.settings, plain_tokens(layer, x)
    out, state = run_naive(tokens, initial_state(memory, settings.rule), settings.rule)
    for i, rule in enumerate(settings.local_rules):
        out = out + plain_local(tokens, layer.memory.local_initial[i], rule, settings.local_shard)
    return join_heads(out), state.memory


def plain_local(tokens, start, rule, shard):
    """A local memory with a window of one token, token by token, from nothing but its formulas."""
    assert (rule.window, rule.weighting, rule.read, rule.learner) == (
        1,
        "added",
        "after",
        "momentum",
    )
    outputs = []
    for t in range(tokens.length):
        place = t % shard
        if place == 0:
            memory, momentum, seen = start, 0.0, 0.0
        if rule.gradient == "exact" or place % rule.chunk == 0:
            measured = memory
        q, k, v = (part[:, :, t : t + 1] for part in tokens[:3])
        alpha, eta, theta = (part[:, :, t, None, None] for part in tokens[3:6])
        momentum = eta * momentum - theta * k.mT @ (k @ measured - v)
        memory = (1 - alpha) * memory + (1 - eta) * momentum
        seen = seen + k.mT @ k
        outputs.append((q if rule.queries == "plain" else q @ seen) @ memory)
    return torch.cat(outputs, 2)


def plain_tokens(layer, x):
    """Projection, convolution by the library, SiLU, unit q and k, gates."""
    own = layer.memory
    kernel = own.convolution.weight.T[:, None]
    mixed = torch.cat([p(x) for p in (own.q_proj, own.k_proj, own.v_proj)], -1).mT
    mixed = conv1d(mixed, kernel, padding=len(own.convolution.weight) - 1, groups=3 * WIDTH)
    q, k, v = (split(part) for part in silu(mixed[..., : x.shape[1]].mT).chunk(3, -1))
    rule = layer.settings.rule
    gates = {
        name: (x @ gate.weight.T + gate.bias).sigmoid().mT
        for name, gate in own.gates.named_children()
    }
    if rule.momentum is not None:
        gates["eta"] = torch.full_like(gates["alpha"], rule.momentum)
    if rule.window > 1:
        gates["gamma"] = torch.unflatten(gates["gamma"], 1, (HEADS, rule.window)).mT
    return Tokens(normalize(q, dim=-1), normalize(k, dim=-1), v, **gates)


def by_gate(layer, x, persistent, begun):
    known, _ = plain_memory(layer, x, begun)
    return blended(layer, x, dense_attention(layer, x, persistent), known)


def by_layer(layer, x, persistent, begun):
    known, _ = plain_memory(layer, x, begun)
    share = (x @ layer.share_proj.weight.T).sigmoid()
    read = rms_norm(x + share * normed(known, layer.memory_norm), (WIDTH,), eps=1e-6)
    return normed(dense_attention(layer, read, persistent), layer.attention_norm)


def by_context(layer, x, persistent, begun):
    """Segment by segment, everything before it read anew each time."""
    asked, recalled, seen = begun, x[:, :0], x[:, :0]
    for begin in range(0, x.shape[1], layer.settings.segment):
        piece = x[:, begin : begin + layer.settings.segment]
        queries = normalize(split(silu(layer.memory.q_proj(piece))), dim=-1)
        recalled = torch.cat([recalled, join_heads(queries @ asked)], 1)
        so_far = x[:, : recalled.shape[1]]
        new = dense_attention(layer, so_far, persistent, recalled)[:, begin:]
        seen = torch.cat([seen, new], 1)
        known, asked = plain_memory(layer, seen, begun)
    return blended(layer, x, seen, known)


def normed(x, norm):
    return rms_norm(x, (WIDTH,), norm.weight, 1e-6)


def blended(layer, x, seen, known):
    share = (x @ layer.share_proj.weight.T).sigmoid()
    return (1 - share) * normed(seen, layer.attention_norm) + share * normed(
        known, layer.memory_norm
    )
