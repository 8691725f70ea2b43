"""Devices that a run can be on, and a plain refusal of those that are not here."""

from __future__ import annotations

import torch

from atlas.errors import InputError


def devices_here() -> list[str]:
    """Names of the devices that torch finds on this machine."""
    cuda = torch.cuda.device_count() if torch.cuda.is_available() else 0
    found = ["cpu", *(["cuda"] if cuda else []), *(f"cuda:{i}" for i in range(cuda))]
    return [*found, "mps"] if torch.backends.mps.is_available() else found


def find_device(name: str) -> torch.device:
    """The device of that name.

    Raises:
        InputError: If it is not here.
    """
    here = devices_here()
    if name not in here:
        raise InputError(f"device: {name} is not available here; allowed: {', '.join(here)}")
    return torch.device(name)
