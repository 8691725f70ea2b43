"""Adapters that more than one backbone can share: cores, what is around them, and gates.

Cores (P, Q) have the same size in every backbone; the frozen A and B around them are the backbone's
own. Gates are there where what is delivered stands beside a client's own adapter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from atlas.build.alignment import find_bases
from atlas.build.models import core_places, find_model, start_cohort
from atlas.config.federation import FederationConfig
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Frozen, Gating, Layout, Member
from atlas.federation.adapters.cohort import Cohort
from atlas.federation.alignment.bases import Bases, Basis
from atlas.federation.batching.forward import Model
from atlas.federation.strategies.base import AdapterKind, Strategy


def adapter_kind(config: FederationConfig, strategy: Strategy) -> AdapterKind:
    """What clients train: what the settings say, or else the strategy.

    Raises:
        InputError: The strategy, or another setting, does not go with it.
    """
    kind = config.adapter.kind or strategy.adapter
    if kind == "lora":
        if config.adapter.others:
            raise InputError(
                f"adapter.others: {config.adapter.others}, but all adapters are plain ones; "
                "allowed: 0, or adapter.kind=pq"
            )
        if strategy.space == "core":
            raise InputError(
                f"adapter.kind: lora, but {strategy.name} mixes cores; allowed: pq, null"
            )
        return kind
    if strategy.deliver == "merge" or strategy.trains != "both":
        raise InputError(
            f"adapter.kind: pq, but {strategy.name} works on A and B, which cores leave frozen; "
            "allowed: lora, null"
        )
    if config.ranks.method != "fixed" or config.adapter.ranks:
        raise InputError(
            "adapter.kind: pq, but cores are of one rank for all clients; set adapter.rank, "
            "ranks.method=fixed and no adapter.ranks"
        )
    if config.adapter.sends == "whole" and config.adapter.gate != "scalar":
        raise InputError(
            f"adapter.sends: whole, but gate {config.adapter.gate} weighs every token by itself; "
            "allowed: local, or adapter.gate=scalar"
        )
    if config.adapter.others and (config.route.budget or strategy.budget) < 1:
        raise InputError(
            f"adapter.others: {config.adapter.others}, but some modules are not to travel, and "
            "which is told for cores alone; allowed: 0, or route.budget=1"
        )
    if config.split.point is not None:
        raise InputError("adapter.kind: pq, but split.point is set; allowed: null")
    return kind


def find_models(
    config: FederationConfig, strategy: Strategy, names: Sequence[str]
) -> dict[str, Model]:
    """The models of all backbones, with the adapters that strategy and settings ask for.

    Raises:
        InputError: If cores of one backbone have no match in another.
    """
    kind = adapter_kind(config, strategy)
    found = {name: find_model(config, name, config.adapter.others) for name in names}
    if strategy.deliver == "global":
        found = {n: _gated(model, config.adapter.gate) for n, model in found.items()}
    if kind == "lora":
        return found
    places = {n: core_places(model.backbone, config.adapter) for n, model in found.items()}
    cores = {n: [place for place in own if place] for n, own in places.items()}
    first = names[0]
    for name in names:
        if cores[name] != cores[first]:
            raise InputError(
                f"adapter.modules: {', '.join(cores[name])} in {name}, but "
                f"{', '.join(cores[first])} in {first}; cores need a match in every backbone"
            )
    cored = {
        n: replace(model, layout=replace(model.layout, cores=places[n]))
        for n, model in found.items()
    }
    bases = bases_of(config, cored)
    return {
        n: replace(model, bases=_frozen(model.layout, bases.pairs[n])) for n, model in cored.items()
    }


def bases_of(config: FederationConfig, models: Mapping[str, Model]) -> Bases:
    """What is frozen around the cores of all backbones; found once per process."""
    parts = {name: replace(model, layout=_cores_of(model.layout)) for name, model in models.items()}
    rank, length = config.adapter.rank, config.backbone.max_length
    return find_bases(config.align, parts, rank, config.seed, length)


def _cores_of(layout: Layout) -> Layout:
    """The modules with a core, in the order of their places."""
    chosen = sorted(
        (i for i, place in enumerate(layout.cores) if place), key=lambda i: layout.cores[i]
    )
    return replace(
        layout,
        modules=tuple(layout.modules[i] for i in chosen),
        widths=tuple(layout.widths[i] for i in chosen),
        cores=tuple(layout.cores[i] for i in chosen),
    )


def _frozen(layout: Layout, bases: Sequence[Basis]) -> dict[str, Frozen]:
    """What is around the cores of a backbone, in the sizes of the one all are aligned with."""
    return {
        module: Frozen(basis.a / basis.size_in, basis.b * basis.size_out, basis.shift)
        for module, basis in zip(_cores_of(layout).modules, bases, strict=True)
    }


def tell_alignment(config: FederationConfig, models: Mapping[str, Model]) -> dict[str, Any] | None:
    """How well what is around cores matches, as plain values; None if there is nothing to match.

    Backbones are told by their own names: those of the settings may be folders.
    """
    if len(models) < 2 or not all(model.bases for model in models.values()):
        return None
    bases = bases_of(config, models)
    named = {name: model.backbone.name for name, model in models.items()}
    summary = bases.summary()
    return {
        "method": config.align.method,
        "reference": named[bases.reference],
        "backbones": {named[name]: summary[name] for name in named if name in summary},
        "modules": [{**entry, "backbone": named[str(entry["backbone"])]} for entry in bases.report],
    }


def _gated(model: Model, gate: Gating) -> Model:
    return replace(model, layout=replace(model.layout, gate=gate))


def core_cohort(config: FederationConfig, model: Model, members: Sequence[Member]) -> Cohort:
    """The cores of all clients, whatever their backbones, as a server keeps them."""
    places = tuple(place for place in model.layout.cores if place)
    rank = config.adapter.rank
    layout = Layout(
        backbone="core",
        modules=places,
        widths=((rank, rank),) * len(places),
        head=(),
        alpha=model.layout.alpha,
        cores=places,
    )
    sized = [replace(member, ranks=(rank,) * len(places)) for member in without_labels(members)]
    return start_cohort(config, replace(model, layout=layout), sized)


def plain_cohort(
    config: FederationConfig, model: Model, members: Sequence[Member]
) -> Cohort | None:
    """The plain adapters that clients of one backbone have beside their cores; None without any."""
    layout = model.layout.beside()
    plain = [i for i, place in enumerate(layout.cores) if not place]
    if not plain:
        return None
    own = replace(
        layout,
        modules=tuple(layout.modules[i] for i in plain),
        widths=tuple(layout.widths[i] for i in plain),
        cores=(),
    )
    sized = [
        replace(member, ranks=tuple(member.ranks[i] for i in plain))
        for member in without_labels(members)
    ]
    return start_cohort(config, replace(model, layout=own), sized)


def core_sent(config: FederationConfig, layout: Layout) -> Literal["local", "whole"]:
    """Which core of a client travels."""
    weighed = bool(layout.cores) and layout.gate == "scalar"
    return config.adapter.sends or ("whole" if weighed else "local")


def beside(model: Model) -> Model:
    """A model whose adapters are those that stand beside clients' own."""
    return replace(model, layout=model.layout.beside())


def without_labels(members: Sequence[Member]) -> list[Member]:
    """Members as those know them who never see heads."""
    return [replace(member, label_set=()) for member in members]
