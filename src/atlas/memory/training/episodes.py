"""Episodes: a memory is filled in storage and asked in retrieval, and learns from its answers.

Every row of a batch is a stream. In storage its batches are read one after the other, each as a
sequence of its own to which nothing is carried but the memory, and the loss is that of the next
token. In retrieval the same batches are read in the same order with words and answers behind masks;
every one of them starts from the memory that storage left, which stays as it is, and the loss is
that of the original token at each mask. Attention and convolution never see storage from there, so
an answer that is not in the text around a mask can only come out of the memory.

Gradients of retrieval reach the writes of the last `through` storage batches and stop there. They
are found in two goes, so that no more than those batches and one of retrieval are held at a time:
first those of the memory that storage left, summed over retrieval, then from there through storage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from atlas.config.episodes import EpisodeSettings, PhaseGates
from atlas.memory.layer.gates import Floors, GateMode
from atlas.memory.layer.observe import LayerView
from atlas.memory.layer.state import (
    detached,
    each_tensor,
    from_flat,
    memory_alone,
    to_flat,
)
from atlas.memory.training.episode_batches import Episode, EpisodeBatch, States, repeated, together
from atlas.memory.training.loop import Lines, Read
from atlas.memory.training.losses import LossName, collapsed
from atlas.runs.ranks import ALONE, Ranks


class Carries(Protocol):
    """A model that can say how its blocks start, and reads on from a state."""

    def start_states(self, batch: int) -> States:
        """The state of every block before the first token."""
        ...


OpenState = Callable[[States], Any]
"""Makes of states what the model takes as `past_key_values`; it has them as `states` after it."""


class EpisodeReader:
    """Reads batches of episodes, in storage and in retrieval.

    Attributes:
        settings: Of the episodes.
        open_state: How the model is given a state.
        loss: By name.
        ranks: The processes that read an episode's streams together.
    """

    def __init__(
        self,
        settings: EpisodeSettings,
        open_state: OpenState,
        loss: LossName = "softmax",
        ranks: Ranks = ALONE,
    ) -> None:
        """With nothing read."""
        self.settings, self.open_state, self.loss = settings, open_state, loss
        self.ranks = ranks

    def floors(self, floors: Floors, mode: GateMode) -> Floors:
        """Those of training, or the phase's own where it is higher."""
        return floors._replace(mix=max(floors.mix, self._phase(mode).floor))

    def read(
        self,
        model: Any,  # noqa: ANN401
        lines: Lines,
        memory: States | None,
        mode: GateMode,
        floors: Floors,
        *,
        fresh: States | None = None,
        **more: Any,  # noqa: ANN401
    ) -> tuple[Any, States]:
        """One batch as a new sequence with a memory; what the model gives, and its states then.

        Args:
            model: The model.
            lines: What is read.
            memory: States of which the memory alone is carried on; None: an empty one.
            mode: Whether it is written.
            floors: Of training.
            fresh: How sequences start; None: it is found out here.
            **more: What else the model is asked for.
        """
        states = start_of(model, lines) if fresh is None else fresh
        if memory is not None:
            states = [memory_alone(*pair) for pair in zip(memory, states, strict=True)]
        cache = self.open_state(states)
        out = model(
            input_ids=lines.ids,
            past_key_values=cache,
            floors=self.floors(floors, mode),
            gate_mode=mode,
            **more,
        )
        return out, cache.states

    def loss_of(
        self,
        model: nn.Module,
        lines: Lines,
        memory: States | None,
        mode: GateMode,
        floors: Floors,
        *,
        fresh: States | None = None,
    ) -> tuple[Tensor, Tensor, Any, States]:
        """What is made smaller, the loss of the answers in it, what the model gave, its states."""
        shares = list[Tensor]()

        def watch(name: str, view: LayerView) -> None:
            del name
            shares.append(view.gates["mix"].mean())

        out, states = self.read(model, lines, memory, mode, floors, fresh=fresh, watch=watch)
        answers = lines.mean_loss(out.logits, self.loss)
        weight = 1.0 if mode is GateMode.STORAGE else self.settings.weight
        return weight * answers + self._pulled(shares, mode), answers, out, states

    @torch.no_grad()
    def look(
        self,
        model: nn.Module,
        batch: EpisodeBatch,
        memories: tuple[States | None, States],
        floors: Floors,
    ) -> dict[str, float]:
        """What the memory does at a batch, by layer and measure.

        The share in the output is that of retrieval, and under `gate.mix.storage` that of storage;
        all else is of storage, as in retrieval nothing moves.

        Args:
            model: The model.
            batch: Usually the last of an episode.
            memories: Before it in storage, and after the whole of storage.
            floors: Of training.
        """
        phases = ((batch.storage, GateMode.STORAGE), (batch.retrieval, GateMode.RETRIEVAL))
        stored, asked = (
            self.read(model, lines, memory, mode, floors, output_memory=True)[0].memory or {}
            for (lines, mode), memory in zip(phases, memories, strict=True)
        )
        shares = {name: value for name, value in asked.items() if "/gate.mix." in name}
        before = {name.replace("/gate.mix.", "/gate.mix.storage."): stored[name] for name in shares}
        return stored | before | shares

    def _pulled(self, shares: Sequence[Tensor], mode: GateMode) -> Tensor | float:
        """What it costs that the memory's share is below the phase's target, layer by layer."""
        if not shares or not self.settings.pull:
            return 0.0
        means = torch.stack(list(shares))
        if self.ranks.several:
            # The mean of all streams, with the gradient of this process's: theirs are averaged.
            every = self.ranks.means(means.detach().tolist())
            means = means + (means.new_tensor(every) - means.detach())
        short = (self._phase(mode).target - means).clamp_min(0)
        return self.settings.pull * short.square().mean()

    def _phase(self, mode: GateMode) -> PhaseGates:
        own = self.settings
        return own.storage if mode is GateMode.STORAGE else own.retrieval


class EpisodeObjective:
    """Whole episodes as the steps of a `MemoryTrainer`.

    Attributes:
        reader: How batches are read.
        kept: The memory that the last episode left, where the next one goes on with it.
    """

    def __init__(self, reader: EpisodeReader) -> None:
        """Before the first episode."""
        self.reader = reader
        self.kept: States | None = None

    def backward(self, model: nn.Module, work: Episode, floors: Floors, watched: bool) -> Read:
        """One episode; its loss is the mean of its batches in storage and in retrieval."""
        own, count = self.reader.settings, len(work)
        memory, open_losses = self.kept, list[Tensor]()
        total = stored = 0.0
        for number, batch in enumerate(work):
            if number == 0 or (count - number) % own.through == 0:
                _close(open_losses)
                memory = None if memory is None else [detached(state) for state in memory]
                fresh = start_of(model, batch.storage)  # the same for all batches of a stretch
            before = memory
            loss, answers, _, memory = self.reader.loss_of(
                model, batch.storage, memory, GateMode.STORAGE, floors, fresh=fresh
            )
            open_losses.append(loss / count)
            stored += float(answers.detach()) / count
            total += float(loss.detach()) / count
        assert memory is not None
        left = [each_tensor(state, _leaf) for state in memory]
        found: dict[str, float] = {}
        asked = 0.0
        for batch, number in together(work):
            memory_of = repeated(left, number)
            loss, answers, out, _ = self.reader.loss_of(
                model, batch.retrieval, memory_of, GateMode.RETRIEVAL, floors
            )
            weight = number / count
            (loss * weight).backward()  # type: ignore[no-untyped-call]
            asked += float(answers.detach()) * weight
            total += float(loss.detach()) * weight
            if watched:
                found["softmax_collapse"] = collapsed(out.logits, batch.retrieval.targets)
        seen = self.reader.look(model, work[-1], (before, left), floors) if watched else None
        _close(open_losses, _gradients(memory, left))
        self.kept = [detached(state) for state in memory] if own.between == "keep" else None
        return Read(total, {"storage_loss": stored, "retrieval_loss": asked, **found}, seen)

    def tensors(self) -> dict[str, Tensor]:
        """The memory that is kept, if it is."""
        flat: dict[str, Tensor] = {}
        for number, state in enumerate(self.kept or ()):
            flat |= to_flat(state, f"{number}")
        return flat

    def load(self, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
        """Back to what `tensors` gave."""
        self.kept = None
        if tensors:
            like = _bare(model).start_states(1)
            self.kept = [from_flat(tensors, own, f"{i}") for i, own in enumerate(like)]


def start_of(model: nn.Module, lines: Lines) -> States:
    """How sequences start, before their first token."""
    return _bare(model).start_states(len(lines.ids))


def _bare(model: Any) -> Carries:  # noqa: ANN401
    """The model itself, also where something is wrapped around it."""
    bare: Carries = getattr(model, "module", model)
    return bare


def _leaf(part: Tensor) -> Tensor:
    """A copy at which gradients end, so that they can be handed on from there."""
    return part.detach().clone().requires_grad_(part.is_floating_point())


def _tensors(states: States) -> Iterator[Tensor]:
    found = list[Tensor]()
    for state in states:
        each_tensor(state, lambda part: found.append(part) or part)  # type: ignore[func-returns-value]
    return iter(found)


def _gradients(states: States, leaves: States) -> list[tuple[Tensor, Tensor]]:
    """What was left and the gradient of it, where there is one and it leads anywhere."""
    pairs = zip(_tensors(states), _tensors(leaves), strict=True)
    return [(own, leaf.grad) for own, leaf in pairs if own.requires_grad and leaf.grad is not None]


def _close(losses: list[Tensor], left: Sequence[tuple[Tensor, Tensor]] = ()) -> None:
    """Gradients of some batches of storage, and of the memory they left; they are done with."""
    roots = [*losses, *(own for own, _ in left)]
    if roots:
        torch.autograd.backward(roots, [None] * len(losses) + [grad for _, grad in left])
    losses.clear()
