import os
from functools import wraps
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from atlas.engines.local import fingerprint as printing
from atlas.engines.local.fingerprint import KnownPrints
from atlas.federation.fingerprints import clusters
from tests.helpers import BLANK

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


DRAWN = {"report", "bench"}
"""Folders of tests that look at pictures."""


@pytest.fixture(autouse=True)
def _pictures_are_blank(request, monkeypatch):
    """Figures are made, but drawn only where a test looks at them: it is half of a small run."""
    looked_at = request.node.get_closest_marker("pictures") or DRAWN & {*request.path.parts}
    if not looked_at:
        monkeypatch.setattr(Figure, "savefig", lambda self, to, **_: Path(to).write_bytes(BLANK))


@pytest.fixture(autouse=True, scope="session")
def _equal_clients_are_clustered_once():
    """Tests of runs plan for the same few clients again and again: pure functions are kept."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("kmeans_labels", "bootstrap_stability", "real_splits"):
            patch.setattr(clusters, name, kept(getattr(clusters, name)))
        yield


def kept(function):
    """A function of arrays and numbers that looks up what it has answered before."""
    answers = {}

    @wraps(function)
    def answer(*values):
        key = tuple(map(content, values))
        if key not in answers:
            answers[key] = function(*values)
        return answers[key]

    return answer


def content(value):
    """What a value holds, as a key."""
    if isinstance(value, list | tuple | range):
        return tuple(map(content, value))
    if isinstance(value, torch.Tensor | np.ndarray):
        array = np.asarray(value)
        return array.shape, array.dtype.str, array.tobytes()
    return value
