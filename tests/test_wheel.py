"""What is built for others has every file, and runs where nothing else is."""

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
BUILD = "import sys; from setuptools import build_meta; print(build_meta.build_wheel(sys.argv[1]))"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("setuptools", "77", reason="needs setuptools 77 to build a wheel")
    place = tmp_path_factory.mktemp("wheel")
    source = place / "source"
    skipped = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=skipped)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    words = [sys.executable, "-c", BUILD, str(place)]
    done = subprocess.run(words, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return place / done.stdout.splitlines()[-1]


def test_the_wheel_has_every_file(wheel):
    packed = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("atlas/")}
    files = {p for p in (ROOT / "src" / "atlas").rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert packed == {path.relative_to(ROOT / "src").as_posix() for path in files}
    assert "atlas/presets/demo.yaml" in packed and "atlas/runs/summary.schema.json" in packed
    assert "atlas/py.typed" in packed


@pytest.mark.slow
def test_the_wheel_runs_where_nothing_else_is(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "empty")], check=True)
    binary = tmp_path / "empty" / "bin"
    # Whoever runs the tests from a checkout may have its source on the path, which comes first.
    bare = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    install = [
        binary / "pip",
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
        str(wheel),
    ]
    subprocess.run(install, check=True, env=bare)
    script = (
        "import sys, atlas; from importlib.metadata import version; "
        "print(atlas.__file__, 'torch' in sys.modules, version('torch'))"
    )

    def ask(*words):
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, env=bare)
        assert done.returncode == 0, done.stderr
        return done.stdout

    place, loaded, torch = ask(binary / "python", "-c", script).split()
    assert place.startswith(str(tmp_path)) and loaded == "False"
    pinned = re.search(r"^torch==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    assert torch.split("+")[0] == pinned
    summary = json.loads(ask(binary / "atlas", "run", "demo", "size=quick", "--json"))
    scores, gain = summary["score"], summary["gain"]["mean"]
    print(f"the wheel with torch {torch}: {scores['mean']:.4f}, gain {gain:+.4f}, "
          f"{summary['seconds']:.0f} s")  # fmt: skip
    assert len(scores["clients"]) == 9 and gain > 0
