"""A client's saved state is all it needs to go on."""

import pytest
import torch

from atlas.build.federation import assemble
from atlas.federation.adapters.adapter import adapter_sha256
from atlas.federation.exchange.message import decode, encode
from atlas.federation.exchange.transport import Failure
from atlas.federation.rounds import run_round
from tests.helpers import make_clients, make_config, reloaded


def ignore(event, fields):
    pass


@pytest.mark.parametrize(
    "changes", [{}, {"keep_best": True}, {"train": {"keep_moments": True}}, {"alone": False}]
)
def test_saved_clients_go_on_to_the_same_bits(changes):
    config = make_config(rounds=3, **changes)
    straight = assemble(config, make_clients())
    for _ in range(3):
        run_round(straight.plan, straight.state, straight.engine, ignore)

    first = assemble(config, make_clients())
    run_round(first.plan, first.state, first.engine, ignore)
    second = reloaded(first, config)
    for _ in range(2):
        run_round(second.plan, second.state, second.engine, ignore)
    for arm in straight.engine.groups[0].arms:
        for client in straight.holders:
            one = straight.engine.groups[0].arms[arm].take(client)
            two = second.engine.groups[0].arms[arm].take(client)
            assert adapter_sha256(one) == adapter_sha256(two), (arm, client)
    assert straight.engine.groups[0].accepts == second.engine.groups[0].accepts


def test_kept_moments_change_training_and_restart_is_the_default():
    kept = assemble(make_config(train={"keep_moments": True}), make_clients())
    fresh = assemble(make_config(), make_clients())
    for federation in (kept, fresh):
        for _ in range(2):
            run_round(federation.plan, federation.state, federation.engine, ignore)
    assert kept.engine.groups[0].moments
    assert not fresh.engine.groups[0].moments
    name = "lora_b/" + kept.models["a1"].layout.modules[0]
    one = kept.engine.groups[0].arms["held"].take("a1")[name]
    assert not torch.allclose(one, fresh.engine.groups[0].arms["held"].take("a1")[name])


def test_a_state_that_does_not_fit_is_a_failure_not_a_crash():
    federation = assemble(make_config(), make_clients())
    blob = federation.engine.ask("save", {"a1": encode({}, {})})["a1"]
    message = decode(blob)
    name = sorted(message.tensors)[0]
    cut = encode({**message.tensors, name: message.tensors[name][:1]}, message.facts)
    reply = federation.engine.ask("load", {"a1": cut, "a2": b"junk", "nobody": cut})
    assert isinstance(reply["a1"], Failure)
    assert "does not fit" in reply["a1"].reason
    assert isinstance(reply["a2"], Failure)
    assert isinstance(reply["nobody"], Failure)
