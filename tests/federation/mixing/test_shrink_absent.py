"""Estimated steps where clients are away: what was known of them still counts."""

import pytest
import torch

from atlas.build.federation import build_federation
from atlas.federation import rounds
from atlas.federation.mixing.distance import squared_gaps
from atlas.federation.prepare import make_plan
from tests.jobs.federation.test_planning import DATA, small

FULL, AWAY = 2, 3
"""Rounds in which everybody trains, and then rounds in which the second of each pair is away."""
DIFFERENT = {**DATA, "difference": 1.0}


def play(monkeypatch, eta="shrink", **changes):
    """Pairs of clients that differ; returns the federation and the events."""
    config = small(
        data=DIFFERENT,
        clusters={"method": "oracle"},
        relation={"eta": eta},
        keep_best=False,
        rounds=FULL + AWAY,
        **changes,
    )
    federation = build_federation(config)
    events = []

    def watch(event, fields):
        events.append((event, dict(fields)))

    def sampled(plan, state, number):
        return [c for c in state.clients if number <= FULL or c.endswith("-1")]

    monkeypatch.setattr(rounds, "sample_clients", sampled)
    make_plan(federation.plan, federation.state, federation.engine, watch)
    for _ in range(config.rounds):
        rounds.run_round(federation.plan, federation.state, federation.engine, watch)
    assert not federation.state.failures
    return federation, events


def own_weights(events):
    """By round the weight of each client's own in its mixture."""
    found = []
    for event, fields in events:
        if event == "mixed":
            own = torch.tensor(fields["weights"]).diagonal().tolist()
            found.append(dict(zip(fields["clients"], own, strict=True)))
    return found


def apart(federation):
    """By the client that was away, how far it is from its partner; both as held."""
    (group,) = federation.engine.groups
    cohort = group.arms["held"]
    pairs = [(c, c[:-1] + "1") for c in cohort.clients if c.endswith("-2")]
    one, two = (cohort.index([pair[side] for pair in pairs]) for side in (0, 1))
    found = squared_gaps(cohort, one, two).sqrt().tolist()
    return dict(zip([away for away, _ in pairs], found, strict=True))


@pytest.mark.parametrize("absent", ["restrict", "last"])
def test_who_differs_keeps_its_deviation_over_rounds_it_misses(monkeypatch, absent):
    federation, events = play(monkeypatch, absent=absent)
    known = federation.state.deviations
    differ = [c for c in apart(federation) if known[c].c > 0.1]
    assert differ
    # Of two alike in size the even step leaves half: of what is one's own, if that is mixed at all.
    even = {"restrict": 0.0, "last": 0.5}[absent]
    for own in own_weights(events)[FULL:]:
        for client in known:
            share, partner_away = known[client].share, client.endswith("-1")
            left = 1.0 if partner_away and absent == "restrict" else even
            assert own[client] == pytest.approx(share + (1.0 - share) * left)
    for client in differ:
        assert known[client].kept == pytest.approx(known[client].share)
    plain, events = play(monkeypatch, "even", absent=absent)
    for own in own_weights(events)[FULL:]:
        assert {own[client] for client in differ} == {even}
    distances, without = apart(federation), apart(plain)
    for client in differ:
        assert distances[client] > without[client]
    if absent == "restrict":
        # Everything of its partner's, and nothing of its own.
        assert max(without.values()) < 1e-6


def test_who_stays_away_is_told_what_was_last_known(monkeypatch):
    federation, events = play(monkeypatch)
    told = [fields["clients"] for event, fields in events if event == "shrunk"]
    last = own_weights(events)[-1]
    for client in told[-1]:
        assert told[-1][client]["keep"] == told[FULL - 1][client]["keep"]
        assert told[-1][client]["eta"] == pytest.approx(1.0 - last[client])
    assert federation.state.steps == told[-1]


@pytest.mark.parametrize("absent", ["restrict", "last"])
def test_with_feedback_the_share_is_that_of_what_is_left(monkeypatch, absent):
    federation, _ = play(monkeypatch, absent=absent, mixing={"feedback": 1.0})
    known = federation.state.deviations
    away = [client for client in apart(federation) if known[client].c > 0.1]
    assert away
    for client in away:
        assert known[client].kept == pytest.approx(known[client].share ** (1 + AWAY))
        assert apart(federation)[client] > 0
