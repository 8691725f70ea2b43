"""Error feedback: what the cut to a client's rank removes, the server remembers.

For every client it keeps the residual e = (its mixture before the cut) - (what it then holds), as
an adapter of the server's rank, and mixes what was trained plus f times the residuals
(`ops.lowrank.residuals`). For that it must know what clients hold: it computes what they made of
their mixtures and compares hashes. Of a client that holds something else, or does not say what it
holds, it forgets the residual. The adapter that it has of a client that does not reply to the next
`fit` is then what the client holds, or the best guess at it: of a client that took a part and has
other bits, what it would hold if it computed as the server does.

Within a round everybody is mixed from the same adapters and residuals; what comes of it is written
apart, and takes their places when the round's mixing is over.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from atlas.config.plan import MixingSettings
from atlas.federation.adapters.adapter import Adapter, adapter_sha256
from atlas.federation.adapters.cohort import Cohort, stacked_shapes
from atlas.federation.mixing.apply import keeps_own, routed
from atlas.federation.mixing.cutting import Cutting, blend
from atlas.federation.mixing.deliver import FORGOTTEN, Taken
from atlas.federation.mixing.parts import PartMixer, parts_of
from atlas.federation.server import Server, ServerState
from atlas.federation.strategies.base import Strategy
from atlas.ops.lowrank.factors import Layer
from atlas.ops.lowrank.residuals import LeftOver, Shared, left_over
from atlas.ops.lowrank.sources import layer_rows

WHOLE = 1 << 24
"""Numbers of whole mixtures, one module of each, in memory at a time."""


def empty_residual(cohort: Cohort, settings: MixingSettings) -> Cohort:
    """Residuals of nothing for the clients of a cohort, kept where it is kept.

    Their rank is the server's; without one, in every module the largest that a client has there.
    """
    ranks = []
    for i, widths in enumerate(cohort.layout.widths):
        largest = max(member.ranks[i] for member in cohort.members)
        ranks.append(min(settings.server_rank or largest, *widths))
    members = tuple(replace(m, ranks=tuple(ranks), label_set=()) for m in cohort.members)
    like, layout = next(iter(cohort.tensors.values())), cohort.layout.beside()
    shapes = stacked_shapes(layout, members)
    return cohort.place.empty(layout, members, shapes, like.dtype, like.device)


def start_cutting(
    settings: MixingSettings, rule: Strategy, state: ServerState, name: str
) -> Cutting | None:
    """How this round's mixtures of a cohort are made and cut; None for the plain cut."""
    if rule.space != "product" or rule.sends == "nothing":
        return None
    residual = None
    if settings.feedback:
        residual = state.residuals.get(name)
        residual = residual or empty_residual(state.cohorts[name], settings)
    elif settings.cut == "leading":
        return None
    return Cutting(settings.cut, settings.feedback, residual)


@dataclass
class Remembered:
    """What the server knows of a cohort's clients after a round's mixing.

    Attributes:
        trained: What was mixed.
        cutting: With the residuals that were mixed.
        held: What clients hold now.
        residual: What was cut from that.
        energies: Of each client that took something: of what it would hold uncut, of what it does
            not hold of it, and of what even the residual lost.
    """

    trained: Cohort
    cutting: Cutting
    held: Cohort
    residual: Cohort
    energies: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def begin(cls, trained: Cohort, cutting: Cutting | None) -> Remembered | None:
        """Before anything is delivered; None where nothing is remembered."""
        if cutting is None or cutting.residual is None:
            return None
        made = cls(trained, cutting, trained.apart(), cutting.residual.apart())
        if cutting.feedback < 1:
            for some in parts_of({"": trained}, trained.clients):
                made.residual = made.residual.write(some, made._faded(some).tensors)
        return made

    def _faded(self, some: Sequence[str]) -> Cohort:
        """The residuals of clients that took nothing: f times what they were."""
        assert self.cutting.residual is not None
        faded = self.cutting.residual.select(some)
        tensors = dict(faded.tensors)
        for i in range(len(faded.layout.modules)):
            name = faded.layout.parts(i)[1]
            tensors[name] = tensors[name] * self.cutting.feedback
        return replace(faded, tensors=tensors)

    def note(
        self,
        server: Server,
        mixers: Sequence[PartMixer],
        mixed: Sequence[Cohort],
        taken: Mapping[str, Taken],
    ) -> None:
        """What some clients made of their mixtures.

        Args:
            server: Records who holds something else.
            mixers: One for each W.
            mixed: What each W offered to some clients.
            taken: What they took of it.
        """
        self._forget([c for c in mixed[0].clients if c in server.unheard])
        offered = [c for c in mixed[0].clients if c in taken and taken[c].names]
        if not offered:
            return
        held = self._blended(mixed, offered, taken)
        lost = [c for c in offered if not _agrees(server, held.take(c), c, taken[c])]
        self._forget(lost)
        guessed = [c for c in offered if c not in lost or taken[c].accept < 1]
        if guessed:
            self.held = self.held.write(guessed, held.select(guessed).tensors)
        sound = [c for c in offered if c not in lost]
        if not sound:
            return
        residual = self._faded(sound)
        tensors = {name: value.clone() for name, value in residual.tensors.items()}
        for pick, some in self._takers(sound, taken):
            for i in range(len(residual.layout.modules)):
                moving = _moving(mixers[pick], some, i)
                if moving:
                    found = self._left_over(mixers[pick], held, moving, taken, i)
                    self._keep(tensors, residual, moving, i, found)
        self.residual = self.residual.write(sound, tensors)

    def _forget(self, some: Sequence[str]) -> None:
        """Nothing is known to be left of some clients' mixtures."""
        if some:
            rows = self.residual.select(some).tensors
            nothing = {name: torch.zeros_like(value) for name, value in rows.items()}
            self.residual = self.residual.write(some, nothing)

    def _takers(
        self, some: Sequence[str], taken: Mapping[str, Taken]
    ) -> Iterator[tuple[int, list[str]]]:
        """Clients that took something, by pick; who took a part of it comes apart and with few.

        For a part the whole mixture is needed, and not its leading directions alone.
        """
        largest = max(d_in * d_out for d_in, d_out in self.trained.layout.widths)
        size = max(1, WHOLE // largest)
        for pick in sorted({taken[c].pick for c in some}):
            takers = [c for c in some if taken[c].pick == pick and taken[c].accept]
            yield pick, [c for c in takers if taken[c].accept == 1]
            parts = [c for c in takers if taken[c].accept < 1]
            for start in range(0, len(parts), size):
                yield pick, parts[start : start + size]

    def _blended(
        self, mixed: Sequence[Cohort], some: Sequence[str], taken: Mapping[str, Taken]
    ) -> Cohort:
        """What clients hold if they did as they say."""
        held = self.trained.select(some)
        for pick, share in sorted({(taken[c].pick, taken[c].accept) for c in some}):
            alike = [c for c in some if (taken[c].pick, taken[c].accept) == (pick, share)]
            made = blend(self.trained.select(alike), mixed[pick].select(alike), share)
            held = held.write(alike, made.tensors)
        return held

    def _left_over(
        self,
        mixer: PartMixer,
        held: Cohort,
        some: Sequence[str],
        taken: Mapping[str, Taken],
        module: int,
    ) -> LeftOver:
        assert self.cutting.residual is not None
        rows = self.trained.index(some)
        whole = any(taken[c].accept < 1 for c in some)
        mixtures, which = mixer.exact(module, rows.numpy(), whole)
        before = layer_rows(self.cutting.residual.layer(module), rows)
        trained = layer_rows(self.trained.layer(module), rows)
        now = layer_rows(held.layer(module), held.index(some))
        shares = torch.tensor([taken[c].accept for c in some], dtype=torch.float64)
        parts = Shared(mixtures, which, shares.to(trained.a.device), trained, before, now)
        found = left_over(parts, self.cutting.feedback, before.a.shape[1])
        self.trained.release()
        self.cutting.residual.release()
        return found

    def _keep(
        self,
        tensors: Mapping[str, Tensor],
        residual: Cohort,
        some: Sequence[str],
        module: int,
        found: LeftOver,
    ) -> None:
        """Write a module's residuals among those of a part, and count energies."""
        layer: Layer = residual.layer(module)
        rows = residual.index(some).to(layer.a.device)
        scale = layer.scales[rows].to(found.b)[:, None, None]
        for name, value in zip(
            residual.layout.parts(module), (found.a, found.b / scale), strict=True
        ):
            tensors[name][rows] = value.to(tensors[name].dtype)
        told = torch.stack([found.whole, found.residual, found.lost], 1).cpu()
        for client, energy in zip(some, told, strict=True):
            self.energies[client] = self.energies.get(client, 0.0) + energy

    def settle(self, state: ServerState, name: str) -> dict[str, object]:
        """Take the places of what was mixed; returns what is told of it."""
        state.cohorts[name], state.residuals[name] = self.held, self.residual
        entry: dict[str, object] = {"strength": self.cutting.feedback}
        if self.energies:
            energy = torch.stack([value for _, value in sorted(self.energies.items())])
            shares = energy[:, 1:] / energy[:, :1].clamp_min(torch.finfo(energy.dtype).tiny)
            for key, column in zip(("residual", "lost"), shares.T, strict=True):
                entry[key] = {"mean": float(column.mean()), "worst": float(column.max())}
        return entry


def _moving(mixer: PartMixer, some: Sequence[str], module: int) -> list[str]:
    """Clients to whom a module brings anything of somebody else."""
    weights = mixer.weights
    if isinstance(weights, Tensor) and weights.dim() == 3:
        weights = weights[module]
    own = keeps_own(routed(weights, mixer.routes, module)).tolist()
    return [client for client in some if not own[mixer.cohort.places[client]]]


def _agrees(server: Server, held: Adapter, client: str, taken: Taken) -> bool:
    """Whether a client holds what it says it took; if it does not, that is recorded."""
    if taken.sha256 == adapter_sha256(held.only(taken.names.__contains__)):
        return True
    if taken.accept == 1:
        return False  # delivery has said so
    if client not in server.trained:
        # No fault of its own: it may hold what was refused, was lost, or was shut until now.
        why = "deliver: without what the client trained nobody can tell what it holds now"
        server.pass_over(client, f"{why}{FORGOTTEN}")
    elif taken.accept:
        why = f"deliver: the client does not hold a share of {taken.accept:g} of what was sent"
        server.fail(client, f"{why}, to the bit{FORGOTTEN}")
    else:
        why = "deliver: the client took nothing, but does not hold what it trained"
        server.fail(client, f"{why}{FORGOTTEN}")
    return False
