"""One client's adapter: where it sits, which parts it has, and what they are called.

On disk, on the wire and in stacks an adapter's tensors have names: A and B of every module with a
plain adapter, P - I and Q of every module with a core (PQ-LoRA), the gate of every module where
something may stand beside the client's own, weight and bias of every head layer. This is the only
file that spells them. Functions that take `tensors` work on one client's and on stacked ones alike;
dimension 0 of the latter is the client.

Cores are called by their place, such as `1.value` for the values of the second adapted block: those
of backbones of other widths and depths then have the same names and sizes. They are held as P - I,
so that nothing is zero, and what decays weights pulls to no change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from atlas.federation.batching.backbone import HeadLayer
from atlas.runs.checkpoint import tensors_sha256
from atlas.runs.seeds import generator

HEAD_STD = 0.02
_A, _B, _HEAD = "lora_a/", "lora_b/", "head/"
_P, _Q, _GATE, _BIAS = "core_p/", "core_q/", "gate/", "lora_bias/"
Gating = Literal["none", "scalar", "input"]
"""How a module weighs its own adapter against one beside it: not at all, by a number that is
learned, or by one that depends on the token."""


class Factors(NamedTuple):
    """A [r, d_in] and B [d_out, r] of one module, or of many clients [n, ...]."""

    a: Tensor
    b: Tensor


class Frozen(NamedTuple):
    """What is around a core: it adds B ((P - I) (A x - shift) + Q).

    A and B are orthonormal up to a factor that brings A x and B^T y to the size they have in the
    backbone that all others are aligned with, and the shift does so for the mean of A x.
    """

    a: Tensor
    b: Tensor
    shift: Tensor


def factor_names(module: str) -> tuple[str, str]:
    """What A and B of a module are called."""
    return _A + module, _B + module


def core_names(place: str) -> tuple[str, str]:
    """What P - I and Q of the core at a place are called."""
    return _P + place, _Q + place


def gate_name(module: str) -> str:
    """What the gate of a module is called."""
    return _GATE + module


def bias_name(module: str) -> str:
    """What a constant is called that a module adds beside B A, in adapters read from exports."""
    return _BIAS + module


def head_name(own: str) -> str:
    """What a tensor of the head is called that the model itself calls `own`."""
    return _HEAD + own


def head_names(layer: str) -> tuple[str, str]:
    """What weight and bias of a head layer are called."""
    return head_name(f"{layer}.weight"), head_name(f"{layer}.bias")


def is_a(name: str) -> bool:
    """Whether a tensor is some module's A."""
    return name.startswith(_A)


def is_factor(name: str) -> bool:
    """Whether a tensor is some module's A or B."""
    return name.startswith((_A, _B))


def is_core(name: str) -> bool:
    """Whether a tensor is P - I or Q of some core."""
    return name.startswith((_P, _Q))


def is_gate(name: str) -> bool:
    """Whether a tensor is some module's gate."""
    return name.startswith(_GATE)


def is_head(name: str, layer: str = "") -> bool:
    """Whether a tensor belongs to the head, or to one layer of it."""
    return name.startswith(f"{_HEAD}{layer}." if layer else _HEAD)


def is_head_weight(name: str) -> bool:
    """Whether a tensor is the weight of a head layer."""
    return is_head(name) and name.endswith(".weight")


def factors_of(tensors: Mapping[str, Tensor], module: str) -> Factors:
    """A and B of a module."""
    a, b = factor_names(module)
    return Factors(tensors[a], tensors[b])


def body_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All factors and cores, under their full names."""
    return {name: value for name, value in tensors.items() if is_factor(name) or is_core(name)}


def heads_of(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All tensors of the head, under their full names."""
    return {name: value for name, value in tensors.items() if is_head(name)}


class Adapter(dict[str, Tensor]):
    """One client's tensors by name, without padding and without dimension 0."""

    @classmethod
    def of(
        cls,
        layers: Mapping[str, tuple[Tensor, Tensor]],
        head: Mapping[str, Tensor],
        biases: Mapping[str, Tensor] | None = None,
    ) -> Adapter:
        """An adapter from its parts, as PEFT folders hold them; the inverse of the properties."""
        found = cls()
        for module, pair in layers.items():
            found.update(zip(factor_names(module), pair, strict=True))
        found.update({head_name(name): value for name, value in head.items()})
        found.update({bias_name(name): value for name, value in (biases or {}).items()})
        return found

    @property
    def layers(self) -> dict[str, Factors]:
        """A and B by module."""
        modules = [name.removeprefix(_A) for name in self if is_a(name)]
        return {module: factors_of(self, module) for module in modules}

    @property
    def biases(self) -> dict[str, Tensor]:
        """Constants that modules add beside B A; none but in adapters made from cores."""
        return {n.removeprefix(_BIAS): v for n, v in self.items() if n.startswith(_BIAS)}

    @property
    def head(self) -> dict[str, Tensor]:
        """Weights and biases of the head by the names the model itself has for them."""
        return {name.removeprefix(_HEAD): value for name, value in heads_of(self).items()}

    def only(self, wanted: Callable[[str], bool]) -> Adapter:
        """The tensors with such names."""
        return Adapter({name: value for name, value in self.items() if wanted(name)})


def adapter_sha256(adapter: Mapping[str, Tensor]) -> str:
    """A hash of one adapter's names, shapes and bits."""
    return tensors_sha256(adapter)


@dataclass(frozen=True)
class Layout:
    """Where adapters sit in one backbone.

    Attributes:
        backbone: The backbone's name; part of the address of initial values.
        modules: Full names of the adapted linear modules, in block order.
        widths: (d_in, d_out) of each module.
        head: The trained head layers.
        alpha: A layer adds (alpha / rank) * B @ A.
        cores: The place of each module's core, empty where its adapter is A and B; no entries at
            all if that is so everywhere. A core adds B ((P - I) A x + Q), with A and B frozen,
            orthonormal and the backbone's own (`batching.forward.Model.bases`).
        gate: How what stands beside a module's own adapter is weighed.
        biased: Whether modules also add a constant.
    """

    backbone: str
    modules: tuple[str, ...]
    widths: tuple[tuple[int, int], ...]
    head: tuple[HeadLayer, ...]
    alpha: float
    cores: tuple[str, ...] = ()
    gate: Gating = "none"
    biased: bool = False

    def place(self, module: int) -> str:
        """Where the core of a module is; empty if its adapter is A and B."""
        return self.cores[module] if self.cores else ""

    def parts(self, module: int) -> tuple[str, str]:
        """What the two tensors of a module's adapter are called."""
        place = self.place(module)
        return core_names(place) if place else factor_names(self.modules[module])

    def beside(self) -> Layout:
        """What may stand beside a client's adapter: the same modules, nothing of its own."""
        return replace(self, head=(), gate="none")


@dataclass(frozen=True)
class Member:
    """What must be known of a client to size its adapter.

    Attributes:
        id: Client id.
        ranks: One rank per module.
        label_set: Heads mix only between equal label sets; empty for causal tasks.
    """

    id: str
    ranks: tuple[int, ...]
    label_set: tuple[str, ...] = ()

    @property
    def labels(self) -> int:
        """Number of labels; zero without a head."""
        return len(self.label_set)


def adapter_shapes(layout: Layout, member: Member) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor of one client's adapter."""
    shapes: dict[str, tuple[int, ...]] = {}
    sizes = zip(layout.modules, layout.widths, member.ranks, strict=True)
    for i, (module, (d_in, d_out), rank) in enumerate(sizes):
        core = bool(layout.place(i))
        both = ((rank, rank), (rank,)) if core else ((rank, d_in), (d_out, rank))
        shapes.update(zip(layout.parts(i), both, strict=True))
        if layout.gate != "none":
            shapes[gate_name(module)] = (d_in if layout.gate == "input" else 1,)
        if layout.biased:
            shapes[bias_name(module)] = (d_out,)
    for layer in layout.head if member.labels else ():
        rows = layer.d_out or member.labels
        weight, bias = head_names(layer.name)
        shapes[weight] = (rows, layer.d_in)
        if layer.bias:
            shapes[bias] = (rows,)
    return shapes


def initial_adapter(layout: Layout, member: Member, seed: int) -> Adapter:
    """The starting adapter: the same draw for every client, cut to the client's sizes.

    A is uniform with the bound of a default linear layer and B is zero, and so are P - I and Q of a
    core: the adapter starts as no change. A gate starts at zero, which is one half. Draws are
    addressed by backbone and module and are prefix-stable: a client of rank r holds the first r
    rows of what a client of higher rank holds.
    """
    adapter = Adapter()
    for name, shape in adapter_shapes(layout, member).items():
        address = generator(seed, "init", layout.backbone, name)
        if is_a(name):
            draw = address.uniform(-1.0, 1.0, size=shape) / shape[1] ** 0.5
        elif is_head_weight(name):
            draw = address.standard_normal(size=shape) * HEAD_STD
        else:
            adapter[name] = torch.zeros(shape, dtype=torch.float64)
            continue
        adapter[name] = torch.from_numpy(draw)
    return adapter
