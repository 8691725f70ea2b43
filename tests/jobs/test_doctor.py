"""`atlas doctor` offers what the code can do, and nothing else."""

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from atlas.bench.processes import NAMES
from atlas.cli import app
from atlas.config.load import load_config
from atlas.jobs.doctor import EXTRAS, TO_COME, examine

ROOT = Path(__file__).parents[2]
DECLARED = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
REQUIRED = {extra: {Requirement(line).name for line in lines} for extra, lines in DECLARED.items()}


def required(extra):
    """What an extra installs by name, an extra within it unfolded."""
    nested = {e for line in DECLARED[extra] for e in own_extras(line)}
    return REQUIRED[extra].union(*(required(e) for e in nested))


def own_extras(line):
    requirement = Requirement(line)
    return requirement.extras if requirement.name == "atlas-personal" else set()


def imported():
    """The libraries that the code imports, benchmarks aside: those run peers, which are no part."""
    found = set()
    for file in (ROOT / "src" / "atlas").rglob("*.py"):
        if "bench" in file.relative_to(ROOT / "src" / "atlas").parts:
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return {part for name in found for part in name.split(".")}


def test_every_extra_is_offered_or_said_to_be_for_later():
    assert {*EXTRAS, *TO_COME, "all"} == set(DECLARED)
    assert not set(EXTRAS) & set(TO_COME)
    assert examine()["extras_to_come"] == list(TO_COME)


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_offer_names_what_there_is(extra):
    packages, unlocks = EXTRAS[extra]
    assert set(packages) <= required(extra)
    settings = re.findall(r"[a-z_.]+=[a-z0-9]+", unlocks)
    for setting in settings:
        load_config("demo", [setting])
    known = {c.name or c.callback.__name__ for c in app.registered_commands}
    known |= {group.name for group in app.registered_groups}
    verbs = re.findall(r"atlas (\w+)", unlocks)
    assert set(verbs) <= known
    for names in re.findall(r"atlas bench ([\w, ]+)", unlocks):
        assert set(re.split(r", | and ", names)) <= set(NAMES)
    targets = re.findall(r"make (\w+)", unlocks)
    makefile = (ROOT / "Makefile").read_text()
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    assert settings or verbs or targets, "it says how to use it"


@pytest.mark.parametrize("extra", TO_COME)
def test_what_is_for_later_is_used_by_nothing(extra):
    modules = {name.replace("-", "_") for name in required(extra)}
    assert modules
    assert not modules & imported(), "it is used: doctor must offer it"


@pytest.mark.parametrize("extra", sorted(set(EXTRAS) - {"dev", "docs", "bench"}))
def test_what_is_offered_is_used(extra):
    assert {name.replace("-", "_") for name in EXTRAS[extra][0]} <= imported()
