"""Cases whose answer is known beforehand: made up so that a method either finds it or does not."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from atlas.backbones.transformer import TransformerBackbone
from atlas.errors import InputError
from atlas.ops.lowrank.factors import Layer
from atlas.runs.seeds import generator


def rotated_copies(count: int, rank: int, widths: tuple[int, int], seed: int) -> Layer:
    """One adapter, held by every client in another gauge, by turns rotated and reflected.

    Args:
        count: Clients.
        rank: Of the adapter.
        widths: d_in and d_out.
        seed: Of the adapter and of the gauges.

    Returns:
        Factors in float32, all of one product, with scales of one.
    """
    (d_in, d_out), draw = widths, generator(seed, "rotated-copies", rank, *widths)
    a = torch.from_numpy(draw.standard_normal((rank, d_in)))
    b = torch.from_numpy(draw.standard_normal((d_out, rank)))
    turns = torch.linalg.qr(torch.from_numpy(draw.standard_normal((count, rank, rank)))).Q
    wanted = torch.tensor([1.0, -1.0], dtype=torch.float64)[torch.arange(count) % 2]
    turns[:, 0] *= (torch.linalg.det(turns).sign() * wanted)[:, None]
    return Layer(
        (turns @ a).float(),
        (b @ turns.mT).float(),
        torch.full((count,), rank),
        torch.ones(count, dtype=torch.float64),
    )


def widened_twin(
    source: TransformerBackbone,
    folder: Path,
    *,
    width: int,
    before: Sequence[int] = (0,),
    gain: float = 1.0,
    seed: int = 0,
) -> Path:
    """A wider and deeper Llama that computes what a given one does, as a folder to load.

    Its hidden state is U h with U [width, d] of orthonormal columns, and values are turned within
    every head. The weights of norms are folded into the linear modules that read them: where they
    are not all equal, inputs of modules are the source's only after scaling each by its weight.
    The blocks that are added write nothing, so adapters in them do nothing either.

    Args:
        source: A Llama.
        folder: Where to; made if it is not there.
        width: Of the twin, at least the source's and a multiple of its heads.
        before: For each added block, the block of the source that it precedes: (0, 0) adds two at
            the bottom, range(depth) one before each.
        gain: How much larger inputs of modules are than the source's.
        seed: Of U and of the turns.

    Raises:
        InputError: If the source is no Llama, the width is too small or a block does not exist.
    """
    config = copy.deepcopy(source.model.config)
    if config.model_type != "llama":
        raise InputError(f"a twin is made of a llama, not of a {config.model_type}")
    depth, narrow = config.num_hidden_layers, config.hidden_size
    heads = config.num_attention_heads
    if width < narrow or width % heads or not all(0 <= block < depth for block in before):
        raise InputError(
            f"width {width}, before {list(before)}: allowed are multiples of {heads} from {narrow} "
            f"and blocks 0 to {depth - 1}"
        )
    old = {name: value.double() for name, value in source.model.state_dict().items()}
    draw = torch.from_numpy(generator(seed, "twin", width).standard_normal((width, narrow)))
    maker = _Twin(old, torch.linalg.qr(draw).Q, gain, config.head_dim, seed)
    made = {
        "model.embed_tokens.weight": old["model.embed_tokens.weight"] @ maker.wide.mT,
        "model.norm.weight": maker.norm,
        "lm_head.weight": maker.reading("lm_head.weight", "model.norm.weight"),
    }
    places = sorted([*((b, 0) for b in before), *((b, 1) for b in range(depth))])
    for place, (block, own) in enumerate(places):
        for name, value in maker.block(f"model.layers.{block}.", writes=own).items():
            made[f"model.layers.{place}.{name}"] = value
    config.update(
        {
            "hidden_size": width,
            "num_hidden_layers": len(places),
            "rms_norm_eps": config.rms_norm_eps * narrow / width,
            "tie_word_embeddings": False,
        }
    )
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    source.tokenizer.save_pretrained(folder)
    tensors = {name: value.to(source.dtype).contiguous() for name, value in made.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@dataclass(frozen=True)
class _Twin:
    """Turns weights of a Llama into those of its twin.

    Attributes:
        old: All weights by name, float64.
        wide: U [width, d].
        gain: How much larger inputs of modules become.
        head: Width of a head.
        seed: Of the turns of values.
    """

    old: dict[str, Tensor]
    wide: Tensor
    gain: float
    head: int
    seed: int

    @property
    def norm(self) -> Tensor:
        """Norms divide by a mean over more numbers; this makes up for it."""
        width, narrow = self.wide.shape
        return torch.full((width,), self.gain * (narrow / width) ** 0.5, dtype=torch.float64)

    def reading(self, name: str, norm: str) -> Tensor:
        """A module that reads the normed hidden state."""
        weight = self.old.get(name, self.old["model.embed_tokens.weight"])
        return (weight * self.old[norm]) @ self.wide.mT / self.gain

    def block(self, start: str, writes: int) -> dict[str, Tensor]:
        """The weights of a block; if it does not write, it leaves the hidden state alone."""
        attention, dense = "self_attn.", "mlp."
        first, second = f"{start}input_layernorm.weight", f"{start}post_attention_layernorm.weight"
        made = {"input_layernorm.weight": self.norm, "post_attention_layernorm.weight": self.norm}
        for name in ("q_proj", "k_proj", "v_proj"):
            own = f"{attention}{name}.weight"
            made[own] = self.reading(start + own, first)
        for name in ("gate_proj", "up_proj"):
            own = f"{dense}{name}.weight"
            made[own] = self.reading(start + own, second)
        for own in (f"{attention}o_proj.weight", f"{dense}down_proj.weight"):
            made[own] = writes * (self.wide @ self.old[start + own])
        self._turn_values(made, start)
        return made

    def _turn_values(self, made: dict[str, Tensor], start: str) -> None:
        """Turn the values of every head, and turn them back where they are read."""
        value, output = "self_attn.v_proj.weight", "self_attn.o_proj.weight"
        heads = made[value].shape[0] // self.head
        draw = generator(self.seed, "twin", "values", start)
        turns = torch.from_numpy(draw.standard_normal((heads, self.head, self.head)))
        turns = torch.linalg.qr(turns).Q
        by_head = made[value].reshape(heads, self.head, -1)
        made[value] = (turns @ by_head).reshape(made[value].shape)
        # Several query heads read the values of one.
        read = made[output].reshape(len(made[output]), heads, -1, self.head)
        turned = torch.einsum("dgqh,gih->dgqi", read, turns)
        made[output] = turned.reshape(made[output].shape)
