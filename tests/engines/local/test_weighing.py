"""`train.weigh: metric`: classes count alike in losses where the task's metric minds rare ones."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from atlas.build.federation import assemble
from atlas.config.plan import FingerprintSettings
from atlas.engines.local import fingerprint as printing
from atlas.engines.local.deliver import _losses, validate
from atlas.engines.local.fingerprint import KnownPrints
from atlas.federation.batching.forward import stack_cohorts
from atlas.federation.rounds import run_round
from atlas.federation.training.loop import Clock, Course, fit
from atlas.federation.training.step import shared_gradients
from tests.federation.training.test_step_shared import moving_stack, picks_of, undivided
from tests.helpers import make_client, make_config, make_task

CLOCK = Clock(0, 1, 1)
FAIR = replace(make_task(), metric="matthews")


def skewed(name, positives, total=12, task=FAIR, seed=0):
    """A client of whose training and validation examples so many are positive."""
    pool = make_client(name, task, train=60, validation=60, seed=seed)

    def dealt(examples, count):
        rare = [e for e in examples if e.label][:positives]
        return tuple(rare + [e for e in examples if not e.label][: count - positives])

    return replace(pool, train=dealt(pool.train, total), validation=dealt(pool.validation, 8))


def federation(weigh, clients=None, **changes):
    settings = {"strategy": "local", "alone": False, "backbone": {"dtype": "float64"}}
    train = {"weigh": weigh, **changes.pop("train", {})}
    config = make_config(**{**settings, **changes}, train=train)
    clients = clients or [skewed("a", 2), skewed("b", 5, seed=1)]
    return assemble(config, clients), config


def group_of(weigh, clients=None, **changes):
    return federation(weigh, clients, **changes)[0].engine.groups[0]


def held_after_a_round(weigh, **changes):
    built, _ = federation(weigh, **changes)
    run_round(built.plan, built.state, built.engine, lambda event, fields: None)
    return built.engine.groups[0].arms["held"].take("a")


@pytest.mark.parametrize("stacked", [True, False])
def test_the_setting_changes_what_is_learned(stacked):
    train = {"stacked": stacked}
    plain, fair = (held_after_a_round(one, train=train) for one in ("examples", "metric"))
    assert any((plain[name] - value).abs().max() > 1e-3 for name, value in fair.items())


def test_every_class_counts_as_much_in_all():
    store = group_of("metric").store
    for part in ("a/train", "a/validation", "b/train", "b/validation"):
        rows = torch.from_numpy(store.rows(part))
        labels, weights = store.labels[rows], store.weights[rows]
        assert float(weights.mean()) == pytest.approx(1)
        shares = [float(weights[labels == label].sum()) for label in (0, 1)]
        assert shares == pytest.approx([len(rows) / 2] * 2)
    assert group_of("examples").store.weights is None
    accurate = group_of("metric", [skewed("a", 2, task=make_task())])
    assert bool((accurate.store.weights == 1).all())


def test_one_class_alone_counts_as_ever():
    group = group_of("metric", [skewed("a", 0)])
    assert bool((group.store.weights == 1).all())


def test_validation_losses_that_choose_mixtures_weigh_classes():
    fair, plain = group_of("metric"), group_of("examples")
    cohort = plain.arms["held"]
    wanted = _losses(plain, cohort, ["a"])["a"]
    labels = np.array([example.label for example in plain.holders["a"].data.validation])
    weights = np.where(labels == 1, 8 / (2 * 2), 8 / (2 * 6))
    found = _losses(fair, cohort, ["a"])["a"]
    assert np.allclose(found, wanted * weights, atol=1e-12, rtol=0)
    assert not np.allclose(found, wanted)
    assert validate(fair, [cohort], ["a"])[0]["a"]["loss"] == pytest.approx(found.mean())


def test_tests_count_all_examples_alike():
    assert group_of("metric").test_store.weights is None


@pytest.mark.parametrize("blocks", [1, 2, 3])
def test_fingerprints_do_not_depend_on_it(monkeypatch, blocks):
    """One, two and three blocks are looked at, adapters sit in two: with and without own store."""
    settings = FingerprintSettings(sketch=32, folds=2, blocks=blocks)
    found = {}
    for weigh in ("examples", "metric"):
        monkeypatch.setattr(printing, "KNOWN", KnownPrints())
        built, config = federation(weigh)
        group = built.engine.groups[0]
        found[weigh] = printing.print_group(group, ["a", "b"], settings, config.train, CLOCK)
        assert (group.store.weights is None) == (weigh == "examples")
    for client, one in found["examples"].items():
        for name, sketch in one.sketches.items():
            assert torch.equal(sketch, found["metric"][client].sketches[name])


def test_texts_divided_among_cores_add_up(two_cores):
    group = group_of("metric")
    stack, picks = moving_stack(group), picks_of(group, 12)
    losses, grads = shared_gradients(group.store, stack, picks)
    wanted, theirs = undivided(group, stack, picks)
    assert torch.allclose(losses, wanted, atol=1e-10, rtol=0)
    assert all(torch.allclose(grads[key], v, atol=1e-10, rtol=0) for key, v in theirs.items())
    plain, _ = shared_gradients(group.store.unweighed(), stack, picks)
    assert bool(((losses - plain).abs() > 1e-3).all())


def test_a_split_fit_equals_a_whole_one():
    group = group_of("metric")
    stack = stack_cohorts([group.arms["held"]])
    lessons = [group.lesson(client) for client in group.holders]
    _, config = federation("metric")
    whole = fit(group.store, Course(stack, lessons), config.train, CLOCK)
    split = fit(group.store, Course(stack, lessons, points=[1, 1]), config.train, CLOCK)
    plain = fit(group.store.unweighed(), Course(stack, lessons), config.train, CLOCK)
    for name, value in whole.stack.tensors.items():
        assert torch.allclose(split.stack.tensors[name], value, atol=1e-10, rtol=0)
    apart = [(plain.stack.tensors[k] - v).abs().max() for k, v in whole.stack.tensors.items()]
    assert max(apart) > 1e-3
