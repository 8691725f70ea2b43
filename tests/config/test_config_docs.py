"""The page on settings names every setting."""

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from atlas.config.federation import FederationConfig
from atlas.config.grokking import GrokkingConfig
from atlas.config.memory import MemoryConfig
from atlas.config.plan import PROFILES, DeviceSettings

PAGE = (Path(__file__).parents[2] / "docs" / "settings.md").read_text(encoding="utf-8")
CELLS = re.findall(r"^\| (`[^|]+) \|", PAGE, flags=re.MULTILINE)
NAMED = {name for cell in CELLS for name in re.findall(r"`([^`]+)`", cell)}
OWN_SECTION = {"kind", "clients", "tasks", "devices"}


def keys_of(model, start=""):
    for name, field in model.model_fields.items():
        inner = field.annotation
        if is_dataclass(inner):
            yield from (f"{start}{name}.{own.name}" for own in fields(inner))
        elif isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from keys_of(inner, f"{start}{name}.")
        else:
            yield f"{start}{name}"


@pytest.mark.parametrize("key", sorted(set(keys_of(FederationConfig)) - OWN_SECTION))
def test_every_setting_has_a_row(key):
    assert key in NAMED


@pytest.mark.parametrize("key", sorted(set(keys_of(MemoryConfig)) - OWN_SECTION))
def test_every_setting_of_a_memory_run_has_a_row(key):
    rows = PAGE.partition("## Memory runs")[2]
    assert f"`{key}`" in rows


@pytest.mark.parametrize("key", sorted(set(keys_of(GrokkingConfig)) - OWN_SECTION))
def test_every_setting_of_a_grokking_run_has_a_row(key):
    rows = PAGE.partition("## Grokking runs")[2]
    assert f"`{key}`" in rows


@pytest.mark.parametrize("key", sorted(keys_of(DeviceSettings)))
def test_every_setting_of_a_device_has_a_row(key):
    assert f"devices.<name>.{key}" in NAMED


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_the_built_in_devices_are_as_told(name):
    device = PROFILES[name]
    ceiling = f" {device.largest_rank} " if device.largest_rank else " "
    assert f"| `{name}` | {device.memory_mb:.0f} |{ceiling}|" in PAGE
