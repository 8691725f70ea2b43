"""Rules of the house that a reader relies on: sizes, names, and things said once."""

import ast
from collections import Counter
from pathlib import Path

import pytest

import atlas

HOME = Path(atlas.__file__).parent
FILES = sorted(HOME.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in FILES}


def strings(tree):
    """Texts in the code, docstrings left out."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_no_two_public_classes_have_one_name():
    names = Counter(
        node.name
        for tree in TREES.values()
        for node in tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


@pytest.mark.parametrize("name", ["lora_a/", "lora_b/", "head/"])
def test_names_of_an_adapters_tensors_are_spelled_in_one_file(name):
    spelled = {
        path.relative_to(HOME).as_posix()
        for path, tree in TREES.items()
        if any(text.startswith(name) for text in strings(tree))
    }
    assert spelled == {"federation/adapters/adapter.py"}


def test_files_can_be_read_in_one_go():
    long = {path.name for path in FILES if len(path.read_text("utf-8").splitlines()) > 400}
    assert not long


def test_nothing_is_pickled_or_loaded_by_torch():
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                assert not {a.name for a in node.names} & {"pickle", "dill", "cloudpickle"}, path
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) != ("torch", "load"), path
