"""Training steps against the same written plainly."""

import math

import pytest
import torch
from torch.nn.functional import cross_entropy

from atlas.config.memory_train import FloorSettings, MemoryTrainSettings
from atlas.data.recall import RecallTask, draw_recall
from atlas.memory.layer.gates import Floors
from atlas.memory.training.loop import Diverged, Lines, MemoryTrainer
from atlas.memory.training.losses import IGNORED
from tests.backbones.memory_lm.helpers import make_model

TASK = RecallTask(vocabulary=40, length=16, pairs=2)
SETTINGS = MemoryTrainSettings(steps=8, batch=4, lr=0.02, warmup=0.25, weight_decay=0.1, clip=0.5)


def lines(step=0, count=4):
    return draw_recall(TASK, count, 0, "train", step)


def learner(**changes):
    return MemoryTrainer(make_model("gate"), SETTINGS.model_copy(update=changes))


def plain_losses(steps, settings):
    """AdamW, clipping, warm-up, half a cosine and floors, one parameter at a time."""
    model, losses = make_model("gate"), []
    moments = {n: (torch.zeros_like(p), torch.zeros_like(p)) for n, p in model.named_parameters()}
    for t in range(steps):
        at = (t + 0.5) / settings.steps
        share = at / 0.25 if at < 0.25 else (1 + math.cos(math.pi * (at - 0.25) / 0.75)) / 2
        done = t / settings.steps
        floor = 0.3 if done < 0.25 else 0.1 if done < 0.75 else 0.05
        batch = lines(t)
        logits = model(batch.ids, floors=Floors(mix=floor)).logits
        loss = cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED)
        losses.append(float(loss.detach()))
        grads = torch.autograd.grad(loss, list(model.parameters()))
        norm = math.sqrt(sum(float(g.square().sum()) for g in grads))
        for (name, p), g in zip(model.named_parameters(), grads, strict=True):
            g = g * min(1, settings.clip / (norm + 1e-6))
            first, second = moments[name]
            first.mul_(0.9).add_(0.1 * g)
            second.mul_(0.999).add_(0.001 * g * g)
            update = (first / (1 - 0.9 ** (t + 1))) / (
                (second / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8
            )
            decay = settings.weight_decay if p.ndim > 1 else 0.0
            p.data.mul_(1 - settings.lr * share * decay).sub_(settings.lr * share * update)
    return losses


def test_steps_are_those_of_a_plain_loop():
    trained = learner()
    losses = [trained.step(t, lines(t)).loss for t in range(6)]
    assert losses == pytest.approx(plain_losses(6, SETTINGS), abs=1e-9)


@pytest.mark.parametrize(
    "change",
    [
        {"clip": None}, {"weight_decay": 0.0}, {"warmup": 0.0}, {"schedule": "linear"},
        {"floor": FloorSettings(points=[(0, 0.0)])}, {"lr": 0.01},
        {"loss": "stablemax"}, {"gradient": "perpendicular"}, {"optimiser": "muon"},
    ],
    ids=str,
)  # fmt: skip
def test_every_setting_counts(change):
    def losses(**changes):
        trained = learner(**changes)
        return [trained.step(t, lines(t)).loss for t in range(5)]

    assert losses(**change)[-1] != losses()[-1]


def test_the_score_is_that_of_all_sequences_at_once():
    trained, held_out = learner(), lines(99, count=10)  # not a multiple of the batch
    found = trained.score(held_out, done=0)
    logits = trained.model(held_out.ids, floors=Floors(mix=0.3)).logits.detach()
    asked = held_out.targets != IGNORED
    assert found.loss == pytest.approx(float(cross_entropy(logits[asked], held_out.targets[asked])))
    right = (logits.argmax(-1) == held_out.targets)[asked]
    assert found.accuracy == pytest.approx(float(right.double().mean()))
    assert found.memory["layers.0/gate.mix.above_floor"] > 0
    later = trained.score(held_out, done=8)
    assert later.loss != found.loss, "the floor at the end is another one"


def test_what_is_watched_does_not_change_the_step():
    one, two = learner(), learner()
    seen, unseen = one.step(0, lines(), watched=True), two.step(0, lines())
    assert seen.loss == unseen.loss and unseen.memory is None
    assert seen.memory["layers.1/M_norm"] > 0


def test_a_learner_put_back_goes_on_as_if_nothing_had_happened():
    whole, first = learner(), learner()
    for t in range(2):
        whole.step(t, lines(t))
        first.step(t, lines(t))
    saved = {name: value.clone() for name, value in first.tensors().items()}
    second = learner()
    second.load(saved)
    for t in range(2, 5):
        assert second.step(t, lines(t)) == whole.step(t, lines(t))
    forgetful = learner()
    forgetful.load({name: value for name, value in saved.items() if name.startswith("weight|")})
    forgetful.step(2, lines(2))
    assert forgetful.step(3, lines(3)).loss != second.step(3, lines(3)).loss


def test_what_does_not_fit_is_refused():
    trained = learner()
    trained.step(0, lines())
    saved = trained.tensors()
    with pytest.raises(KeyError):
        learner().load({})
    name = next(name for name in saved if name.startswith("weight|"))
    with pytest.raises(ValueError, match="has shape"):
        learner().load({**saved, name: saved[name][:1]})
    with pytest.raises(KeyError):
        learner().load({n: v for n, v in saved.items() if not n.startswith("exp_avg_sq|")})


def test_lines_move_together():
    moved = Lines(torch.zeros(1, 2), torch.ones(1, 2)).to(torch.device("meta"))
    assert moved.ids.is_meta and moved.targets.is_meta


@pytest.mark.parametrize("change", [{"optimiser": "muon"}, {"gradient": "perpendicular"}], ids=str)
def test_other_ways_of_training_are_put_back_as_well(change):
    whole, first, second = learner(**change), learner(**change), learner(**change)
    for t in range(2):
        whole.step(t, lines(t))
        first.step(t, lines(t))
    second.load({name: value.clone() for name, value in first.tensors().items()})
    for t in range(2, 4):
        assert second.step(t, lines(t)) == whole.step(t, lines(t))


def test_a_perpendicular_step_leaves_the_length_of_matrices_almost_as_it_was():
    def growth(**changes):
        trained = learner(weight_decay=0.0, clip=None, warmup=0.0, **changes)
        trained.optimisers.zero_grad()
        trained.objective.backward(trained.model, lines(), trained.floors(0), watched=False)
        trained._finish_gradients(watched=False)
        weight = trained.model.lm_head.weight
        return abs(float((weight.detach() * weight.grad).sum()))

    assert growth(gradient="perpendicular") < 1e-9 < growth()


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_changes_nothing(value):
    trained = learner()
    trained.step(0, lines())
    bad = trained.model.model.layers[0].mlp.down_proj.weight
    with torch.no_grad():
        bad[0, 0] = value
    before = {name: kept.clone() for name, kept in trained.tensors().items()}
    with pytest.raises(Diverged, match=r"the loss is nan at step 2"):
        trained.step(1, lines(1))
    after = trained.tensors()
    assert all(torch.equal(after[n].nan_to_num(7), before[n].nan_to_num(7)) for n in before)


def test_stability_is_measured_where_it_is_watched():
    trained = learner()
    seen = trained.step(0, lines(), watched=True).measures
    assert seen["softmax_collapse"] == 0.0 and -1 < seen["scaling_cosine"] < 1
    with torch.no_grad():
        trained.model.lm_head.weight.mul_(1e4)
    # Logits of thousands leave float64's softmax with nothing but its largest.
    assert trained.step(1, lines(1), watched=True).measures["softmax_collapse"] > 0.5
    assert trained.step(2, lines(2)).measures == {}
