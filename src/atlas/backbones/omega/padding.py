"""Where a batch is padded, and whether a model that carries a state can bear it."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from atlas.backbones.memory_lm.cache import AtlasCache


class Padding(NamedTuple):
    """Where padding stands.

    Attributes:
        real: False at padding [B, T]; None where no token need know of it: nothing follows padding
            that stands after a text, and tokens do not look ahead.
        inside: Whether padding stands between two tokens of a text.
        after: Whether padding stands after some text.
    """

    real: Tensor | None
    inside: bool
    after: bool

    def check(self, before: bool, cache: AtlasCache) -> None:
        """Refuse padding that would change what other tokens give.

        Args:
            before: Whether the model bears padding before a text.
            cache: What was read already.

        Raises:
            ValueError: With what to do instead.
        """
        if cache.ended:
            raise ValueError(
                "padding was read after a text, so the text cannot go on: pad prompts on the left, "
                "or read them one by one"
            )
        if self.inside:
            raise ValueError("attention_mask: padding inside a text; allowed: before or after it")
        if self.real is not None and cache.get_seq_length():
            raise ValueError("attention_mask: padding before the text, but a text has begun")
        if self.real is not None and not before:
            raise ValueError(
                "attention_mask: padding before a text would move the places where this model's "
                "chunks, segments or levels begin; pad on the right, or read texts one by one"
            )


NO_PADDING = Padding(None, inside=False, after=False)


def read_padding(mask: Tensor | None, length: int) -> Padding:
    """What a mask says of its last `length` tokens.

    Args:
        mask: Zero at padding, [B, past + T], or None.
        length: T.
    """
    if mask is None:
        return NO_PADDING
    if mask.dim() != 2:
        raise ValueError(f"attention_mask: {mask.dim()} dimensions; allowed: [batch, tokens]")
    real = mask[:, -length:].bool()
    if bool(real.all()):
        return NO_PADDING
    begun = real.cumsum(1) > 0
    goes_on = real.flip(1).cumsum(1).flip(1) > 0
    before = ~begun & goes_on
    inside = ~real & begun & goes_on
    return Padding(
        real=real if bool(before.any()) else None,
        inside=bool(inside.any()),
        after=not bool(goes_on.all()),
    )
