"""From settings to objects; the only folder that knows both."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from atlas.build.cores import (
    adapter_kind,
    beside,
    core_cohort,
    core_sent,
    find_models,
    plain_cohort,
    tell_alignment,
    without_labels,
)
from atlas.build.dealing import deal_backbones, deal_devices
from atlas.build.devices import find_sites, fixed_splits
from atlas.build.models import (
    check_kind,
    check_ranks,
    find_member,
    open_backbone,
    start_cohort,
    text_limits,
)
from atlas.build.plugins import load_plugins
from atlas.build.relevance import find_probe, signature_stores
from atlas.build.strategy import find_checked_strategy
from atlas.config.federation import FederationConfig
from atlas.config.plan import FingerprintSettings
from atlas.data.clients import load_clients
from atlas.engines.local.engine import LocalEngine
from atlas.engines.local.groups import ClientGroup
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Member, adapter_shapes, is_head
from atlas.federation.adapters.cohort import Cohort, Slot
from atlas.federation.batching.forward import Model
from atlas.federation.clients import POOLS, ClientData, DataFacts, Holder
from atlas.federation.exchange.contents import SHARES
from atlas.federation.exchange.transport import Transport
from atlas.federation.fingerprints.take import print_shapes
from atlas.federation.rounds import asked_next
from atlas.federation.server import RunPlan, ServerState
from atlas.federation.strategies.base import Strategy
from atlas.federation.training.loop import Clock
from atlas.runs.checkpoint import tensors_sha256
from atlas.runs.events import Progress


@dataclass
class Federation:
    """Everything a federation needs to run.

    Attributes:
        config: Its settings.
        plan: What the round loop follows.
        state: What the server remembers.
        engine: Where clients run.
        groups: The clients that this process trains.
        holders: Who holds an adapter, by id.
        models: The model of every holder's group, by holder id.
        told: What nodes told of the data of their clients, where it is on other machines.
    """

    config: FederationConfig
    plan: RunPlan
    state: ServerState
    engine: Transport
    groups: list[ClientGroup]
    holders: dict[str, Holder]
    models: dict[str, Model]
    told: dict[str, DataFacts] = field(default_factory=dict)

    @property
    def ranks(self) -> dict[str, tuple[int, ...]]:
        """The ranks of every holder's adapter."""
        found: dict[str, tuple[int, ...]] = {}
        for cohort in self.state.cohorts.values():
            for member in cohort.members:
                found[member.id] = found.get(member.id, ()) + member.ranks
        return found

    @cached_property
    def identity(self) -> dict[str, str]:
        """Hashes of all examples, of every backbone's weights, of plugins and of cores' bases.

        A resumed run must meet the data and models it was started with, or its bits mean nothing.
        """
        digest = hashlib.sha256()
        for holder in self.holders.values():
            for client in (holder.data, *holder.members):
                splits = (client.train, client.validation, client.test)
                digest.update(repr((client.id, client.task, splits)).encode())
        names = {holder.data.backbone for holder in self.holders.values()}
        if self.plan.strategy.signature == "gradient":
            names.add(self.config.relevance.probe)
        weights = {n: open_backbone(self.config, n).weights_id for n in sorted(names)}
        plugins = load_plugins(self.config.plugins)
        frozen = {
            f"{model.backbone.name}|{module}|{part}": value
            for model in self.models.values()
            for module, basis in model.bases.items()
            for part, value in basis._asdict().items()
        }
        return {
            "data": digest.hexdigest(),
            **{f"weights of {name}": found for name, found in weights.items()},
            **{f"plugin {name}": found for name, found in plugins.items()},
            **({"bases of cores": tensors_sha256(frozen)} if frozen else {}),
        }

    @cached_property
    def alignment(self) -> dict[str, Any] | None:
        """How well what is around cores of different backbones matches; None if nothing is."""
        models = {h.data.backbone: self.models[h.id] for h in self.holders.values()}
        return tell_alignment(self.config, models)


def build_federation(config: FederationConfig, progress: Progress | None = None) -> Federation:
    """Load data and backbones and set up rounds, server and clients.

    Raises:
        InputError: If anything the settings name cannot be had.
    """
    load_plugins(config.plugins)
    find_checked_strategy(config)  # a wrong name is told before data is read
    federation = assemble(config, load_clients(config), progress)
    if config.engine == "flower":
        federation.engine = on_flower(federation)
    return federation


def check_flower(what: str) -> None:
    """Refuse what needs Flower where it is not installed.

    Raises:
        InputError: It is not.
    """
    if importlib.util.find_spec("flwr") is None:
        raise InputError(
            f"{what} needs Flower, which is not installed: pip install 'atlas-personal[flower]'"
        )


def on_flower(federation: Federation) -> Transport:
    """A federation's clients on the nodes of Flower's simulation.

    Raises:
        InputError: If Flower is not installed.
    """
    check_flower("engine=flower")
    from atlas.engines.flower.simulation import simulate

    return simulate(federation.engine, list(federation.holders), asked_next(federation.plan))


def assemble(
    config: FederationConfig,
    clients: Sequence[ClientData],
    progress: Progress | None = None,
    here: Collection[str] | None = None,
) -> Federation:
    """A federation of clients whose data is at hand.

    Args:
        config: The settings.
        clients: All of them.
        progress: Called with (what, done, total) during long work.
        here: Whom this process trains, where the others are elsewhere; None for all.
    """
    strategy = find_checked_strategy(config)
    everybody = POOLS[strategy.pool](deal_devices(config, deal_backbones(config, clients)))
    holders = [holder for holder in everybody if here is None or holder.id in here]
    if strategy.signature == "gradient":
        find_probe(config, config.relevance.probe)  # one that will not do is told before all else
    check_ranks(config, everybody)
    models = find_models(config, strategy, _backbones(config, strategy, holders, everybody))
    groups, server = _groups(config, strategy, holders, models)
    engine = LocalEngine(
        groups,
        config.train,
        clock=Clock(config.seed, 0, config.rounds),
        travels=strategy.travels,
        progress=progress,
    )
    fingerprint = _fingerprint(config, strategy)
    plan = RunPlan(
        strategy=strategy,
        tasks={holder.id: holder.data.task.name for holder in holders},
        rounds=config.rounds,
        seed=config.seed,
        sample=config.sample,
        absent=config.absent,
        validate_every=config.validate_every,
        shadows=_trains_alone(config, strategy),
        fingerprint=fingerprint,
        clusters=config.clusters,
        relation=config.relation,
        mixing=config.mixing,
        route=config.route,
        wire=config.wire,
        relevance=config.relevance,
        print_shapes=_print_shapes(groups, fingerprint),
        ranks=config.ranks,
        split=config.split,
        sites=find_sites(config, groups) if strategy.pool == "none" else {},
    )
    return Federation(
        config=config,
        plan=plan,
        state=ServerState(server),
        engine=engine,
        groups=groups,
        holders={holder.id: holder for holder in holders},
        models={client: group.model for group in groups for client in group.holders},
    )


def _fingerprint(config: FederationConfig, strategy: Strategy) -> FingerprintSettings:
    """Heads that never leave the client do not do so in a fingerprint either."""
    if strategy.heads == "personal":
        return config.fingerprint.model_copy(update={"head": False})
    return config.fingerprint


def _print_shapes(
    groups: Sequence[ClientGroup], settings: FingerprintSettings
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
            head = {name: shape for name, shape in shapes.items() if is_head(name)}
            found[member.id] = print_shapes(group.model, head, settings)
    return found


def _backbones(
    config: FederationConfig,
    strategy: Strategy,
    holders: Sequence[Holder],
    everybody: Sequence[Holder],
) -> list[str]:
    """The backbones that a process needs: cores are aligned with those of all clients."""
    cores = adapter_kind(config, strategy) == "pq"
    return sorted({holder.data.backbone for holder in (everybody if cores else holders)})


def _groups(
    config: FederationConfig,
    strategy: Strategy,
    holders: Sequence[Holder],
    models: Mapping[str, Model],
) -> tuple[list[ClientGroup], dict[str, Cohort]]:
    """Training groups (backbone and kind of task) and the server's cohorts (backbone)."""
    by_backbone: dict[str, list[Holder]] = {}
    for holder in holders:
        by_backbone.setdefault(holder.data.backbone, []).append(holder)
    groups: list[ClientGroup] = []
    server: dict[str, Cohort] = {}
    everybody: list[Member] = []
    for name, owners in sorted(by_backbone.items()):
        model = models[name]
        members = {h.id: find_member(config.adapter, model.layout, h) for h in owners}
        everybody += members.values()
        own = list(members.values())
        if strategy.space == "core":
            beside_cores = plain_cohort(config, model, own)
            server |= {} if beside_cores is None else {name: beside_cores}
        else:
            cohort = start_cohort(config, model, own)
            server[name] = cohort.without_heads() if strategy.heads == "personal" else cohort
        for kind in sorted({holder.data.task.kind for holder in owners}):
            chosen = [holder for holder in owners if holder.data.task.kind == kind]
            check_kind(config, model, kind, chosen[0])
            start = start_cohort(config, model, [members[holder.id] for holder in chosen])
            groups.append(_group(config, strategy, model, chosen, start))
    if strategy.space == "core":
        server["core"] = core_cohort(config, next(iter(models.values())), everybody)
    return groups, server


def _group(
    config: FederationConfig,
    strategy: Strategy,
    model: Model,
    holders: Sequence[Holder],
    start: Cohort,
) -> ClientGroup:
    slot = None
    if strategy.deliver == "global":
        slot = Slot(start_cohort(config, beside(model), without_labels(start.members)))
    arms = {"held": replace(start, trains=strategy.trains, slot=slot)}
    if _trains_alone(config, strategy):
        arms["shadow"] = start.apart()
    if strategy.anchor == "global":
        arms["personal"] = start.apart()
    free = _free_step(config, strategy)
    return ClientGroup(
        model=model,
        holders={holder.id: holder for holder in holders},
        arms=arms,
        limits=text_limits(config),
        anchor=strategy.anchor,
        keeps_best=strategy.keep_best,
        weigh=config.train.weigh,
        margin=config.keep_margin,
        splits=fixed_splits(config, model.backbone, [holder.id for holder in holders]),
        shares=SHARES if strategy.keep_best or free else (1.0,),
        accepting="fittest" if free else "unless worse",
        deliver=strategy.deliver,
        sends=core_sent(config, model.layout),
        signing=signature_stores(config),
    )


def _trains_alone(config: FederationConfig, strategy: Strategy) -> bool:
    """Whether a shadow of each client is trained alone."""
    return (config.alone is True or strategy.keep_best) and strategy.pool == "none"


def _free_step(config: FederationConfig, strategy: Strategy) -> bool:
    """Whether each client chooses how far it steps toward its neighbours."""
    return strategy.plans != "nothing" and config.relation.eta == "auto"
