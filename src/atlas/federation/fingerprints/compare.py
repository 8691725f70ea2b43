"""The server's side of fingerprints: from clients' sketches to comparable features.

Clients are compared by how they differ: every part is scaled to length one and centred over the
clients. How far those differences can be trusted is measured by split halves (odd against even
folds), and each part counts by the square of that reliability. A part that is noise, such as the
labels' part of 200 examples, then spoils nothing; where texts are alike and labels opposed it is
the only part that is reliable, and decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from atlas.config.plan import FingerprintSettings
from atlas.ops.clustering.clusters import Floats
from atlas.ops.clustering.gain import part_affinities
from atlas.ops.graph.affinity import unit_rows
from atlas.ops.sketch import pca
from atlas.runs.seeds import generator

Sketches = Mapping[str, Tensor]
"""One client's fingerprint as sent: [folds, width] by part and part/head."""

Centre = Mapping[str, Tensor]
"""What clients share, by part and fold [1, folds, width]."""

LEAST_RELIABLE = 0.05
"""No part is dropped altogether: with clients that are all alike, all parts are noise."""

EXPLAINED, RELIABLE = 0.7, 0.5
"""Below these a plan warns."""


@dataclass(frozen=True)
class PartFacts:
    """How far one part's differences between clients can be trusted, and what it counts.

    Attributes:
        reliability: Split-half, of the whole; 1 is free of noise, 0 is noise.
        weight: What the part counts, once all parts are of equal spread.
        spread: Root mean square distance of clients from their mean.
    """

    reliability: float
    weight: float
    spread: float

    @property
    def scale(self) -> float:
        """What differences are multiplied by; nothing where there are none."""
        return self.weight / self.spread if self.spread > 0 else 0.0


@dataclass(frozen=True)
class Prints:
    """Comparable fingerprints of the clients of one backbone.

    Attributes:
        clients: Ids of those whose fingerprint is known.
        features: Principal components [n, m], unit rows, float64.
        explained: Share of the variance the components keep.
        parts: Facts by part.
        halves: The same features from odd and from even folds alone, before PCA; none where there
            are so many clients that only a sample of them is judged.
        resamples: The same features from folds drawn with replacement; likewise.
        folds: Gradients by part and fold [n, folds, width], neither centred nor weighed; likewise.
        origin: What the whole federation shares, where these are some of its clients.
    """

    clients: tuple[str, ...]
    features: Tensor
    explained: float
    parts: dict[str, PartFacts]
    halves: tuple[Tensor, ...]
    resamples: tuple[Tensor, ...]
    folds: Mapping[str, Tensor] = field(default_factory=dict)
    origin: Centre | None = None

    @property
    def centre(self) -> Centre:
        """What these clients share."""
        return {name: rows.mean(0, keepdim=True) for name, rows in self.folds.items()}

    def gradients(self, centre: Centre) -> Floats:
        """Folds of all parts side by side [n, folds, d], in units of what tells clients apart.

        Args:
            centre: What they are measured from; a part that it does not have is measured from what
                these clients share.
        """
        return _side_by_side(
            (rows - centre.get(name, rows.mean(0, keepdim=True))) * self.parts[name].scale
            for name, rows in self.folds.items()
        )

    @cached_property
    def agreement(self) -> Tensor | None:
        """How far every two clients want the same, 0 to 1 [n, n]; None without folds.

        Their gradients are taken as they are: centred, clients that are alike point anywhere, and
        two are opposite whatever they do.
        """
        if not self.folds:
            return None
        counts = {name: facts.scale or facts.weight for name, facts in self.parts.items()}
        folds = _side_by_side(rows * counts[name] for name, rows in self.folds.items())
        return torch.from_numpy(part_affinities(folds, range(len(folds)))).to(self.features)

    @property
    def reliability(self) -> float:
        """Of the parts together, by what they count."""
        total = sum(facts.weight for facts in self.parts.values())
        return sum(f.reliability * f.weight for f in self.parts.values()) / total

    def warnings(self) -> list[str]:
        """What a reader of the plan should know."""
        found = []
        if self.explained < EXPLAINED:
            found.append(
                f"{self.features.shape[1]} components keep {self.explained:.2f} of the "
                f"fingerprints' variance, less than {EXPLAINED}"
            )
        if len(self.clients) > 2 and self.reliability < RELIABLE:
            found.append(
                f"split-half reliability of the fingerprints is {self.reliability:.2f}, less than "
                f"{RELIABLE}: clients differ little, or have too few examples to show it"
            )
        return found


def compare_prints(
    sketches: Mapping[str, Sketches],
    labels: Sequence[int],
    settings: FingerprintSettings,
    *,
    resamples: int,
    seed: int,
) -> Prints:
    """Make clients' fingerprints comparable.

    Args:
        sketches: By client.
        labels: Label count of each client, in the same order.
        settings: Parts and dimensions.
        resamples: How many times folds are drawn with replacement.
        seed: Run seed, for those draws.
    """
    clients = tuple(sketches)
    folds = {name: _scaled(sketches, name) for name in part_names(labels, settings)}
    facts = {name: _facts(value) for name, value in folds.items()}
    total = settings.folds
    odd, even = range(1, total, 2), range(0, total, 2)
    whole = _join(folds, facts, [list(range(total))] * len(clients))
    features, explained = pca(whole, settings.dims)
    draws = [_draw(clients, total, seed, number) for number in range(resamples)]
    return Prints(
        clients=clients,
        features=placed(unit_rows(features)),
        explained=explained,
        parts=facts,
        halves=(
            unit_rows(_join(folds, facts, [list(odd)] * len(clients))),
            unit_rows(_join(folds, facts, [list(even)] * len(clients))),
        ),
        resamples=tuple(unit_rows(_join(folds, facts, draw)) for draw in draws),
        folds=folds,
    )


def _side_by_side(parts: Iterable[Tensor]) -> Floats:
    """Folds of several parts [n, folds, d]."""
    joined: Floats = torch.cat(list(parts), dim=2).cpu().numpy()
    return joined


def placed(features: Tensor) -> Tensor:
    """Clients with equal gradients are all at one place; a row of zeros would be an unknown one."""
    if len(features) > 1 and not bool(features.any()):
        features[:, 0] = 1.0
    return features


def part_names(labels: Sequence[int], settings: FingerprintSettings) -> list[str]:
    """The parts by which clients of these label counts are compared."""
    # Heads of different label counts have different gradients for the same text.
    places = ("", "/head") if settings.head and len(set(labels)) == 1 and labels[0] else ("",)
    return [f"{part}{place}" for part in settings.parts for place in places]


def _scaled(sketches: Mapping[str, Sketches], name: str) -> Tensor:
    return scale_folds(torch.stack([s[name].to(torch.float64) for s in sketches.values()]))


def scale_folds(stacked: Tensor) -> Tensor:
    """Clients' folds of one part [n, folds, width], the sum over folds of length one, float64."""
    exact = stacked.to(torch.float64)
    length = exact.sum(1).norm(dim=1).clamp_min(torch.finfo(torch.float64).tiny)
    scaled: Tensor = exact / length[:, None, None]
    return scaled


def _facts(folds: Tensor) -> PartFacts:
    """Split-half reliability of the differences between clients, stepped up to the whole.

    Spearman and Brown: what halves agree by r, wholes would agree by 2r / (1 + r).
    """
    odd, even = _centred(folds[:, 1::2].sum(1)), _centred(folds[:, ::2].sum(1))
    sizes = float(odd.norm() * even.norm())
    half = float((odd * even).sum()) / sizes if sizes > 0 else 0.0
    return judge_part(half, float(_centred(folds.sum(1)).square().sum(1).mean().sqrt()))


def judge_part(half: float, spread: float) -> PartFacts:
    """What a part counts whose halves agree by the correlation `half`."""
    whole = max(-1.0, 2 * half / (1 + half)) if half > -0.5 else -1.0
    return PartFacts(whole, max(whole, LEAST_RELIABLE) ** 2, spread)


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(0)


def _join(
    folds: Mapping[str, Tensor], facts: Mapping[str, PartFacts], picks: Sequence[list[int]]
) -> Tensor:
    """Weighted, centred parts side by side, from the folds picked for each client."""
    parts = []
    for name, value in folds.items():
        rows = torch.stack([value[i, pick].sum(0) for i, pick in enumerate(picks)])
        parts.append(_centred(rows) * facts[name].scale)
    return torch.cat(parts, dim=1)


def _draw(clients: Sequence[str], folds: int, seed: int, number: int) -> list[list[int]]:
    """Folds drawn with replacement, for every client on its own."""
    return [
        generator(seed, "resample", number, client).integers(folds, size=folds).tolist()
        for client in clients
    ]
