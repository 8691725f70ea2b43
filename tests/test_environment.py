"""One environment: every extra at once, at versions that fit each other."""

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import atlas

ROOT = Path(__file__).parent.parent
TOML = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = TOML["project"]
EXTRAS = PROJECT["optional-dependencies"]
LINES = [Requirement(s) for lines in (PROJECT["dependencies"], *EXTRAS.values()) for s in lines]
OTHERS = [line for line in LINES if line.name != PROJECT["name"]]


def read_pins():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


PINS = read_pins()


def test_package_and_code_tell_one_version():
    assert PROJECT["version"] == atlas.__version__


def test_all_is_every_extra():
    (line,) = EXTRAS["all"]
    assert Requirement(line).extras == set(EXTRAS) - {"all"}


@pytest.mark.parametrize("line", OTHERS, ids=str)
def test_every_range_admits_its_pin(line):
    assert line.specifier.contains(PINS[canonicalize_name(line.name)])


def test_pins_fit_each_other():
    """Asks what is installed at its pinned version; which of the extras are, is the machine's."""
    asked = 0
    for name, version in PINS.items():
        try:
            found = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        if found.version.split("+")[0] != version:
            continue
        for wanted in map(Requirement, found.requires or ()):
            if wanted.marker and not wanted.marker.evaluate({"extra": ""}):
                continue
            pin = PINS.get(canonicalize_name(wanted.name))
            assert pin, f"{name} needs {wanted}, which has no pin"
            assert wanted.specifier.contains(pin, prereleases=True), f"{name} needs {wanted}"
            asked += 1
    assert asked > 50


def test_flower_finds_what_it_asks_for():
    """Its own words, kept here because it is not installed wherever the tests run."""
    caps = ["typer<0.21", "rich<15", "fastapi<0.139", "uvicorn<0.50", "protobuf<7"]
    assert PINS["flwr"].startswith("1.41.")
    for cap in map(Requirement, [*caps, "cryptography<51"]):
        assert cap.specifier.contains(PINS[cap.name]), cap


def test_every_file_that_is_not_code_is_packed():
    source = ROOT / "src" / "atlas"
    patterns = TOML["tool"]["setuptools"]["package-data"]["atlas"]
    packed = {file for pattern in patterns for file in source.glob(pattern)}
    found = {f for f in source.rglob("*") if f.is_file() and f.suffix not in {".py", ".pyc"}}
    assert found == packed
    assert all(any(source.glob(pattern)) for pattern in patterns)


def test_commands_install_from_the_pins():
    makefile = (ROOT / "Makefile").read_text()
    installs = re.findall(r"^\t\$\(PIP\) (.*)$", makefile, flags=re.MULTILINE)
    assert installs
    assert all(line.startswith(("-c constraints.txt ", "--no-deps ")) for line in installs)
