"""What docstrings of the front door show works as shown."""

import doctest

import pytest

import atlas
from atlas.jobs import api, result

TINY = {
    "backbone": {"name": "tiny"},
    "adapter": {"blocks": 1, "rank": 2},
    "ranks": {"method": "fixed"},
    "data": {"train": 8, "validation": 8, "test": 8},
    "rounds": 2,
    "threads": 1,
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    place = tmp_path_factory.mktemp("doctests")
    atlas.run("demo", out=place / "runs", **TINY)
    return place


@pytest.mark.parametrize("module", [api, result], ids=lambda module: module.__name__)
def test_examples_of_docstrings_run(finished, monkeypatch, module):
    monkeypatch.chdir(finished)
    found = doctest.testmod(module)
    assert found.attempted > 4 and not found.failed
