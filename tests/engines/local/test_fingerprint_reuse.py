"""Fingerprints are taken once for equal clients, and again where anything differs."""

from dataclasses import replace

import pytest
import torch

from atlas.build.federation import assemble
from atlas.config.plan import FingerprintSettings
from atlas.engines.local import fingerprint as printing
from atlas.engines.local.fingerprint import KnownPrints, print_key
from atlas.federation.fingerprints.take import Print
from atlas.federation.training.loop import Clock
from tests.helpers import make_client, make_config

SETTINGS = FingerprintSettings(sketch=32, folds=2)
CLOCK = Clock(0, 1, 1)


def group_of(**changes):
    config = make_config(strategy="local", alone=False, **changes)
    return assemble(config, [make_client("one"), make_client("two", seed=1)]).engine.groups[0]


@pytest.fixture
def counted(monkeypatch):
    """How many fingerprints were really taken."""
    taken = []

    def take(store, stack, lesson, settings, seed):
        taken.append(lesson.client)
        return real(store, stack, lesson, settings, seed)

    real = printing.take_print
    monkeypatch.setattr(printing, "take_print", take)
    return taken


def prints(group, clients=("one", "two"), settings=SETTINGS, clock=CLOCK):
    return printing.print_group(group, list(clients), settings, make_config().train, clock)


def test_a_second_run_takes_none_and_gets_the_same(counted):
    first, second = prints(group_of()), prints(group_of())
    assert counted == ["one", "two"]
    assert list(first) == list(second) == ["one", "two"]
    for name, sketch in first["two"].sketches.items():
        assert torch.equal(sketch, second["two"].sketches[name])
    prints(group_of(), ["two"])
    assert len(counted) == 2


def test_what_it_depends_on_takes_it_again(counted):
    prints(group_of())
    prints(group_of(), settings=SETTINGS.model_copy(update={"folds": 3}))
    prints(group_of(), clock=replace(CLOCK, seed=1))
    prints(group_of(adapter={"rank": 5}))
    other = group_of()
    holder = other.holders["one"]
    data = replace(holder.data, train=holder.data.train[1:])
    other.holders["one"] = replace(holder, data=data)
    other._store = None
    prints(other, ["one"])
    assert len(counted) == 9


def test_a_trained_start_is_never_known(counted):
    warm = SETTINGS.model_copy(update={"warmup": 1})
    prints(group_of(), settings=warm)
    prints(group_of(), settings=warm)
    assert len(counted) == 4


def test_threads_are_part_of_the_key():
    group, before = group_of(), torch.get_num_threads()
    try:
        keys = set()
        for threads in (1, 2):
            torch.set_num_threads(threads)
            keys.add(print_key(group, "one", SETTINGS, 0))
    finally:
        torch.set_num_threads(before)
    assert len(keys) == 2


def test_the_oldest_are_forgotten():
    known = KnownPrints(most=3 * 40)
    for name in "abc":
        known.keep(name, Print({"text": torch.zeros(10)}, {}, 1))
    assert known.get("a") is not None  # asked for, so that b is the oldest now
    known.keep("d", Print({"text": torch.zeros(10)}, {}, 1))
    assert known.get("b") is None
    assert all(known.get(name) is not None for name in "acd")
    assert known.held == 120
