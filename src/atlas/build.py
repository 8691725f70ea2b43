"""From settings to objects; the only file that knows both."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from atlas.backbones.load import load_backbone
from atlas.backbones.transformer import TransformerBackbone
from atlas.config.models import AdapterSettings, FederationConfig
from atlas.config.relations import FingerprintSettings
from atlas.data.clients import load_clients
from atlas.engines.groups import ACCEPTS, Group
from atlas.engines.local import LocalEngine, Progress
from atlas.errors import InputError
from atlas.federation import strategies as strategies
from atlas.federation.client import Clock
from atlas.federation.cohort import Cohort, Layout, Member, adapter_shapes, initial_cohort
from atlas.federation.desk import ServerState
from atlas.federation.evaluate import Limits
from atlas.federation.fingerprint import print_shapes
from atlas.federation.forward import Model
from atlas.federation.holder import POOLS, Holder
from atlas.federation.plan import Plan
from atlas.federation.rounds import without_heads
from atlas.federation.strategy import Strategy, find_strategy
from atlas.federation.task import ClientData

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}


@dataclass
class Federation:
    """Everything a federation needs to run.

    Attributes:
        config: Its settings.
        plan: What the round loop follows.
        state: What the server remembers.
        engine: Where clients run.
        holders: Who holds an adapter, by id.
        models: The model of every holder's group, by holder id.
    """

    config: FederationConfig
    plan: Plan
    state: ServerState
    engine: LocalEngine
    holders: dict[str, Holder]
    models: dict[str, Model]
    ranks: dict[str, tuple[int, ...]]

    @cached_property
    def identity(self) -> dict[str, str]:
        """Hashes of all examples and of every backbone's weights.

        A resumed run must meet the data and models it was started with, or its bits mean nothing.
        """
        digest = hashlib.sha256()
        for holder in self.holders.values():
            for client in (holder.data, *holder.members):
                splits = (client.train, client.validation, client.test)
                digest.update(repr((client.id, client.task, splits)).encode())
        names = {holder.data.backbone for holder in self.holders.values()}
        weights = {n: open_backbone(self.config, n).weights_id for n in sorted(names)}
        return {"data": digest.hexdigest(), **{f"weights of {n}": w for n, w in weights.items()}}


def build_federation(config: FederationConfig, progress: Progress | None = None) -> Federation:
    """Load data and backbones and set up rounds, server and clients.

    Raises:
        InputError: If anything the settings name cannot be had.
    """
    _strategy(config)  # a wrong name is told before data is read
    return assemble(config, load_clients(config), progress)


def assemble(
    config: FederationConfig, clients: Sequence[ClientData], progress: Progress | None = None
) -> Federation:
    """A federation of clients whose data is at hand."""
    strategy = _strategy(config)
    named = [replace(c, backbone=c.backbone or config.backbone.name) for c in clients]
    holders = POOLS[strategy.pool](named)
    groups, server = _groups(config, strategy, holders)
    engine = LocalEngine(
        groups,
        config.train,
        clock=Clock(config.seed, 0, config.rounds),
        heads=strategy.heads,
        progress=progress,
    )
    fingerprint = _fingerprint(config, strategy)
    plan = Plan(
        strategy=strategy,
        tasks={holder.id: holder.data.task.name for holder in holders},
        rounds=config.rounds,
        seed=config.seed,
        sample=config.sample,
        absent=config.absent,
        validate_every=config.validate_every,
        fingerprint=fingerprint,
        clusters=config.clusters,
        relation=config.relation,
        print_shapes=_print_shapes(groups, fingerprint),
    )
    return Federation(
        config=config,
        plan=plan,
        state=ServerState(server),
        engine=engine,
        holders={holder.id: holder for holder in holders},
        models={client: group.model for group in groups for client in group.holders},
        ranks={m.id: m.ranks for group in groups for m in group.arms["held"].members},
    )


def _strategy(config: FederationConfig) -> Strategy:
    strategy = find_strategy(config.strategy)
    if config.keep_best is not None and strategy.pool == "none":
        strategy = replace(strategy, keep_best=config.keep_best)
    if strategy.keep_best and config.alone is False:
        raise InputError("alone: false, but keep_best needs the solo shadow; allowed: true, needed")
    if strategy.keep_best and strategy.anchor == "global":
        raise InputError(
            f"keep_best: true, but under {strategy.name} clients use personal adapters, not the "
            "mixtures they would accept; allowed: false"
        )
    return strategy


def _fingerprint(config: FederationConfig, strategy: Strategy) -> FingerprintSettings:
    """Heads that never leave the client do not do so in a fingerprint either."""
    if strategy.heads == "personal":
        return config.fingerprint.model_copy(update={"head": False})
    return config.fingerprint


def _print_shapes(
    groups: Sequence[Group], settings: FingerprintSettings
) -> dict[str, dict[str, tuple[int, ...]]]:
    found = {}
    for group in groups:
        backbone = group.model.backbone
        if settings.blocks > backbone.depth:
            raise InputError(
                f"fingerprint.blocks: {settings.blocks} given, but {backbone.name} has "
                f"{backbone.depth} blocks"
            )
        for member in group.arms["held"].members:
            shapes = adapter_shapes(group.model.layout, member)
            head = {name: shape for name, shape in shapes.items() if name.startswith("head/")}
            found[member.id] = print_shapes(group.model, head, settings)
    return found


def _groups(
    config: FederationConfig, strategy: Strategy, holders: Sequence[Holder]
) -> tuple[list[Group], dict[str, Cohort]]:
    """Training groups (backbone and kind of task) and the server's cohorts (backbone)."""
    by_backbone: dict[str, list[Holder]] = {}
    for holder in holders:
        by_backbone.setdefault(holder.data.backbone, []).append(holder)
    _check_rank_names(config.adapter, holders)
    groups, server = [], {}
    for name, owners in sorted(by_backbone.items()):
        model = _model(config, name)
        members = {h.id: _member(config.adapter, model.layout, h) for h in owners}
        server[name] = _initial(config, model, list(members.values()))
        if strategy.heads == "personal":
            server[name] = without_heads(server[name])
        for kind in sorted({holder.data.task.kind for holder in owners}):
            chosen = [holder for holder in owners if holder.data.task.kind == kind]
            _check_kind(config, model, kind, chosen[0])
            start = _initial(config, model, [members[holder.id] for holder in chosen])
            groups.append(_group(config, strategy, model, chosen, start))
    return groups, server


def _group(
    config: FederationConfig,
    strategy: Strategy,
    model: Model,
    holders: Sequence[Holder],
    start: Cohort,
) -> Group:
    arms = {"held": start}
    if (config.alone is True or strategy.keep_best) and strategy.pool == "none":
        arms["shadow"] = start
    if strategy.anchor == "global":
        arms["personal"] = start
    return Group(
        model=model,
        holders={holder.id: holder for holder in holders},
        arms=arms,
        limits=text_limits(config),
        anchor=strategy.anchor,
        keeps_best=strategy.keep_best,
        shares=ACCEPTS if strategy.keep_best or _free_step(config, strategy) else (1.0,),
    )


def _free_step(config: FederationConfig, strategy: Strategy) -> bool:
    """Whether each client chooses how far it steps toward its neighbours."""
    return strategy.plans != "nothing" and config.relation.eta == "auto"


def text_limits(config: FederationConfig) -> Limits:
    """The settings' limits on text and cache."""
    return Limits(
        max_length=config.backbone.max_length,
        max_new_tokens=config.backbone.max_new_tokens,
        cache_bytes=config.train.prefix_cache_mb * 2**20,
    )


def open_backbone(config: FederationConfig, name: str) -> TransformerBackbone:
    """The backbone of that name on the run's device; loaded once per process."""
    return load_backbone(
        name,
        device=config.device,
        dtype=DTYPES[config.backbone.dtype],
        allow_hub=config.backbone.allow_hub,
    )


def _model(config: FederationConfig, name: str) -> Model:
    backbone = open_backbone(config, name)
    settings = config.adapter
    if config.backbone.max_length > backbone.max_positions:
        raise InputError(
            f"backbone.max_length: {config.backbone.max_length} given, but {name} takes at most "
            f"{backbone.max_positions} tokens"
        )
    if settings.blocks > backbone.depth:
        raise InputError(
            f"adapter.blocks: {settings.blocks} given, but {name} has {backbone.depth} blocks"
        )
    first = backbone.depth - settings.blocks
    modules, widths = [], []
    for block in range(first, backbone.depth):
        linears = backbone.linears(block)
        for module in backbone.select(block, settings.modules):
            modules.append(module)
            widths.append((linears[module].in_features, linears[module].out_features))
    layout = Layout(
        backbone=backbone.name,
        modules=tuple(modules),
        widths=tuple(widths),
        head=backbone.head_layers,
        alpha=settings.alpha,
    )
    return Model(backbone, layout, first)


def _member(settings: AdapterSettings, layout: Layout, holder: Holder) -> Member:
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


def _check_rank_names(settings: AdapterSettings, holders: Sequence[Holder]) -> None:
    known = sorted(member.id for holder in holders for member in holder.members)
    for client in settings.ranks:
        if client not in known:
            raise InputError(f"adapter.ranks.{client}: no such client; clients: {', '.join(known)}")


def _check_kind(config: FederationConfig, model: Model, kind: str, holder: Holder) -> None:
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


def _initial(config: FederationConfig, model: Model, members: Sequence[Member]) -> Cohort:
    dtype = torch.float64 if config.backbone.dtype == "float64" else torch.float32
    return initial_cohort(
        model.layout, members, config.seed, dtype=dtype, device=model.backbone.device
    )
