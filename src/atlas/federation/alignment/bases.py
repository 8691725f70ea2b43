"""Frozen bases of PQ-LoRA: one pair A, B for every backbone and adapted module.

Cores P and Q mean the same in two backbones only if A x and B^T y do. In the reference, A holds the
leading principal directions of a module's inputs over anchor texts and B those of its outputs. In
every other backbone both are found so that coordinates of the same texts match the reference's:

- `paired`: orthogonal Procrustes within the backbone's own leading directions.
- `cca`: ridge CCA within them.
- `unpaired`: Procrustes on anchors that are drawn for each backbone from the mean and covariance of
  its features. Nothing pairs them, so what is matched is noise: the ablation.
- `rotated`: `paired`, then turned at random: the same directions, but cores of another backbone
  arrive in other coordinates. An ablation, too.
- `random`: orthonormal draws; no alignment at all.

The reference is the narrowest backbone (the first by name among equals): what a narrow layer says
can be found in a wide one, not always the other way round, and a wider backbone that joins changes
nobody else's bases. Residuals and angles are measured on texts that nothing was fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atlas.config.plan import AlignSettings
from atlas.errors import InputError
from atlas.federation.alignment.features import Features
from atlas.ops.alignment import (
    cca_basis,
    centred,
    drawn_like,
    paired_residual,
    principal_angles,
    principal_directions,
    procrustes_basis,
    relative_size,
    supported_rank,
)
from atlas.runs.seeds import generator

SIDES = ("inputs", "outputs")


@dataclass(frozen=True)
class Basis:
    """What is frozen of one PQ module; float64, to be cast to what the module computes in.

    Attributes:
        a: Orthonormal rows [r, d_in].
        b: Orthonormal columns [d_out, r].
        size_in: How large A x is here, in units of the reference's A x; 1 in the reference.
        size_out: The same of B^T y.
        shift: By how much the mean over anchors of A x / size_in is above the reference's A x [r];
            zeros in the reference. A core that was learned elsewhere does here what it does there
            as size_out * B((P - I)(A x / size_in - shift) + Q).
    """

    a: Tensor
    b: Tensor
    size_in: float
    size_out: float
    shift: Tensor


@dataclass(frozen=True)
class Bases:
    """All bases of a federation.

    Attributes:
        reference: The backbone that the others are aligned to.
        pairs: By backbone, in block order.
        report: Plain values for the event `aligned`, one entry for every backbone, module and side
            beside the reference: residuals and angles on texts that nothing was fitted to, and how
            far means lie apart (`shift`) in units of the coordinates' own spread.
    """

    reference: str
    pairs: Mapping[str, tuple[Basis, ...]]
    report: tuple[Mapping[str, object], ...]

    def summary(self) -> dict[str, object]:
        """Means of the report, for the run's summary."""
        found: dict[str, object] = {"reference": self.reference}
        for name in self.pairs:
            own = [entry for entry in self.report if entry["backbone"] == name]
            keys = ("before", "after", "angle_before", "angle_after") if own else ()
            found |= {name: {k: _mean([entry[k] for entry in own]) for k in keys}} if own else {}
        return found


def _mean(values: Sequence[object]) -> float:
    return sum(float(str(value)) for value in values) / len(values)


@dataclass(frozen=True)
class Anchors:
    """One side of one module over anchor texts, centred by the texts of the fit.

    Attributes:
        mean: Of the texts of the fit [d].
        fitted: Features that bases are found from [n, d].
        judged: Features that residuals are measured on [m, d].
    """

    mean: Tensor
    fitted: Tensor
    judged: Tensor

    @classmethod
    def of(cls, features: Tensor, fit: int) -> Anchors:
        """The first `fit` texts and the rest."""
        whole = features.to(torch.float64)
        mean = whole[:fit].mean(0)
        return cls(mean, whole[:fit] - mean, whole[fit:] - mean)


def make_bases(
    features: Mapping[str, Features], rank: int, fit: int, settings: AlignSettings, seed: int
) -> Bases:
    """The bases of every backbone and module.

    Args:
        features: By backbone, of the same texts.
        rank: r of every core.
        fit: Bases are found from the first so many texts; the rest judges them.
        settings: Method and its numbers.
        seed: Addresses what is drawn.

    Raises:
        InputError: If backbones differ in their number of modules, or texts or layers do not
            support the rank.
    """
    _check_modules(features)
    reference = min(features, key=lambda name: (features[name].inputs[0].shape[1], name))
    pairs: dict[str, list[Basis]] = {name: [] for name in features}
    report: list[Mapping[str, object]] = []
    for number in range(len(features[reference].inputs)):
        sides = {}
        for side in SIDES:
            anchors = {n: Anchors.of(getattr(f, side)[number], fit) for n, f in features.items()}
            draws = Draws(seed, {n: f.identity for n, f in features.items()}, number, side)
            for name, one in anchors.items():
                _check_rank(one.fitted, rank, f"{side} of module {number + 1} of {name}")
            aligned = align_side(anchors, reference, rank, settings, draws)
            sides[side] = {n: _judge(anchors, aligned, n, reference) for n in features}
            report += [
                {"backbone": name, "module": number, "side": side, **found.report}
                for name, found in sides[side].items()
                if name != reference
            ]
        for name, own in pairs.items():
            a, b = (sides[side][name] for side in SIDES)
            columns = b.basis.mT.contiguous()
            own.append(Basis(a.basis.contiguous(), columns, a.size, b.size, a.shift))
    return Bases(reference, {name: tuple(own) for name, own in pairs.items()}, tuple(report))


@dataclass(frozen=True)
class Draws:
    """Addressed randomness of one module's side: by what a model is, not by where it lies."""

    seed: int
    identities: Mapping[str, str]
    module: int
    side: str

    def normal(self, purpose: str, backbone: str, shape: tuple[int, int]) -> Tensor:
        """Standard normal numbers of one backbone."""
        model = self.identities[backbone]
        draw = generator(self.seed, "align", purpose, model, self.module, self.side)
        return torch.from_numpy(draw.standard_normal(shape))


def align_side(
    anchors: Mapping[str, Anchors],
    reference: str,
    rank: int,
    settings: AlignSettings,
    draws: Draws,
) -> dict[str, Tensor]:
    """The basis of every backbone for one side of one module, orthonormal rows [r, d]."""
    seen = {name: one.fitted for name, one in anchors.items()}
    if settings.method == "random":
        return {name: _random_basis(draws, name, rank, x.shape[1]) for name, x in seen.items()}
    if settings.method == "unpaired":
        seen = {
            name: centred(drawn_like(x, draws.normal("unpaired", name, (len(x), len(x)))))
            for name, x in seen.items()
        }
    found = {reference: principal_directions(seen[reference], rank)}
    target = seen[reference] @ found[reference].mT
    for name, x in seen.items():
        if name == reference:
            continue
        leading = principal_directions(x, settings.subspace * rank)
        if settings.method == "cca":
            found[name] = cca_basis(leading, x, target, settings.ridge)
        else:
            found[name] = procrustes_basis(leading, x, target)
        if settings.method == "rotated":
            found[name] = _random_basis(draws, name, rank, rank) @ found[name]
    return {name: found[name] for name in anchors}


def _random_basis(draws: Draws, name: str, rank: int, width: int) -> Tensor:
    basis: Tensor = torch.linalg.qr(draws.normal("random", name, (width, rank))).Q.mT
    return basis


@dataclass(frozen=True)
class _Side:
    """One backbone's basis of one side [r, d], and how its coordinates lie to the reference's."""

    basis: Tensor
    size: float
    shift: Tensor
    report: dict[str, object]


def _judge(
    anchors: Mapping[str, Anchors], aligned: Mapping[str, Tensor], name: str, reference: str
) -> _Side:
    """A basis on the judged texts, beside the leading directions as they are."""
    own, there, basis = anchors[name], anchors[reference], aligned[name]
    target = there.judged @ aligned[reference].mT
    found = own.judged @ basis.mT
    size = 1.0 if name == reference else relative_size(found, target)
    shift = basis @ own.mean / size - aligned[reference] @ there.mean
    plain = own.judged @ principal_directions(own.fitted, len(basis)).mT
    angles = [principal_angles(side, target) for side in (plain, found)]
    report = {
        "before": paired_residual(plain, target),
        "after": paired_residual(found, target),
        "size": size,
        "shift": float(shift.norm() / (target.norm() / len(target) ** 0.5)),
        "angle_before": float(angles[0].mean()),
        "angle_after": float(angles[1].mean()),
        "angles": [round(angle, 3) for angle in angles[1].tolist()],
    }
    return _Side(basis, size, shift, report)


def _check_modules(features: Mapping[str, Features]) -> None:
    counts = {name: len(own.inputs) for name, own in features.items()}
    if len(set(counts.values())) != 1:
        told = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
        raise InputError(
            f"adapter: backbones have unequal numbers of adapted modules ({told}); module i of one "
            "matches module i of another, so the numbers must be equal"
        )


def _check_rank(features: Tensor, rank: int, what: str) -> None:
    most = supported_rank(features)
    if not 1 <= rank <= most:
        raise InputError(
            f"adapter.rank: {rank} given, but the {what} span {most} directions over "
            f"{len(features)} anchor texts; allowed: 1 to {most}, or more align.texts up to the "
            f"layer's width of {features.shape[1]}"
        )
