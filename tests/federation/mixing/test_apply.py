"""What a relation looks at is made once for every cohort and round, and only as far as it looks."""

from collections import Counter

import pytest

from atlas.build.federation import assemble
from atlas.federation import rounds
from atlas.federation.mixing import apply
from atlas.federation.prepare import make_plan
from atlas.federation.strategies.base import STRATEGIES
from tests.helpers import make_client, make_clients, make_config


def played(**changes):
    """Two rounds of two cohorts; returns the federation."""
    others = [make_client(name, seed=i, backbone="tiny-causal") for i, name in enumerate("xy", 7)]
    federation = assemble(make_config(alone=False, **changes), [*make_clients(), *others])
    given = (federation.plan, federation.state, federation.engine, lambda event, fields: None)
    make_plan(*given)
    for _ in range(2):
        rounds.run_round(*given)
    assert not federation.state.failures
    return federation


def counted(monkeypatch, module, name):
    """How often a function is called, by backbone."""
    calls, real = Counter(), getattr(module, name)

    def count(*given):
        cohort = next(value for value in given if hasattr(value, "layout"))
        calls[cohort.layout.backbone] += 1
        return real(*given)

    monkeypatch.setattr(module, name, count)
    return calls


@pytest.mark.parametrize("name", sorted(set(STRATEGIES) - {"hetlora", "pooled"}))
def test_norms_are_not_measured_for_a_relation_that_does_not_read_them(name, monkeypatch):
    def measured(cohort):
        raise AssertionError("nobody reads the norms")

    monkeypatch.setattr(apply, "change_norms", measured)
    federation = played(strategy=name, fingerprint={"sketch": 16, "folds": 2}, keep_best=False)
    assert federation.state.round == 2


@pytest.mark.parametrize("alpha", [1.0, "auto"])
def test_hetlora_measures_the_norms_once_for_every_cohort_and_round(alpha, monkeypatch):
    calls = counted(monkeypatch, apply, "change_norms")
    played(strategy="hetlora", relation={"alpha": alpha})
    assert calls == {"tiny": 2, "tiny-causal": 2}


def test_a_cohort_is_looked_at_once_in_a_round(monkeypatch):
    calls, inside = counted(monkeypatch, rounds, "view_of"), counted(monkeypatch, apply, "view_of")
    played()
    assert calls == {"tiny": 2, "tiny-causal": 2}
    assert not inside
