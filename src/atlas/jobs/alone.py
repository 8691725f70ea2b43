"""Training alone is the same whatever the strategy, so a study does it once per seed.

Who learns from whom does not touch the solo shadow. Of all runs of a study that would train the
same shadow, those that need it for themselves do, or else the first; the others are told its
scores afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from atlas.config.federation import FederationConfig
from atlas.federation.strategies.base import find_strategy
from atlas.jobs.study.outcomes import Outcome

ASIDE = ("strategy", "keep_best", "keep_margin", "alone", "relation", "validate_every")
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


def tell_alone(outcomes: Sequence[Outcome], configs: Sequence[FederationConfig]) -> list[Outcome]:
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


def _found_alone(outcome: Outcome, config: FederationConfig) -> dict[str, Any] | None:
    if "alone" in outcome.summary:
        found: dict[str, Any] = outcome.summary["alone"]
        return found
    if is_alone(config):
        return {key: outcome.summary["score"][key] for key in ("mean", "clients")}
    return None
