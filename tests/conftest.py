import os
from pathlib import Path

import pytest
import torch

from atlas.engines.local import fingerprint as printing
from atlas.engines.local.fingerprint import KnownPrints

# Small models are fastest on one thread, and bits depend on the count.
torch.set_num_threads(1)


@pytest.fixture
def real_data() -> Path:
    """The folder of real data; tests that need it are skipped without it."""
    folder = os.environ.get("ATLAS_DATA")
    if not folder:
        pytest.skip("needs real data: set ATLAS_DATA")
    return Path(folder)


@pytest.fixture
def two_cores():
    """Torch with two threads, as on a machine with two cores, whatever this one has."""
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch):
    """Fingerprints that another test took are not this one's."""
    monkeypatch.setattr(printing, "KNOWN", KnownPrints())
