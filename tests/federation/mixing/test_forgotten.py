"""Of whom nothing is remembered any more, what is said of it, and what is mixed instead."""

import pytest

from atlas.federation.adapters.adapter import Adapter
from tests.federation.mixing.recursion import dense, even, gap, play, sizes


def test_a_client_that_holds_something_else_is_told_and_forgotten():
    def other(client, number, adapter):
        wrong = client == "c001" and number == 2
        return Adapter({k: v * 1.01 for k, v in adapter.items()}) if wrong else adapter

    reasons = {
        1.0: "the client does not hold what was sent",
        0.5: "the client does not hold a share of 0.5 of what was sent, to the bit",
        0.0: "the client took nothing, but does not hold what it trained",
    }
    for share, why in reasons.items():
        told = {"hold": other, "shares": lambda c, r, s=share: 1.0 if r == 1 else s}
        states = []
        for state, _, _ in play([1, 2, 4, 8], 1.0, 2, relation=even, **told):
            states.append((sizes(state, 1), [dict(entry) for entry in state.failures]))
        assert min(states[0][0]) > 0 and not states[0][1]
        assert states[1][0] == [0.0, 0.0]
        assert [entry["client"] for entry in states[1][1]] == ["c001"]
        assert states[1][1][0]["reason"] == f"deliver: {why}; what its rank cut off is forgotten"


@pytest.mark.parametrize("share", [0.5, 0.0])
def test_a_refused_client_that_keeps_of_its_own_is_forgotten_and_not_blamed(share):
    told = {"refused": {("c002", 2)}, "relation": even}
    told["shares"] = lambda client, number: 0.5 if number == 1 else share
    *_, (state, _, _) = play([1, 2, 4, 8], 1.0, 2, **told)
    assert not state.failures
    assert [entry["client"] for entry in state.refused] == ["c002"] * 2
    assert "nobody can tell what it holds now" in state.refused[1]["reason"]
    assert sizes(state, 2) == [0.0, 0.0]
    assert min(sizes(state, 0)) > 0


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_of_a_client_that_does_not_say_what_it_holds_nothing_is_remembered(strength):
    """Its answer is lost, or names an offer that there was not."""

    def odd(client, number):
        return 7 if (client, number) == ("c003", 3) else 0

    told = {"relation": even, "lost": {("c001", 2)}, "picks": odd}
    for state, clients, _ in play([1, 2, 4, 8], strength, 4, **told):
        gone = {2: 1, 3: 3}.get(clients.number)
        for row in range(4):
            assert (min(sizes(state, row)) > 0) == (row != gone)
        failures = [(entry["round"], entry["client"]) for entry in state.failures]
        assert failures == [(2, "c001"), (3, "c003")][: clients.number - 1]
    assert "forgotten" in state.failures[1]["reason"]
    assert gap(dense(state.cohorts["law"]), dense(clients.held)) < 1e-12


def test_of_other_bits_in_a_part_the_servers_own_are_the_best_guess():
    def other(client, number, adapter):
        return Adapter({k: v * (1 + 1e-12) for k, v in adapter.items()})

    told = {"relation": even, "hold": other, "shares": lambda client, number: 0.5}
    for state, clients, _ in play([1, 2, 4, 8], 1.0, 2, **told):
        assert len(state.failures) == 4 * clients.number
        assert gap(dense(state.cohorts["law"]), dense(clients.held)) < 1e-10
        assert all(sizes(state, row) == [0.0, 0.0] for row in range(4))
