"""What a study runs: every combination of comma values and arms, and the ceiling of each seed.

Federations have a ceiling; memory runs have models of their own, which are compared as well.

Training alone is the same whatever the strategy, so a study does it once per seed: who learns from
whom does not touch the solo shadow. Of all runs of a study that would train the same shadow, those
that need it for themselves do, or else the first; the others are told its scores afterwards.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from atlas.build.plugins import load_plugins
from atlas.config.federation import FederationConfig
from atlas.config.grid import Case, Combination, lay_out
from atlas.config.grokking import GrokkingConfig
from atlas.config.load import RunConfig, dump_config, load_config
from atlas.config.memory import MemoryConfig
from atlas.errors import InputError
from atlas.federation import strategies as strategies  # fills the register of strategies
from atlas.federation.strategies.base import find_strategy
from atlas.jobs.study.outcomes import RunOutcome

ASIDE = ("strategy", "keep_best", "keep_margin", "alone", "relation", "validate_every", "report")
"""What training alone does not depend on."""
PLANS = ("fingerprint", "clusters")
"""It depends on these only where they decide about ranks."""


def solo_key(config: FederationConfig) -> str:
    """Runs with the same key train the same shadows."""
    left_out = ASIDE if config.ranks.method != "fixed" else (*ASIDE, *PLANS)
    return config.model_dump_json(exclude=set(left_out))


def share_shadows(configs: Sequence[FederationConfig]) -> list[FederationConfig]:
    """The same runs, with every shadow trained in as few of them as possible."""
    groups: dict[str, list[FederationConfig]] = {}
    for config in configs:
        if config.alone:
            groups.setdefault(solo_key(config), []).append(config)
    return [
        config.model_copy(update={"alone": "needed"})
        if config.alone and not _trains_for_all(config, groups[solo_key(config)])
        else config
        for config in configs
    ]


def _trains_for_all(config: FederationConfig, group: Sequence[FederationConfig]) -> bool:
    """Whether a run must train the shadow because no other of its group has one anyway."""
    told = any(needs_shadow(other) or is_alone(other) for other in group)
    return not told and config is group[0]


def needs_shadow(config: FederationConfig) -> bool:
    """Whether its clients choose between what they are offered and what they learned alone."""
    rule = find_strategy(config.strategy)
    return rule.pool == "none" and (
        rule.keep_best if config.keep_best is None else config.keep_best
    )


def is_alone(config: FederationConfig) -> bool:
    """Whether the run itself is training alone."""
    return config.strategy == "local"


def tell_alone(
    outcomes: Sequence[RunOutcome], configs: Sequence[FederationConfig]
) -> list[RunOutcome]:
    """Outcomes with the scores of training alone wherever any run of the study found them."""
    known: dict[str, dict[str, Any]] = {}
    for outcome, config in zip(outcomes, configs, strict=True):
        found = _found_alone(outcome, config)
        if found:
            known.setdefault(solo_key(config), found)
    told = []
    for outcome, config in zip(outcomes, configs, strict=True):
        alone = known.get(solo_key(config)) if config.alone else None
        if alone and "alone" not in outcome.summary:
            outcome = replace(outcome, summary={**outcome.summary, "alone": alone})
        told.append(outcome)
    return told


def _found_alone(outcome: RunOutcome, config: FederationConfig) -> dict[str, Any] | None:
    if "alone" in outcome.summary:
        found: dict[str, Any] = outcome.summary["alone"]
        return found
    if is_alone(config):
        return {key: outcome.summary["score"][key] for key in ("mean", "clients")}
    return None


CEILING = "pooled"
OF_ARMS = (MemoryConfig, GrokkingConfig)
"""Kinds of runs that train several models each."""


@dataclass(frozen=True)
class Study:
    """What is compared: the settings of every case, and the ceiling of each seed."""

    name: str
    cases: tuple[Case, ...]
    configs: tuple[RunConfig, ...]
    ceilings: dict[int, FederationConfig]

    @property
    def federations(self) -> tuple[FederationConfig, ...]:
        """The settings of its runs, where it compares federations; else none."""
        return tuple(own for own in self.configs if isinstance(own, FederationConfig))

    @property
    def models(self) -> tuple[list[str], ...]:
        """The models of each run, where its runs train several; federations have none."""
        return tuple(list(own.arms) for own in self.configs if isinstance(own, OF_ARMS))

    def jobs(self) -> list[tuple[Case, RunConfig]]:
        """All runs in their order, the ceilings last."""
        found: list[tuple[Case, RunConfig]] = list(zip(self.cases, self.configs, strict=True))
        for seed, config in self.ceilings.items():
            keys = {"strategy": CEILING, "seed": str(seed)}
            found.append((Case((), keys, {"strategy": CEILING}), config))
        return found


def plan_study(
    source: str, overrides: Sequence[str], arms: Sequence[str] = (), *, ceiling: bool = True
) -> Study:
    """Resolve every combination before anything runs, so that a bad value costs nothing."""
    cases = lay_out(overrides, arms)
    read = [load_config(source, case.overrides) for case in cases]
    ceilings: dict[int, FederationConfig] = {}
    configs: Sequence[RunConfig]
    if any(all(isinstance(config, kind) for config in read) for kind in OF_ARMS):
        configs = read
    else:
        federations = _federations(source, read)
        configs = federations
        pools = any(config.strategy == CEILING for config in federations)
        if ceiling and not pools:
            ceilings = {config.seed: _ceiling(config) for config in reversed(federations)}
    # Labels are not part of the name: the same runs under other labels are the same study.
    # Nor is what is written about them at the end.
    told = (config.model_copy(update={"report": True}) for config in (*configs, *ceilings.values()))
    text = json.dumps([dump_config(config) for config in told])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = f"{configs[0].name[:40]}-compare-{digest}"
    return Study(name, tuple(cases), tuple(configs), ceilings)


def _federations(source: str, configs: Sequence[RunConfig]) -> list[FederationConfig]:
    """Federations that share their shadows, with strategies that there are."""
    found = []
    for config in configs:
        if not isinstance(config, FederationConfig):
            raise InputError(f"{source}: kind: {config.kind}; allowed: one kind in all runs")
        load_plugins(config.plugins)
        find_strategy(config.strategy)
        found.append(config)
    return share_shadows(found)


def _ceiling(config: FederationConfig) -> FederationConfig:
    return config.model_copy(update={"strategy": CEILING, "keep_best": None, "alone": False})


def folder_name(keys: Combination) -> str:
    """A folder name for a combination: readable, and distinct by its hash."""
    text = json.dumps(keys)
    words = re.sub(r"[^A-Za-z0-9_]+", "-", " ".join(keys.values())).strip("-")
    return f"{words[:40]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
