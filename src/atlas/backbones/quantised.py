"""Frozen weights in four bits (NF4, by bitsandbytes): less memory, never less time on a CPU.

The linear modules of the blocks are quantised and nothing else: embeddings, norms, poolers and
heads stay as they are. Whoever reads the `weight` of such a module gets a plain matrix.
"""

from __future__ import annotations

import importlib.util
from typing import Any, Literal

import torch
from torch import Tensor, nn

from atlas.backbones.transformer import TransformerBackbone
from atlas.errors import InputError

Quant = Literal["nf4"]
BLOCK = 64
"""Numbers that share a scale."""
EXTRA = "pip install 'atlas-personal[quant]'"


class QuantisedLinear(nn.Linear):
    """A linear module that keeps four bits of each weight, and a scale of every block of them.

    Both are buffers, so that twins and cut models share them and fingerprints see them.
    """

    packed: Tensor
    scales: Tensor
    code: Tensor

    def __init__(self, module: nn.Linear) -> None:
        """Quantises a module's weights; its bias is kept.

        Args:
            module: A plain one.
        """
        nn.Module.__init__(self)  # not nn.Linear's, which would make a weight
        self.in_features, self.out_features = module.in_features, module.out_features
        self.dtype = module.weight.dtype
        packed, state = _library().functional.quantize_4bit(
            module.weight.detach(), blocksize=BLOCK, quant_type="nf4"
        )
        self.register_buffer("packed", packed)
        self.register_buffer("scales", state.absmax)
        self.register_buffer("code", state.code)
        self.register_parameter("bias", module.bias)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]  # a parameter elsewhere
        """The weights as they count, [d_out, d_in]."""
        found: Tensor = _library().functional.dequantize_4bit(self.packed, self._state())
        return found

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name
        """As of a plain module with these weights."""
        made: Tensor = _library().matmul_4bit(input, self.packed, self._state(), bias=self.bias)
        return made

    def _state(self) -> Any:  # noqa: ANN401 - the library's own class
        return _library().functional.QuantState(
            self.scales,
            shape=torch.Size((self.out_features, self.in_features)),
            code=self.code,
            blocksize=BLOCK,
            quant_type="nf4",
            dtype=self.dtype,
        )

    @property
    def bytes(self) -> int:
        """What its weights take."""
        return sum(t.numel() * t.element_size() for t in self.buffers())


def _library() -> Any:  # noqa: ANN401 - it has no types
    import bitsandbytes

    return bitsandbytes


def quantise(backbone: TransformerBackbone) -> None:
    """Put quantised modules in the place of the linear ones of all blocks.

    Raises:
        InputError: If the library is missing, or there is no module that it could quantise.
    """
    if importlib.util.find_spec("bitsandbytes") is None:
        raise InputError(f"backbone.quant: nf4 needs bitsandbytes: {EXTRA}")
    count = 0
    for index in range(backbone.depth):
        for name, module in backbone.linears(index).items():
            if isinstance(module, nn.Linear):  # GPT-2 has modules of another kind
                parent, _, own = name.rpartition(".")
                setattr(backbone.body.get_submodule(parent), own, QuantisedLinear(module))
                count += 1
    if not count:
        raise InputError(
            f"backbone.quant: nf4 given, but the blocks of {backbone.name} "
            f"({backbone.family.name}) have no plain linear modules; allowed: null"
        )
    backbone.quant = "nf4"


def plain_state(model: nn.Module) -> dict[str, Tensor]:
    """The tensors of a model by name, as if nothing in it were quantised."""
    state = dict(model.state_dict())
    for name, module in model.named_modules():
        if isinstance(module, QuantisedLinear):
            for buffer in ("packed", "scales", "code"):
                del state[f"{name}.{buffer}"]
            state[f"{name}.weight"] = module.weight
    return state


def linears_outside(backbone: TransformerBackbone) -> list[str]:
    """Names of linear modules that stay plain, as other loaders must be told: those of heads."""
    if backbone.can_generate:
        heads = ["lm_head", *(layer.name for layer in backbone.head_layers)]
    else:
        heads = ["pooler", *(layer.name.split(".")[0] for layer in backbone.head_layers)]
    return list(dict.fromkeys(heads))
