"""The protocol between the federation and a frozen model, whatever library holds it.

Letters in shapes: N examples, T tokens, D width, V vocabulary, L labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from atlas.federation.adapters.lora_hooks import LoraChange, Projected
from atlas.federation.batching.packing import Packing
from atlas.federation.clients import Example, Task

Activation = Literal["identity", "tanh", "relu", "gelu"]
ACTIVATIONS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "tanh": torch.tanh,
    "relu": torch.relu,
    "gelu": functional.gelu,
}


@dataclass(frozen=True)
class Inputs:
    """Tokenised examples, right-padded.

    Attributes:
        ids: Token ids [N, T].
        mask: True at real tokens [N, T].
        types: Segment ids [N, T], zeros where the model has none.
        targets: Causal tasks: the token that should follow each position, -100 where no loss is
            taken [N, T]. None for classification.
    """

    ids: Tensor
    mask: Tensor
    types: Tensor
    targets: Tensor | None = None


@dataclass(frozen=True)
class HeadLayer:
    """One trained linear layer of a classification head.

    Attributes:
        name: Module name inside AutoModelForSequenceClassification, such as `classifier`.
        d_in: Input width.
        d_out: Output width, 0 for the last layer (as many rows as the client has labels).
        bias: Whether the layer has a bias.
        activation: Applied to the layer's output.
    """

    name: str
    d_in: int
    d_out: int
    bias: bool
    activation: Activation


@dataclass(frozen=True)
class Footprint:
    """What the frozen weights of one backbone take.

    Attributes:
        embeddings: Bytes of the weights below the first block.
        blocks: Bytes of each block's weights.
        top: Bytes of the weights above the last block.
    """

    embeddings: int
    blocks: tuple[int, ...]
    top: int


class Backbone(Protocol):
    """A frozen model in eval mode, cut into embed, blocks and head.

    A model that is not `cut_into_blocks` runs as a whole in its last block; those below pass on
    what they are given, so there is nothing to keep or to split.
    """

    name: str
    depth: int
    width: int
    device: torch.device
    dtype: torch.dtype
    head_layers: tuple[HeadLayer, ...]
    can_generate: bool
    max_positions: int
    cut_into_blocks: bool

    @property
    def size(self) -> Footprint:
        """What the model's weights take on a device."""
        ...

    def tokenize(
        self, task: Task, examples: Sequence[Example], max_length: int, *, ends: bool = True
    ) -> Inputs:
        """Tokenise examples; causal answers are never truncated away, prompts are.

        Without `ends`, no loss is taken on the end of a causal text.
        """
        ...

    def embed(self, inputs: Inputs) -> Tensor:
        """The input of block 0 [N, T, D]."""
        ...

    def context(self, hidden: Tensor, mask: Tensor) -> object:
        """What every block needs beside its input: attention mask, positions, biases."""
        ...

    def block(self, index: int, hidden: Tensor, context: object) -> Tensor:
        """Block `index` applied to [N, T, D]."""
        ...

    def linears(self, index: int) -> dict[str, nn.Linear]:
        """The linear modules of a block by full name, such as `encoder.layer.4.output.dense`."""
        ...

    def select(self, block: int, modules: Sequence[str]) -> tuple[str, ...]:
        """Full names of the block's linear modules meant by short names or suffixes."""
        ...

    def features(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """What the classification head reads [N, D], from the last block's output."""
        ...

    def projections(self, index: int) -> tuple[int, ...]:
        """Widths of what `project` gives; none if a block cannot be taken apart."""
        ...

    def project(self, index: int, hidden: Tensor) -> tuple[Tensor, ...]:
        """A block's queries, keys and values [..., .], from its input [..., D]."""
        ...

    def packed_block(
        self,
        index: int,
        hidden: Tensor,
        packing: Packing,
        context: object,
        projected: Projected | None = None,
    ) -> Tensor:
        """As `block`, on packed tokens [n, S, D].

        Args:
            index: Which block.
            hidden: Its input.
            packing: Where texts are.
            context: As `context` gave it.
            projected: What `project` gave for that input, and what active adapters add to it;
                then the modules it comes from are not called.
        """
        ...

    def packed_features(
        self,
        hidden: Tensor,
        packing: Packing,
        context: object,
        changes: Mapping[str, LoraChange] | None,
    ) -> Tensor:
        """What the classification head reads [N, D], from the last block's packed input.

        As `features` after the last `block`; only what the head reads need be computed.

        Args:
            hidden: The last block's input [n, S, D].
            packing: Where texts are.
            context: As `context` gave it.
            changes: What active adapters add, by module; then modules whose work can be done
                cheaper need not be called. None to call them all.
        """
        ...

    def packed_places(
        self, hidden: Tensor, packing: Packing, context: object, at: Tensor
    ) -> Tensor:
        """The last block's output at places `at` [N, Q] of each text [N, Q, D].

        As the last `block` on its packed input; nothing but keys and values need be computed for
        other places.
        """
        ...

    def vocabulary_losses(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """The loss of each expected token [M], from rows of the last block's output [M, D]."""
        ...

    def vocabulary_logits(self, hidden: Tensor) -> Tensor:
        """Language-model logits [..., V] from rows of the last block's output [..., D]."""
        ...

    def generate(
        self, prompts: Sequence[str], max_new_tokens: int, max_length: int | None = None
    ) -> list[str]:
        """Greedy continuations of prompts (under whatever adapters are active).

        What a prompt has beyond `max_length` tokens is cut from its left.
        """
        ...

    def twins(self, count: int) -> Sequence[Backbone]:
        """This one and others with the same weights in modules of their own, `count` in all.

        A thread may hang hooks on one while others use theirs.
        """
        ...

    @property
    def weights_id(self) -> str:
        """`fingerprint` as first taken."""
        ...

    def fingerprint(self) -> str:
        """sha256 over all parameters and buffers, to show that they never change."""
        ...
