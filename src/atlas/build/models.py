"""From settings to models, and the adapters that clients start with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from weakref import WeakKeyDictionary

import torch

from atlas.backbones.compiled import check_adapted
from atlas.backbones.fitted_cut import ENDING, fitted_folder
from atlas.backbones.load import load_backbone
from atlas.backbones.transformer import TransformerBackbone
from atlas.config.federation import FederationConfig, ServerSettings
from atlas.config.training import AdapterSettings, TrainSettings
from atlas.data.anchors import anchor_texts
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Layout, Member
from atlas.federation.adapters.cohort import (
    Cohort,
    InMemory,
    TensorPlace,
    initial_cohort,
    stacked_shapes,
)
from atlas.federation.batching.backbone import Backbone
from atlas.federation.batching.forward import Model
from atlas.federation.batching.prefix_cache import PrefixCache
from atlas.federation.clients import Holder
from atlas.federation.state.mapped import OnDisk
from atlas.federation.training.evaluate import Limits

CACHES: WeakKeyDictionary[TransformerBackbone, dict[tuple[int, int, str, str], PrefixCache]] = (
    WeakKeyDictionary()
)
HOST_MB, DEVICE_MB = 16, 2048
"""Memory for outputs of lower blocks, where no setting says. A file's pages are read as fast as
one's own as long as the system has room for them, but not from an accelerator."""
FITTED_ON = 256
"""Generated texts that the head of a cut model is fitted on."""
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


def text_limits(config: FederationConfig) -> Limits:
    """The settings' limits on text."""
    return Limits(config.backbone.max_length, config.backbone.max_new_tokens)


def open_backbone(config: FederationConfig, name: str) -> TransformerBackbone:
    """The backbone of that name on the run's device; loaded once per process.

    `NAME@N-fitted` is NAME's lowest N blocks with a head fitted to them, made once in the cache.
    """
    try:
        return load_backbone(
            str(_fitted(config, name)) if name.endswith(ENDING) else name,
            device=config.device,
            dtype=DTYPES[config.backbone.dtype],
            allow_hub=config.backbone.allow_hub,
            compiler=config.backbone.compile,
            quant=config.backbone.quant,
        )
    except InputError as error:
        if not str(error).startswith(f"backbone {name!r}"):
            raise  # it names the setting itself
        raise InputError(f"{_key_of(config, name)}: {error}") from None


def _key_of(config: FederationConfig, name: str) -> str:
    """The setting that asks for a backbone."""
    for client in config.clients:
        if client.backbone == name:
            return f"client {client.id}: backbone"
    if name in config.backbone.deal:
        return "backbone.deal"
    return "backbone.name" if name == config.backbone.name else "relevance.probe"


@cache
def _fitted_by_name(base: str, cut: str, allow_hub: bool) -> Path:
    whole, lowest = (load_backbone(name, allow_hub=allow_hub) for name in (base, cut))
    return fitted_folder(whole, lowest, anchor_texts(FITTED_ON, seed=0))


def _fitted(config: FederationConfig, name: str) -> Path:
    """The folder of a cut model with its own head.

    Raises:
        InputError: If the name does not say how many blocks of what, or there is no such model.
    """
    cut = name.removesuffix(ENDING)
    base, sign, _ = cut.rpartition("@")
    if not (base and sign):
        raise InputError(f"backbone {name!r}: allowed before {ENDING}: NAME@N, such as smollm2@12")
    return _fitted_by_name(base, cut, config.backbone.allow_hub)


def find_autocast(config: FederationConfig) -> torch.dtype | None:
    """The precision of products in blocks with adapters; None for that of the weights."""
    name = config.backbone.autocast
    return None if name is None else DTYPES[name]


def find_model(config: FederationConfig, name: str, others: int = 0) -> Model:
    """A backbone and where the settings put adapters in it.

    Args:
        config: The settings.
        name: The backbone's.
        others: Blocks with adapters beside those that the settings place.

    Raises:
        InputError: If the backbone is too short for the texts, or has too few blocks.
    """
    backbone = open_backbone(config, name)
    settings = config.adapter
    if config.backbone.max_length > backbone.max_positions:
        raise InputError(
            f"backbone.max_length: {config.backbone.max_length} given, but {name} takes at most "
            f"{backbone.max_positions} tokens"
        )
    if settings.blocks + others > backbone.depth:
        beside = f" and adapter.others: {others}" if others else ""
        raise InputError(
            f"adapter.blocks: {settings.blocks}{beside} given, but {name} has {backbone.depth} "
            "blocks"
        )
    chosen = adapted_blocks(backbone.depth, settings, others)
    modules, widths = [], []
    for block in chosen:
        linears = backbone.linears(block)
        for module in backbone.select(block, settings.modules):
            modules.append(module)
            widths.append((linears[module].in_features, linears[module].out_features))
    if config.backbone.compile:
        check_adapted(backbone.family, tuple(modules))
    layout = Layout(
        backbone=backbone.name,
        modules=tuple(modules),
        widths=tuple(widths),
        head=backbone.head_layers,
        alpha=settings.alpha,
    )
    prefix = find_prefix(config.train, backbone, chosen[0])
    return Model(backbone, layout, chosen[0], prefix, find_autocast(config))


def adapted_blocks(depth: int, settings: AdapterSettings, others: int = 0) -> list[int]:
    """Which blocks have adapters, rising; block i of one depth matches block i of another.

    With `others`, also so many of the last blocks that are not among them.
    """
    count = settings.blocks
    placed = list(range(depth - count, depth))
    if settings.placement == "spread":
        placed = [k * (depth // count) - 1 for k in range(1, count)] + [depth - 1]
    free = [block for block in range(depth) if block not in placed]
    return sorted(placed + free[len(free) - others :])


def core_places(backbone: Backbone, settings: AdapterSettings) -> tuple[str, ...]:
    """What the cores of a backbone's adapted modules are called: the same in every backbone.

    Empty for the modules of blocks that have plain adapters.
    """
    cores, places = adapted_blocks(backbone.depth, settings), []
    for block in adapted_blocks(backbone.depth, settings, settings.others):
        number = cores.index(block) if block in cores else None
        short = {
            module: f"{number}.{name}" if place == 0 else f"{number}.{name}.{place}"
            for name in settings.modules
            for place, module in enumerate(backbone.select(block, [name]))
        }
        found = backbone.select(block, settings.modules)
        places += ["" if number is None else short[module] for module in found]
    return tuple(places)


def find_prefix(
    settings: TrainSettings, backbone: TransformerBackbone, blocks: int
) -> PrefixCache | None:
    """The cache of the blocks below; one per process, so that all runs of a study share it."""
    megabytes, on_host = settings.prefix_cache_mb, backbone.device.type == "cpu"
    if megabytes is None:
        megabytes = HOST_MB if on_host else DEVICE_MB
    if not megabytes or not blocks or not backbone.cut_into_blocks:
        return None  # embeddings alone are looked up faster than they are kept
    holds = settings.prefix_holds or ("projections" if on_host else "inputs")
    if blocks == backbone.depth - 1:
        holds = "inputs"  # the last block is read at a few places only
    caches = CACHES.setdefault(backbone, {})
    key = (blocks, megabytes, settings.prefix_format, holds)
    if key not in caches:
        budget = megabytes * 2**20
        caches[key] = PrefixCache(backbone, blocks, budget, settings.prefix_format, holds)
    return caches[key]


def find_member(settings: AdapterSettings, layout: Layout, holder: Holder) -> Member:
    """What a cohort must know of a holder: the ranks the settings give it, and its labels."""
    wanted = [_ranks(settings, layout, member.id) for member in holder.members]
    # Clients that share an adapter get the largest rank that any of them has.
    ranks = tuple(max(layer) for layer in zip(*wanted, strict=True))
    return Member(holder.id, ranks, holder.data.task.label_set)


def _ranks(settings: AdapterSettings, layout: Layout, client: str) -> tuple[int, ...]:
    ranks = settings.ranks.get(client, settings.rank)
    per_layer = tuple(ranks) if isinstance(ranks, list) else (ranks,) * len(layout.modules)
    key = f"adapter.ranks.{client}" if client in settings.ranks else "adapter.rank"
    if len(per_layer) != len(layout.modules):
        raise InputError(
            f"{key}: {len(per_layer)} ranks given for {len(layout.modules)} adapted layers"
        )
    largest = min(min(widths) for widths in layout.widths)
    for rank in per_layer:
        if not 1 <= rank <= largest:
            raise InputError(f"{key}: {rank} is not a rank; allowed: 1 to {largest}")
    return per_layer


def check_ranks(config: FederationConfig, holders: Sequence[Holder]) -> None:
    """Refuse ranks for clients that do not exist, or that memory is to decide about."""
    given = config.adapter.ranks
    known = sorted(member.id for holder in holders for member in holder.members)
    for client in given:
        if client not in known:
            raise InputError(f"adapter.ranks.{client}: no such client; clients: {', '.join(known)}")
    if given and config.ranks.method != "fixed":
        raise InputError(
            f"adapter.ranks: given for {', '.join(sorted(given))}, but ranks.method: "
            f"{config.ranks.method} grants ranks by memory; set ranks.method=fixed"
        )


def check_kind(config: FederationConfig, model: Model, kind: str, holder: Holder) -> None:
    """Refuse a causal task on a model that cannot generate, or not as long as is asked."""
    if kind != "causal":
        return
    new, limit = config.backbone.max_new_tokens, model.backbone.max_positions
    if model.backbone.can_generate and new >= limit:
        raise InputError(f"backbone.max_new_tokens: {new} given; allowed: below {limit}")
    if not model.backbone.can_generate:
        raise InputError(
            f"client {holder.id}: task {holder.data.task.name!r} is causal, but backbone "
            f"{model.backbone.name!r} is an encoder; choose a causal backbone or another task"
        )


def start_cohort(config: FederationConfig, model: Model, members: Sequence[Member]) -> Cohort:
    """The adapters that members start with."""
    dtype = torch.float64 if config.backbone.dtype == "float64" else torch.float32
    device = model.backbone.device
    size = sum(math.prod(s) for s in stacked_shapes(model.layout, members).values())
    place = find_place(config.server, size * dtype.itemsize, torch.device(device))
    return initial_cohort(
        model.layout, members, config.seed, dtype=dtype, device=device, place=place
    )


LARGEST_IN_MEMORY = 256_000_000
"""With `server.state=auto`, bytes of one cohort's adapters beyond which they are on disk."""


def find_place(settings: ServerSettings, size: int, device: torch.device) -> TensorPlace:
    """Where a cohort of so many bytes is kept; what is on an accelerator stays there."""
    large = size > LARGEST_IN_MEMORY and device.type == "cpu"
    if settings.state == "disk" or (settings.state == "auto" and large):
        return OnDisk()
    return InMemory()
