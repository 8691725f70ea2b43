"""Settings of a memory run made into models and the sequences they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import nn

from atlas.backbones.memory_lm import AtlasCache, AtlasConfig, AtlasForCausalLM
from atlas.backbones.memory_lm.config import checked_config
from atlas.backbones.memory_lm.sizes import without_memory
from atlas.build.reading import Reading, Sequences, build_reading
from atlas.config.memory import ArmName, MemoryConfig
from atlas.errors import InputError
from atlas.memory.layer.gates import MemoryGates
from atlas.memory.layer.layer import MemoryLayer
from atlas.memory.layer.settings import Stage, stage_at
from atlas.memory.training.episode_batches import Episode
from atlas.memory.training.episodes import EpisodeObjective, EpisodeReader
from atlas.memory.training.loop import Lines, MemoryTrainer, NextToken, Objective
from atlas.memory.training.parallel import (
    AveragedGradients,
    OneProcess,
    Parallel,
    is_part,
    shard,
    whole,
)
from atlas.runs.devices import find_device
from atlas.runs.ranks import ALONE, Ranks
from atlas.runs.seeds import generator


@dataclass(frozen=True)
class MemoryRun:
    """All that is trained, and on what.

    Attributes:
        config: The settings.
        models: By arm.
        learners: Those who train them.
        reading: What they read.
        ranks: The processes that train them together.
    """

    config: MemoryConfig
    models: dict[str, AtlasForCausalLM]
    learners: dict[str, MemoryTrainer]
    reading: Reading
    ranks: Ranks = ALONE

    @property
    def sequences(self) -> Sequences:
        """What steps and tests are made of."""
        return self.reading.sequences

    def prepare(self, step: int) -> None:
        """Give all memories the chunks of the stage that a step is in."""
        if self.stages:
            self.take_stage(stage_at(step / self.config.train.steps, self.stages))

    def take_stage(self, stage: Stage) -> None:
        """Give all memories the chunks of a stage."""
        for model in self.models.values():
            if model.config.placement != "none":
                model.set_chunks(stage)

    @property
    def stages(self) -> list[Stage]:
        """The stages of training; none: the chunks of the rules throughout."""
        return [Stage(s.chunk, tuple(s.local), s.until) for s in self.config.train.stages]

    def training(self, step: int) -> Any:  # noqa: ANN401 - lines, or an episode
        """What this process trains every arm on at a step: its rows of what all of them do."""
        work = self.sequences.training(step, self.config.train.batch)
        own = work.part(self.ranks) if isinstance(work, Lines) else _parts(work, self.ranks)
        return self.placed(own)

    def whole_model(self, arm: str) -> AtlasForCausalLM:
        """An arm's model with all its weights, also where each process has a part of them."""
        model = self.models[arm]
        if not is_part(next(model.parameters())):
            return model
        weights = {name: whole(value.detach()) for name, value in model.named_parameters()}
        with torch.random.fork_rng(devices=[]):
            plain = AtlasForCausalLM(model.config)
        plain.load_state_dict(weights, strict=False)  # a tied weight is there once
        plain.eval()
        return plain

    def held_out(self, purpose: str) -> Any:  # noqa: ANN401 - lines, or an episode
        """What nothing is trained on, for `validation` or `test`."""
        return self.placed(self.sequences.held_out(purpose, self.config.task.test))

    def placed(self, work: Any) -> Any:  # noqa: ANN401 - lines, or an episode
        """The same on the run's device."""
        device = torch.device(self.config.device)
        if isinstance(work, Lines):
            return work.to(device)
        return tuple(batch.to(device) for batch in work)

    def reader(self) -> EpisodeReader:
        """How episodes are read."""
        return EpisodeReader(self.config.episodes, AtlasCache, self.config.train.loss)


def build_memory(config: MemoryConfig, ranks: Ranks = ALONE) -> MemoryRun:
    """Make the models of all arms.

    Args:
        config: The settings.
        ranks: The processes that train them together.

    Raises:
        InputError: The task or the model cannot be made, there is no such device, or several
            processes cannot share the work.
    """
    find_device(config.device)
    _check_shared(config, ranks)
    reading = build_reading(config)
    models: dict[str, AtlasForCausalLM] = {
        arm: _model(config, arm, reading.sequences.vocabulary) for arm in config.arms
    }
    learners = {
        arm: MemoryTrainer(
            model, config.train, _objective(config, ranks), _parallel(model, config, ranks)
        )
        for arm, model in models.items()
    }
    run = MemoryRun(config, models, learners, reading, ranks)
    for stage in reversed(run.stages):  # a bad one is refused before anything is trained
        run.take_stage(stage)
    return run


def _objective(config: MemoryConfig, ranks: Ranks) -> Objective:
    if config.objective == "lm":
        return NextToken(config.train.loss)
    return EpisodeObjective(EpisodeReader(config.episodes, AtlasCache, config.train.loss, ranks))


def _parts(episode: Episode, ranks: Ranks) -> Episode:
    return tuple(batch.part(ranks) for batch in episode)


def _check_shared(config: MemoryConfig, ranks: Ranks) -> None:
    """Refuse what several processes cannot do together."""
    if not ranks.several:
        return
    own = config.train
    if own.batch % ranks.count:
        raise InputError(
            f"train.batch: {own.batch}; allowed: a multiple of {ranks.count}, the processes that "
            "share it"
        )
    if config.objective == "episodes" and config.episodes.between == "keep":
        raise InputError(
            "episodes.between: keep; allowed with several processes: reset, as each would have to "
            "save the memories of its own streams"
        )
    sharded = own.parallel == "fsdp"
    if sharded and config.objective == "episodes":
        raise InputError(
            "train.parallel: fsdp; allowed with objective: lm only, as episodes carry memories "
            "that whole weights have written; allowed: ddp"
        )
    if sharded and (own.optimiser != "adamw" or own.gradient != "plain"):
        raise InputError(
            "train.parallel: fsdp; allowed with train.optimiser: adamw and train.gradient: plain "
            "only: the others need whole matrices"
        )


def _parallel(model: AtlasForCausalLM, config: MemoryConfig, ranks: Ranks) -> Parallel:
    """How several processes train a model; with `fsdp` it is divided in place."""
    if not ranks.several:
        return OneProcess()
    if config.train.parallel == "fsdp":
        shard(model, ranks)
        return OneProcess(ranks)  # gradients are averaged while they are divided
    return AveragedGradients(model, ranks)


def _model(config: MemoryConfig, arm: ArmName, vocabulary: int) -> AtlasForCausalLM:
    settings = ARMS[arm](model_settings(config, vocabulary))
    # The library draws weights from the process's generator, which must not notice.
    seed = int(generator(config.seed, "init", "memory").integers(2**63))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AtlasForCausalLM(settings)
    starts = config.model.gates.model_dump()
    share = starts.pop("share")
    for module in model.modules():
        if isinstance(module, MemoryGates):
            module.start_at(**starts)
        if isinstance(module, MemoryLayer) and module.memory is not None and share is not None:
            nn.init.constant_(module.share_proj.bias, share)
    model.eval().to(config.device)
    return model


def model_settings(config: MemoryConfig, vocabulary: int) -> AtlasConfig:
    """The model with its memory, as it is saved: its floor is the one at the end of training."""
    own = config.model
    return checked_config(
        vocab_size=vocabulary,
        hidden_size=own.width,
        num_hidden_layers=own.blocks,
        num_attention_heads=own.heads,
        intermediate_size=own.feed_forward,
        attention_window=own.window,
        placement=own.placement,
        share_bias=own.gates.share is not None,
        feed_forward=own.feed_forward_kind,
        rule=asdict(own.rule),
        local_rules=[asdict(rule) for rule in own.local_rules],
        local_shard=own.local_shard,
        feature_degree=own.degree,
        convolution_width=own.convolution,
        persistent_tokens=own.persistent,
        gate_floors={"mix": config.train.floor.points[-1][1]},
        initializer_range=own.width**-0.5 if own.spread is None else own.spread,
    )


def _detached(config: AtlasConfig) -> AtlasConfig:
    return AtlasConfig(**{**config.to_dict(), "memory_gradient": "detached"})


ARMS: dict[ArmName, Callable[[AtlasConfig], AtlasConfig]] = {
    "memory": lambda config: config,
    "window": without_memory,
    "detached": _detached,
}
"""How each arm differs from the model with a memory."""
