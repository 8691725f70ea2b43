"""Settings of a memory run made into models and the sequences they read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

import torch

from atlas.backbones.memory_lm import AtlasConfig, AtlasForCausalLM
from atlas.backbones.memory_lm.config import checked_config
from atlas.backbones.memory_lm.sizes import without_memory
from atlas.config.memory import ArmName, MemoryConfig
from atlas.data.recall import RecallLines, RecallTask
from atlas.data.text import TextLines
from atlas.memory.layer.settings import Stage, stage_at
from atlas.memory.training.loop import Lines, MemoryTrainer
from atlas.runs.devices import find_device
from atlas.runs.seeds import generator


class Sequences(Protocol):
    """Sequences to train on and others to test with; equal arguments give equal ones."""

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        ...

    @property
    def identity(self) -> str:
        """What is read, to the bit: a run goes on with nothing else."""
        ...

    @property
    def chance(self) -> float:
        """Share of right answers without reading: a guess, or always the commonest."""
        ...

    def training(self, step: int, count: int) -> Lines:
        """What is trained on at a step."""
        ...

    def held_out(self, purpose: str, count: int) -> Lines:
        """Sequences that nothing is trained on."""
        ...


VOCABULARY, PAIRS = 64, 8
"""Of recall, where the settings name none."""


@dataclass(frozen=True)
class MemoryRun:
    """All that is trained, and on what.

    Attributes:
        config: The settings.
        models: By arm.
        learners: Those who train them.
        sequences: What they read.
    """

    config: MemoryConfig
    models: dict[str, AtlasForCausalLM]
    learners: dict[str, MemoryTrainer]
    sequences: Sequences

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

    def training(self, step: int) -> Lines:
        """What every arm is trained on at a step."""
        return self._placed(self.sequences.training(step, self.config.train.batch))

    def held_out(self, purpose: str) -> Lines:
        """Sequences that nothing is trained on, for `validation` or `test`."""
        return self._placed(self.sequences.held_out(purpose, self.config.task.test))

    def _placed(self, lines: Lines) -> Lines:
        return lines.to(torch.device(self.config.device))


def build_memory(config: MemoryConfig) -> MemoryRun:
    """Make the models of all arms.

    Raises:
        InputError: The task or the model cannot be made, or there is no such device.
    """
    find_device(config.device)
    sequences = _sequences(config)
    models: dict[str, AtlasForCausalLM] = {
        arm: _model(config, arm, sequences.vocabulary) for arm in config.arms
    }
    learners = {arm: MemoryTrainer(model, config.train) for arm, model in models.items()}
    run = MemoryRun(config, models, learners, sequences)
    for stage in reversed(run.stages):  # a bad one is refused before anything is trained
        run.take_stage(stage)
    return run


def _sequences(config: MemoryConfig) -> Sequences:
    own = config.task
    if own.file is not None:
        return TextLines(own.file, own.length, config.seed)
    task = RecallTask(own.vocabulary or VOCABULARY, own.length, own.pairs or PAIRS)
    return RecallLines(task, config.seed)


def _model(config: MemoryConfig, arm: ArmName, vocabulary: int) -> AtlasForCausalLM:
    settings = ARMS[arm](model_settings(config, vocabulary))
    # The library draws weights from the process's generator, which must not notice.
    seed = int(generator(config.seed, "init", "memory").integers(2**63))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AtlasForCausalLM(settings)
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
        feed_forward=own.feed_forward_kind,
        rule=asdict(own.rule),
        local_rules=[asdict(rule) for rule in own.local_rules],
        local_shard=own.local_shard,
        feature_degree=own.degree,
        convolution_width=own.convolution,
        persistent_tokens=own.persistent,
        gate_floors={"mix": config.train.mix_floor[-1][1]},
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
