"""What is built for others has every file, and runs where nothing else is."""

import json
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
    install = [
        binary / "pip",
        "install",
        "--quiet",
        "-c",
        str(ROOT / "constraints.txt"),
        str(wheel),
    ]
    subprocess.run(install, check=True)
    words = [binary / "atlas", "run", "demo", "size=quick", "--json"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert len(summary["score"]["clients"]) == 9 and summary["gain"]["mean"] > 0
    script = "import sys, atlas; print(atlas.__file__, 'torch' in sys.modules)"
    told = subprocess.run(
        [binary / "python", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert str(tmp_path) in told.stdout and told.stdout.split()[-1] == "False"
