"""Devices are named, and refused plainly where they are not."""

import pytest
import torch

from atlas.build.memory import build_memory
from atlas.config.load import load_config
from atlas.errors import InputError
from atlas.runs.devices import devices_here, find_device


def test_the_processor_is_always_there():
    assert devices_here()[0] == "cpu"
    assert find_device("cpu") == torch.device("cpu")


def test_every_card_has_a_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert devices_here() == ["cpu", "cuda", "cuda:0", "cuda:1", "mps"]
    assert find_device("cuda:1").index == 1
    with pytest.raises(InputError, match="cuda:2 is not available here; allowed: cpu, cuda"):
        find_device("cuda:2")


@pytest.mark.parametrize("name", ["cuda:7", "mps"])
def test_a_memory_run_says_what_is_there(name, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    config = load_config("recall", [f"device={name}"])
    assert config.device == name
    with pytest.raises(InputError, match=f"device: {name} is not available here; allowed: cpu"):
        build_memory(config)
