"""Memory runs whose rule is of the Miras family: resuming, saved models, refusals."""

import json

import pytest
import torch

from atlas.backbones.memory_lm import AtlasForCausalLM
from atlas.build.memory import build_memory
from atlas.config.load import load_config
from atlas.config.rule import Rule
from atlas.errors import InputError
from atlas.jobs.runner import resume_run, start_run

TINY = [
    "threads=1", "arms=[memory]", "task.vocabulary=16", "task.length=21", "task.pairs=2",
    "task.test=64", "model.width=32", "model.blocks=1", "model.feed_forward=48", "model.window=3",
    "train.steps=7", "train.round_steps=3", "train.observe_every=2", "train.lr=0.01",
]  # fmt: skip
RULES = {
    "moneta": Rule(
        "chunk-start", 16, bias="lp", retention="lq", learner="descent", architecture="mlp"
    ),
    "yaad": Rule("chunk-start", 16, bias="huber", learner="descent", architecture="mlp"),
    "memora": Rule("chunk-start", 16, retention="kl", learner="descent", architecture="mlp"),
}


class Broken(Exception):
    pass


def without_times(summary):
    plain = json.loads(json.dumps(summary))
    for found in (plain, *plain["arms"].values()):
        del found["seconds"]
    return plain


@pytest.mark.parametrize("preset", RULES)
def test_a_run_dies_goes_on_and_answers_as_its_saved_model(preset, tmp_path):
    def die(event, fields):
        if event == "trained" and fields["round"] == 2:
            raise Broken

    config = load_config(preset, TINY)
    assert config.model.rule == RULES[preset]
    whole = start_run(config, tmp_path / "whole")
    with pytest.raises(Broken):
        start_run(config, tmp_path / "cut", die)
    resumed = resume_run(tmp_path / "cut" / preset)
    assert without_times(resumed.summary) == without_times(whole.summary)
    assert whole.summary["state"]["norms"]["M"] > 0
    model = AtlasForCausalLM.from_pretrained(whole.folder.models / "memory")
    lines = build_memory(config).held_out("test")
    with torch.no_grad():
        right = model(lines.ids).logits.argmax(-1) == lines.targets
    found = int(right.sum()) / int((lines.targets >= 0).sum())
    assert found == whole.summary["accuracy"]["memory"]


def test_a_rule_that_is_none_is_refused_by_its_key():
    with pytest.raises(InputError, match=r"model\.rule: gradient: .exact.; allowed with bias: lp"):
        load_config("recall", ["model.rule.bias=lp"])
    with pytest.raises(InputError, match=r"model\.rule\.bias: .l3. .* allowed: l2, lp, huber"):
        load_config("recall", ["model.rule.bias=l3"])
