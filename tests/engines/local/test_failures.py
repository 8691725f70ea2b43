"""A client that cannot train fails alone; the others train exactly once."""

import pytest

from atlas.build.federation import assemble
from atlas.engines.local import engine as local
from atlas.federation.adapters.adapter import adapter_sha256
from atlas.federation.exchange.message import encode
from atlas.federation.exchange.transport import Failure
from tests.helpers import make_clients, make_config


def fitted(config):
    federation = assemble(config, make_clients())
    requests = {client: encode({}, {"round": 1}) for client in federation.holders}
    replies = federation.engine.ask("fit", requests)
    held = federation.engine.groups[0].arms["held"]
    return replies, {client: adapter_sha256(held.take(client)) for client in held.clients}


@pytest.mark.parametrize("stacked", [True, False])
def test_one_failing_client_leaves_the_others_as_they_would_be(monkeypatch, stacked):
    config = make_config(train={"stacked": False}, alone=False)
    _, alone = fitted(config)
    train = local.fit_group

    def broken(group, clients, *rest):
        if "b1" in clients:
            raise RuntimeError("out of memory")
        return train(group, clients, *rest)

    monkeypatch.setattr(local, "fit_group", broken)
    replies, found = fitted(make_config(train={"stacked": stacked}, alone=False))
    assert isinstance(replies["b1"], Failure)
    assert "out of memory" in replies["b1"].reason
    for client in ("a1", "a2", "b2", "c1"):
        assert isinstance(replies[client], bytes)
        assert found[client] == alone[client]
    assert found["b1"] != alone["b1"]


def test_a_fault_of_ours_is_not_hidden(monkeypatch):
    def broken(*arguments):
        raise TypeError("a bug")

    monkeypatch.setattr(local, "fit_group", broken)
    with pytest.raises(TypeError, match="a bug"):
        fitted(make_config(alone=False))
