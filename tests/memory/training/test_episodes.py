"""Episodes against the same written plainly: one graph, one batch at a time."""

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from atlas.backbones.memory_lm import AtlasCache
from atlas.config.episodes import EpisodeSettings, PhaseGates
from atlas.config.memory_train import MemoryTrainSettings
from atlas.memory.layer.gates import Floors, GateMode
from atlas.memory.layer.state import detached, memory_alone
from atlas.memory.training.episode_batches import ARITHMETIC, WORDS, EpisodeBatch, together
from atlas.memory.training.episodes import EpisodeObjective, EpisodeReader
from atlas.memory.training.loop import Lines, MemoryTrainer
from atlas.memory.training.losses import IGNORED
from tests.backbones.memory_lm.helpers import make_model

MASK, ROWS, FLOORS = 39, 3, Floors(mix=0.2)


def batch(number, task=WORDS, length=11, rows=ROWS):
    draw = np.random.default_rng(number)
    ids = torch.from_numpy(draw.integers(1, 38, size=(rows, length)))
    following = torch.cat([ids[:, 1:], ids[:, :1]], 1)
    masked, targets = ids.clone(), torch.full_like(ids, IGNORED)
    questions = torch.full_like(ids, IGNORED)
    for row in range(rows):
        place = int(draw.integers(1, length - 2))
        masked[row, place : place + 2] = MASK
        targets[row, place : place + 2] = ids[row, place : place + 2]
        questions[row, place : place + 2] = row
    return EpisodeBatch(task, Lines(ids, following), Lines(masked, targets), questions)


EPISODE = (batch(1), batch(2, ARITHMETIC, 10), batch(3), batch(4), batch(5, ARITHMETIC, 10))


def objective(**changes):
    settings = EpisodeSettings(batches=5, **{"through": 5, **changes})
    return EpisodeObjective(EpisodeReader(settings, AtlasCache))


def read(model, lines, memory, mode):
    states, shares = model.start_states(len(lines.ids)), []
    if memory is not None:
        states = [memory_alone(*pair) for pair in zip(memory, states, strict=True)]
    cache = AtlasCache(states)
    out = model(
        lines.ids,
        past_key_values=cache,
        floors=FLOORS,
        gate_mode=mode,
        watch=lambda name, view: shares.append(view.gates["mix"].mean()),
    )
    asked = lines.targets != IGNORED
    return cross_entropy(out.logits[asked], lines.targets[asked]), shares, cache.states


def plain_gradients(model, through, weight=10.0, pull=0.1):
    """All batches in one graph, cut by hand."""
    memory, total = None, 0.0
    for number, own in enumerate(EPISODE):
        if memory is not None and (len(EPISODE) - number) % through == 0:
            memory = [detached(state) for state in memory]
        loss, shares, memory = read(model, own.storage, memory, GateMode.STORAGE)
        short = (0.3 - torch.stack(shares)).clamp_min(0)
        total = total + (loss + pull * (short**2).mean()) / len(EPISODE)
    for own in EPISODE:
        loss, shares, _ = read(model, own.retrieval, memory, GateMode.RETRIEVAL)
        short = (0.5 - torch.stack(shares)).clamp_min(0)
        total = total + (weight * loss + pull * (short**2).mean()) / len(EPISODE)
    found = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
    return float(total.detach()), found


@pytest.mark.parametrize("through", [1, 2, 3, 5, 9])
def test_gradients_are_those_of_the_plain_way(through):
    model, own = make_model("gate"), objective(through=through)
    made = own.backward(model, EPISODE, FLOORS, watched=False)
    total, plain = plain_gradients(make_model("gate"), through)
    assert made.loss == pytest.approx(total, abs=1e-10)
    for value, wanted in zip(model.parameters(), plain, strict=True):
        assert (value.grad is None) == (wanted is None)
        if wanted is not None:
            assert torch.allclose(value.grad, wanted, atol=1e-9)


@pytest.mark.parametrize("through", [1, 2, 4, 5])
def test_gradients_of_retrieval_reach_exactly_so_many_batches_of_storage(through, monkeypatch):
    model = make_model("gate")
    own = objective(through=through, pull=0.0)
    seen = []

    def embed(module, inputs, out):
        out.retain_grad()
        seen.append(out)

    model.model.embed_tokens.register_forward_hook(embed)
    # Storage itself asks for nothing, so whatever arrives there comes from retrieval.
    silent = [b._replace(storage=Lines(b.storage.ids, b.storage.targets)) for b in EPISODE]
    original = EpisodeReader.loss_of

    def without_storage(self, model, lines, memory, mode, floors, **more):
        loss, *rest = original(self, model, lines, memory, mode, floors, **more)
        return (loss * (mode is GateMode.RETRIEVAL), *rest)

    monkeypatch.setattr(EpisodeReader, "loss_of", without_storage)
    own.backward(model, tuple(silent), FLOORS, watched=False)
    reached = [out.grad is not None and bool(out.grad.abs().sum() > 0) for out in seen[:5]]
    assert reached == [number >= 5 - through for number in range(5)]


@pytest.mark.parametrize("placement", ["gate", "layer", "context"])
def test_retrieval_sees_storage_through_the_memory_alone(placement):
    """Two streams that left the same memory answer alike, whatever else they read last."""
    model = make_model(placement)
    reader = EpisodeReader(EpisodeSettings(), AtlasCache)
    _, one = reader.read(model, batch(1).storage, None, GateMode.STORAGE, FLOORS)
    _, two = reader.read(model, batch(2).storage, None, GateMode.STORAGE, FLOORS)
    swapped = [
        b._replace(layer=b.layer._replace(branch=b.layer.branch._replace(memory=a.layer.branch.memory)))
        for a, b in zip(one, two, strict=True)
    ]  # fmt: skip
    lines = batch(7).retrieval
    logits = [
        reader.read(model, lines, memory, GateMode.RETRIEVAL, FLOORS)[0].logits
        for memory in (one, swapped, two)
    ]
    assert torch.equal(logits[0], logits[1])
    assert not torch.allclose(logits[0], logits[2])


def test_a_model_without_a_memory_carries_nothing_over():
    model, reader = make_model("none"), EpisodeReader(EpisodeSettings(), AtlasCache)
    _, left = reader.read(model, batch(1).storage, None, GateMode.STORAGE, FLOORS)
    lines = batch(1).retrieval
    own, empty = (
        reader.read(model, lines, memory, GateMode.RETRIEVAL, FLOORS)[0].logits
        for memory in (left, None)
    )
    assert torch.equal(own, empty)


@pytest.mark.parametrize("rule", [{}, {"gradient": "chunk-start", "chunk": 4}, {"window": 4}])
def test_retrieval_leaves_the_memory_as_it_is_and_storage_does_not(rule):
    model = make_model("gate", rule=rule)
    reader = EpisodeReader(EpisodeSettings(), AtlasCache)
    _, left = reader.read(model, batch(1).storage, None, GateMode.STORAGE, FLOORS)
    _, after = reader.read(model, batch(1).retrieval, left, GateMode.RETRIEVAL, FLOORS)
    _, written = reader.read(model, batch(1).retrieval, left, GateMode.STORAGE, FLOORS)
    for before, kept, moved in zip(left, after, written, strict=True):
        memories = [state.layer.branch.memory.memory for state in (before, kept, moved)]
        assert torch.equal(memories[0], memories[1])
        assert not torch.allclose(memories[0], memories[2])


def test_an_emptied_memory_is_where_every_text_starts():
    model, reader = make_model("gate"), EpisodeReader(EpisodeSettings(), AtlasCache)
    lines = batch(3).storage
    read_on, _ = reader.read(model, lines, None, GateMode.STORAGE, FLOORS)
    assert torch.equal(read_on.logits, model(lines.ids, floors=FLOORS).logits)


@pytest.mark.parametrize(
    "change",
    [
        {"weight": 1.0},
        {"pull": 5.0, "retrieval": PhaseGates(target=1.0)},
        {"pull": 5.0, "storage": PhaseGates(target=1.0)},
        {"retrieval": PhaseGates(target=0.5, floor=0.7)},
        {"storage": PhaseGates(target=0.3, floor=0.7)},
        {"through": 1},
    ],
    ids=str,
)
def test_every_setting_of_an_episode_counts(change):
    def gradient(**changes):
        model = make_model("gate")
        objective(**changes).backward(model, EPISODE, FLOORS, watched=False)
        return model.model.embed_tokens.weight.grad

    assert not torch.allclose(gradient(), gradient(**change))


def test_a_memory_that_is_kept_goes_on_and_is_saved():
    settings = MemoryTrainSettings(steps=6, batch=ROWS, lr=0.01)

    def learner(between):
        return MemoryTrainer(make_model("gate"), settings, objective(between=between, through=2))

    keep, reset, first, second = (learner(b) for b in ("keep", "reset", "keep", "keep"))
    for step in range(2):
        losses = [own.step(step, EPISODE).loss for own in (keep, reset, first)]
    assert losses[0] == losses[2] != losses[1]
    saved = {name: value.clone() for name, value in first.tensors().items()}
    assert any(name.startswith("carried|") for name in saved)
    assert not any(name.startswith("carried|") for name in reset.tensors())
    second.load(saved)
    for step in range(2, 4):
        assert second.step(step, EPISODE) == keep.step(step, EPISODE)


def test_batches_that_are_read_at_once_are_those_of_one_task(monkeypatch):
    found = together(EPISODE)
    assert [(own.task, count) for own, count in found] == [(WORDS, 3), (ARITHMETIC, 2)]
    assert found[0][0].questions.max() == 3 * ROWS - 1
    monkeypatch.setattr("atlas.memory.training.episode_batches.TOGETHER", 2 * 11 * ROWS)
    assert [count for _, count in together(EPISODE)] == [2, 1, 2]


def test_what_is_watched_changes_nothing_and_tells_both_phases():
    one, two = make_model("gate"), make_model("gate")
    seen = objective().backward(one, EPISODE, FLOORS, watched=True)
    unseen = objective().backward(two, EPISODE, FLOORS, watched=False)
    assert seen.loss == unseen.loss and unseen.memory is None
    pairs = zip(one.parameters(), two.parameters(), strict=True)
    assert all(a.grad is None or torch.equal(a.grad, b.grad) for a, b in pairs)
    shares = [seen.memory[f"layers.0/gate.mix{phase}.mean"] for phase in ("", ".storage")]
    assert shares[0] != shares[1] and seen.memory["layers.0/S_norm"] > 0
    assert set(seen.measures) == {"storage_loss", "retrieval_loss", "softmax_collapse"}
