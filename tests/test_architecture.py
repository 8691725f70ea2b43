"""The walks in docs/architecture.md: every file is there, and every function can be imported."""

import importlib
import re
from pathlib import Path

import pytest

import atlas

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
HOME = Path(atlas.__file__).parent
STOPS = re.findall(r"^\| [^|]+ \| `([\w/]+)\.py` `([\w.]+)` \|", PAGE, flags=re.MULTILINE)
FILES = sorted(set(re.findall(r"`([a-z_]+(?:/[a-z_]+)+(?:\.py|/))`", PAGE)))


def test_both_walks_are_found():
    assert len(STOPS) > 40
    assert {"federation/rounds", "memory/kernels/exact"} <= {file for file, _ in STOPS}


@pytest.mark.parametrize(("file", "name"), STOPS)
def test_every_stop_can_be_imported(file, name):
    found = importlib.import_module(f"atlas.{file.replace('/', '.')}")
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


@pytest.mark.parametrize("path", FILES)
def test_every_file_named_is_there(path):
    assert (HOME / path).exists()


def test_the_map_names_every_room():
    rooms = {path.parent.name for path in HOME.glob("*/__init__.py")} - {"presets"}
    assert rooms <= set(re.findall(r"\w+", PAGE.split("## The map")[1]))
