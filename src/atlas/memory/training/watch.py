"""What a training run says of its memory: figures of the whole model, and alerts.

An alert is told when a layer's measure crosses its threshold, once; it is told again only after the
measure has come back in between, which is told as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from atlas.config.memory_train import AlertSettings

AVERAGED = {
    "M_norm": "M_norm",
    "M_std": "M_std",
    "S_norm": "S_norm",
    "gate_mean": "gate.mix.mean",
    "gate_std": "gate.mix.spread",
}
"""Means over layers, by the name they have in events, and of which measure."""
LARGEST = {"M_max": "M_max", "gate_collapse_risk": "gate.mix.risk", "gate_dead": "gate.mix.dead"}
"""The largest over layers, likewise: one layer is enough to be in danger."""


def model_figures(memory: Mapping[str, float] | None) -> dict[str, float]:
    """Figures of the whole model out of those "layer/measure"; none without a memory."""
    found: dict[str, float] = {}
    for name, measure in AVERAGED.items():
        if values := _of_layers(memory or {}, measure):
            found[name] = sum(values) / len(values)
    for name, measure in LARGEST.items():
        if values := _of_layers(memory or {}, measure):
            found[name] = max(values)
    return found


def _of_layers(memory: Mapping[str, float], measure: str) -> list[float]:
    return [value for name, value in memory.items() if name.partition("/")[2] == measure]


class Alert(NamedTuple):
    """A threshold that was crossed.

    Attributes:
        layer: Where.
        measure: risk, dead or share, as in the settings.
        value: What it is now.
        threshold: What it should not cross.
        raised: False where it has come back.
    """

    layer: str
    measure: str
    value: float
    threshold: float
    raised: bool


class Alerts:
    """Remembers which thresholds are crossed.

    Attributes:
        settings: The thresholds.
        active: "layer/measure" of those that are crossed now.
    """

    def __init__(self, settings: AlertSettings, active: list[str] | None = None) -> None:
        """With those that were crossed when a run was saved."""
        self.settings, self.active = settings, set(active or ())

    def look(self, memory: Mapping[str, float] | None) -> Iterator[Alert]:
        """What has changed since the last look."""
        own = self.settings
        checks = {
            "gate.mix.risk": ("risk", own.risk, 1),
            "gate.mix.dead": ("dead", own.dead, 1),
            "gate.mix.mean": ("share", own.share, -1),
        }
        for name, value in (memory or {}).items():
            layer, _, measure = name.partition("/")
            if measure not in checks:
                continue
            short, threshold, sign = checks[measure]
            crossed, key = sign * value > sign * threshold, f"{layer}/{short}"
            if crossed != (key in self.active):
                self.active ^= {key}
                yield Alert(layer, short, value, threshold, crossed)
