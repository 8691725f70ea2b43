"""Causal attention to the last w tokens, and to persistent tokens that are always in sight.

Tokens are taken in blocks of at most w, each with the w - 1 tokens before it, so cost grows with
the length and not with its square. Keys are kept as they are and turned by their place within the
block only when they are used: neither the length of a text nor where it was cut shows. Persistent
tokens have no place and are compared with queries that are not turned.

Queries and keys are turned by angles that grow with their place (rotary positions). Only
differences of places show in a product of two turned vectors, so places may be counted from
anywhere, such as from the start of a window: nothing depends on how long a text already is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from atlas.memory.kernels.omega_window import blocks_with_past
from atlas.memory.layer.settings import LayerSettings
from atlas.memory.layer.state import WindowState


def projection(width: int) -> nn.Linear:
    """A linear map from tokens to all heads together. No bias: padding of zero stays zero."""
    return nn.Linear(width, width, bias=False)


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, ..., T, H d] -> [B, H, ..., T, d]."""
    return torch.unflatten(x, -1, (heads, -1)).movedim(-2, 1)


def join_heads(x: Tensor) -> Tensor:
    """[B, H, T, d] -> [B, T, H d]."""
    return x.transpose(1, 2).flatten(2)


class Angles(NamedTuple):
    """Cosine and sine of every place and pair of channels, [places, d / 2] each."""

    cos: Tensor
    sin: Tensor

    def at(self, places: slice) -> Angles:
        """Those of some places."""
        return Angles(self.cos[places], self.sin[places])


def angles_of(places: int, width: int, base: float, like: Tensor) -> Angles:
    """Angles of places 0, 1, ... in the precision of `like`, float32 at least.

    Args:
        places: How many.
        width: d, even.
        base: The slowest pair of channels turns by about 1 / base per place.
        like: Gives device and dtype.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    pairs = torch.arange(0, width, 2, dtype=dtype, device=like.device) / width
    turns = torch.arange(places, dtype=dtype, device=like.device)[:, None] * base**-pairs
    return Angles(turns.cos(), turns.sin())


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn vectors [..., places, d]; channel i is paired with channel i + d / 2."""
    cos, sin = (part.to(x.dtype) for part in angles)
    first, second = x.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


class WindowAttention(nn.Module):
    """Attention to a sliding window; what comes out is not yet projected."""

    def __init__(self, settings: LayerSettings) -> None:
        """Attention of each token to itself and the `window - 1` tokens before it."""
        super().__init__()
        self.heads, self.head_width = settings.heads, settings.head_width
        self.window, self.rope_base = settings.window, settings.rope_base
        self.q_proj = projection(settings.width)
        self.k_proj = projection(settings.width)
        self.v_proj = projection(settings.width)

    def start(self, persistent: Tensor, streams: int) -> WindowState:
        """The state before the first token.

        Args:
            persistent: The persistent tokens of every sequence, [B, P, D].
            streams: Vectors that each token brings, S.
        """
        keys, values = (self._split(p(persistent)) for p in (self.k_proj, self.v_proj))
        batch, past = len(persistent), self.window - 1
        empty = keys.new_zeros(batch, self.heads, streams, past, self.head_width)
        seen = torch.zeros(batch, past, dtype=torch.bool, device=keys.device)
        return WindowState(empty, empty, seen, keys, values)

    def forward(
        self, x: Tensor, state: WindowState, real: Tensor, context: Tensor | None = None
    ) -> tuple[Tensor, WindowState]:
        """Attend at T tokens.

        Args:
            x: [B, T, D].
            state: Before the first of them.
            real: False at padding, [B, T].
            context: More to look at, at the same places, [B, T, D].

        Returns:
            [B, T, H d], and the state after the last token.
        """
        brought = torch.stack([x] if context is None else [x, context], 1)
        keys = torch.cat([state.keys, self._split(self.k_proj(brought))], -2)
        values = torch.cat([state.values, self._split(self.v_proj(brought))], -2)
        seen = torch.cat([state.seen, real], 1)
        after = slice(x.shape[1], None)
        new = WindowState(
            # Copies: views would keep every key and value of the sequence alive.
            keys=keys[..., after, :].clone(),
            values=values[..., after, :].clone(),
            seen=seen[:, after].clone(),
            prefix_keys=state.prefix_keys,
            prefix_values=state.prefix_values,
        )
        queries = self._split(self.q_proj(x))
        out = self._attend(queries, state._replace(keys=keys, values=values, seen=seen))
        return join_heads(out), new

    def _split(self, x: Tensor) -> Tensor:
        return split_heads(x, self.heads)

    def _attend(self, queries: Tensor, window: WindowState) -> Tensor:
        """[B, H, T, d] from T queries and a window that holds w - 1 + T tokens."""
        length, width = queries.shape[2:]
        block = min(length, self.window)
        fill = -length % block
        rows = torch.unflatten(pad(queries, (0, 0, 0, fill)), 2, (-1, block)) * width**-0.5
        keys, values = (
            blocks_with_past(pad(part, (0, 0, 0, fill)), block, self.window)
            for part in (window.keys, window.values)
        )
        places = keys.shape[-2]
        angles = angles_of(places, width, self.rope_base, keys)
        turned = rotate(rows, angles.at(slice(self.window - 1, None)))
        near = turned @ _join_streams(rotate(keys, angles)).mT
        seen = pad(window.seen, (0, fill)).unfold(1, places, block)
        allowed = _band(block, self.window, near.device) & seen[:, None, :, None]
        allowed = allowed.repeat(1, 1, 1, 1, keys.shape[2])
        # Not minus infinity: padding sees nothing at all, and must stay finite.
        near = near.masked_fill(~allowed, torch.finfo(near.dtype).min)
        far = rows @ window.prefix_keys[:, :, None].mT
        weights = _softmax(torch.cat([far, near], -1))
        out = weights[..., : far.shape[-1]] @ window.prefix_values[:, :, None]
        out = out + weights[..., far.shape[-1] :] @ _join_streams(values)
        return out.flatten(2, 3)[:, :, :length]


def _join_streams(part: Tensor) -> Tensor:
    """[B, H, S, n, places, d] -> [B, H, n, S * places, d]."""
    return part.transpose(2, 3).flatten(3, 4)


def _band(block: int, window: int, device: torch.device) -> Tensor:
    """Which places of a block with its past each of its tokens sees, [block, places]."""
    own = torch.arange(block, device=device)[:, None]
    place = torch.arange(block + window - 1, device=device)
    return (own <= place) & (place < own + window)


def _softmax(scores: Tensor) -> Tensor:
    dtype = torch.promote_types(scores.dtype, torch.float32)
    return scores.softmax(-1, dtype=dtype).to(scores.dtype)
