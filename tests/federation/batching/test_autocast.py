"""`backbone.autocast` rounds products where adapters are, and nothing else."""

import numpy as np
import pytest
import torch

from atlas.build.federation import assemble
from atlas.federation.batching.forward import adapters_active, stack_cohorts
from atlas.federation.rounds import run_round
from tests.engines.local.test_causal import ECHO, client, free
from tests.helpers import make_client, make_config


def echo(name, seed):
    return client(name, ECHO, free, seed)


def federation_of(name, make, **backbone):
    settings = make_config(
        strategy="fedavg", backbone={"name": name, "max_length": 40, **backbone},
        train={"lr": 0.01, "epochs": 2},
    )  # fmt: skip
    return assemble(settings, [make(f"c{seed}", seed=seed) for seed in range(2)])


def losses_of(federation, rounds=3):
    losses = []
    for _ in range(rounds):
        run_round(
            federation.plan,
            federation.state,
            federation.engine,
            lambda event, fields: losses.append(fields["loss"]) if event == "fitted" else None,
        )
    return losses


@pytest.mark.parametrize(
    ("name", "make"), [("tiny", make_client), ("tiny-causal", make_client), ("tiny-causal", echo)]
)
def test_numbers_change_a_little_and_training_still_falls(name, make):
    plain = losses_of(federation_of(name, make))
    rounded = losses_of(federation_of(name, make, autocast="bfloat16"))
    assert rounded != plain
    assert rounded == pytest.approx(plain, rel=0.05)
    assert np.mean(rounded[-2:]) < np.mean(rounded[:2])


def test_adapters_stay_in_full_precision():
    federation = federation_of("tiny", make_client, autocast="bfloat16")
    losses_of(federation, 1)
    group = federation.engine.groups[0]
    stack = stack_cohorts([group.arms["held"]])
    assert {value.dtype for value in stack.tensors.values()} == {torch.float32}
    with adapters_active(group.model, stack):
        assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
