"""What a study runs: every combination of comma values and arms, and the ceiling of each seed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from atlas.config.federation import FederationConfig
from atlas.config.grid import Case, Combination, lay_out
from atlas.config.load import dump_config, load_federation
from atlas.federation import strategies as strategies  # fills the register of strategies
from atlas.federation.strategies.base import find_strategy
from atlas.jobs.alone import share_shadows

CEILING = "pooled"


@dataclass(frozen=True)
class Study:
    """What is compared: the settings of every case, and the ceiling of each seed."""

    name: str
    cases: tuple[Case, ...]
    configs: tuple[FederationConfig, ...]
    ceilings: dict[int, FederationConfig]

    def jobs(self) -> list[tuple[Case, FederationConfig]]:
        """All runs in their order, the ceilings last."""
        found = list(zip(self.cases, self.configs, strict=True))
        for seed, config in self.ceilings.items():
            keys = {"strategy": CEILING, "seed": str(seed)}
            found.append((Case((), keys, {"strategy": CEILING}), config))
        return found


def plan_study(
    source: str, overrides: Sequence[str], arms: Sequence[str] = (), *, ceiling: bool = True
) -> Study:
    """Resolve every combination before anything runs, so that a bad value costs nothing."""
    cases = lay_out(overrides, arms)
    configs = []
    for case in cases:
        configs.append(load_federation(source, case.overrides))
        find_strategy(configs[-1].strategy)
    configs = share_shadows(configs)
    pools = any(config.strategy == CEILING for config in configs)
    ceilings = {} if pools or not ceiling else {c.seed: _ceiling(c) for c in reversed(configs)}
    # Labels are not part of the name: the same runs under other labels are the same study.
    text = json.dumps([dump_config(config) for config in (*configs, *ceilings.values())])
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    name = f"{configs[0].name[:40]}-compare-{digest}"
    return Study(name, tuple(cases), tuple(configs), ceilings)


def _ceiling(config: FederationConfig) -> FederationConfig:
    return config.model_copy(update={"strategy": CEILING, "keep_best": None, "alone": False})


def folder_name(keys: Combination) -> str:
    """A folder name for a combination: readable, and distinct by its hash."""
    text = json.dumps(keys)
    words = re.sub(r"[^A-Za-z0-9_]+", "-", " ".join(keys.values())).strip("-")
    return f"{words[:40]}-{hashlib.sha256(text.encode()).hexdigest()[:6]}"
