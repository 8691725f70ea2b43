"""Backbones in four bits: trained on, exported, reloaded and weighed on a CPU."""

import importlib.util
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from atlas.backbones.export import check_base, load_adapter
from atlas.backbones.load import build_tiny_causal, load_backbone
from atlas.backbones.quantised import QuantisedLinear
from atlas.backbones.smollm import smollm_folder
from atlas.config.training import BackboneSettings
from atlas.errors import InputError
from atlas.federation.adapters.adapter import Adapter
from atlas.federation.batching.forward import adapters_active
from atlas.federation.training.evaluate import generate_answers
from atlas.jobs.federation.answer import export_merged, open_client
from atlas.jobs.runner import start_run
from tests.helpers import make_config
from tests.jobs.federation.test_exports import asked_alone, own_federation

needs_library = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None,
    reason="bitsandbytes is not installed (extra quant): PEFT imports it where it is, which would "
    "change the memory figures of all other tests",
)
RECORDS = [{"question": f"how much is {i}?", "answer": "yes"} for i in range(40)]
TASK = {"kind": "causal", "text": ["question"], "label": "answer", "metric": "exact_match"}


@pytest.fixture
def stories():
    folder = Path(os.environ.get("ATLAS_DATA", "")).parent / "models" / "stories260K"
    if not os.environ.get("ATLAS_DATA") or not folder.is_dir():
        pytest.skip("there is no models/stories260K beside the data folder")
    return folder


def wide_model(folder):
    """A Llama whose widths are whole blocks of 64: the library's own CPU modules need that."""
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    tokens = {"vocab_size": 260, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    with torch.random.fork_rng():
        torch.manual_seed(5)
        LlamaForCausalLM(LlamaConfig(**sizes, **tokens)).save_pretrained(folder)
    build_tiny_causal(torch.float32)[1].save_pretrained(folder)
    return folder


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"needs bitsandbytes: pip install 'atlas-personal\[quant"):
        load_backbone("tiny-causal", dtype=torch.bfloat16, quant="nf4")


@pytest.mark.parametrize("given", [{"dtype": "float64"}, {"compile": "inductor"}])
def test_what_does_not_go_together_is_refused(given):
    with pytest.raises(ValueError, match="quant: nf4 given with dtype"):
        BackboneSettings(quant="nf4", **given)


@needs_library
@pytest.mark.parametrize(
    "kind", ["bert", "distilbert", "mpnet", "llama", "qwen3", "gemma", "pythia", "deberta"]
)
def test_it_is_the_model_with_rounded_weights(kind, checkpoint, tools, tmp_path):
    """Every way through the model, folded reads too, against plain modules of the same weights."""
    quant = load_backbone(str(checkpoint(kind)), quant="nf4")
    assert load_backbone(str(checkpoint(kind)), quant="nf4") is quant
    # A folder of its own: models are loaded once per process, and this one is written into.
    plain = load_backbone(str(shutil.copytree(checkpoint(kind), tmp_path / kind)))
    found = [m for i in range(quant.depth) for m in quant.linears(i).values()]
    assert found and all(isinstance(m, QuantisedLinear) for m in found)
    outside = set(quant.model.modules()) - {m for b in quant._blocks for m in b.modules()}
    assert not any(isinstance(m, QuantisedLinear) for m in outside)
    task, some = tools.classify, tools.singles
    if quant.can_generate:
        task, some = tools.answer, tools.questions
    inputs = quant.tokenize(task, some, 24)
    for name, value in quant.model.named_parameters():
        plain.model.get_parameter(name).data.copy_(value)
    for index in range(quant.depth):
        for name, module in quant.linears(index).items():
            plain.body.get_submodule(name).weight.data.copy_(module.weight)
    ours, theirs = (tools.hidden(one, inputs) for one in (quant, plain))
    torch.testing.assert_close(ours[inputs.mask], theirs[inputs.mask], atol=1e-4, rtol=1e-4)


@needs_library
def test_what_has_no_plain_modules_is_refused(checkpoint):
    with pytest.raises(InputError, match=r"gpt2 .*have no plain linear modules; allowed: null"):
        load_backbone(str(checkpoint("gpt2")), quant="nf4")


@needs_library
def test_weights_take_at_most_a_sixth(stories):
    plain, quant = (load_backbone(str(stories), quant=how) for how in (None, "nf4"))
    whole = sum(m.weight.numel() * 4 for i in range(plain.depth) for m in plain.linears(i).values())
    kept = sum(m.bytes for i in range(quant.depth) for m in quant.linears(i).values())
    print(f"linear weights of the blocks: {whole:,} bytes, nf4 {kept:,}, {whole / kept:.2f} times")
    assert kept <= whole / 6
    assert sum(quant.size.blocks) < sum(plain.size.blocks) / 5
    assert quant.size.embeddings == plain.size.embeddings
    again = load_backbone(f"{stories}@3", quant="nf4")
    assert again.quant == "nf4" and sum(again.size.blocks) < sum(quant.size.blocks)
    one, twin = quant.twins(2)
    assert [a.data_ptr() for a in one.model.buffers()] == [
        b.data_ptr() for b in twin.model.buffers()
    ]
    assert quant.fingerprint() != plain.fingerprint()


@needs_library
def test_an_adapter_trains_and_reloads_to_the_bit(stories, tmp_path):
    (tmp_path / "rows.jsonl").write_text(
        "".join(f'{{"question": "how much is {i}?", "answer": "yes"}}\n' for i in range(40))
    )
    losses = []
    config = make_config(
        strategy="local", alone=False, rounds=4, train={"lr": 0.01, "batch": 4},
        backbone={"name": str(stories), "quant": "nf4", "max_length": 32, "max_new_tokens": 4},
        tasks={"mine": TASK},
        clients=[{"id": "me", "task": "mine", "data": str(tmp_path / "rows.jsonl")}],
    )  # fmt: skip
    finished = start_run(
        config,
        tmp_path / "runs",
        lambda event, fields: losses.append(fields["loss"]) if event == "fitted" else None,
    )
    assert losses[-1] < losses[0] / 2
    one = open_client(finished.folder, "me")
    assert all(value.dtype == torch.float32 for value in one.stack.tensors.values())
    assert one.model.backbone is load_backbone(str(stories), quant="nf4")  # loaded once
    # Reloaded from scratch: another copy of the base model, quantised anew, and the saved adapter.
    copied = load_backbone(str(shutil.copytree(stories, tmp_path / "copy")), quant="nf4")
    saved = load_adapter(finished.folder.adapters / "me")
    check_base(saved, copied)
    assert Adapter.of(saved.layers, {}).keys() == one.stack.tensors.keys()
    ids = copied.tokenizer("how much is 3?", return_tensors="pt").input_ids
    other = replace(one.model, backbone=copied)
    found = []
    for model in (one.model, other):
        with torch.no_grad(), adapters_active(model, one.stack):
            found.append(model.backbone.model(ids).logits)
    with torch.no_grad():
        bare = copied.model(ids).logits
    difference = float((found[0] - found[1]).abs().max())
    assert difference == 0 and not torch.allclose(found[0], bare, atol=0.1)
    print(f"losses by round {[round(loss, 3) for loss in losses]}, reload difference {difference}")
    export_merged(finished.folder, "me", tmp_path / "merged")
    merged = load_backbone(str(tmp_path / "merged"))
    assert type(merged.linears(0)["layers.0.self_attn.q_proj"]) is nn.Linear
    prompt = ["how much is 7?\n"]
    assert generate_answers(one.model, one.stack, prompt, one.limits) == merged.generate(prompt, 4)


@needs_library
@pytest.mark.parametrize("cut", ["", "@2"])
def test_the_card_asks_the_same_model_alone(tmp_path, cut):
    model = wide_model(tmp_path / "model")
    folder, ours = own_federation(
        tmp_path, f"{model}{cut}", TASK, RECORDS, ["how much?"], quant="nf4"
    )
    assert "BitsAndBytesConfig(load_in_4bit=True" in (folder / "README.md").read_text()
    assert asked_alone(folder, ["how much?"]) == ours["answer"] != ""


@needs_library
def test_plain_peft_on_the_librarys_own_modules_gives_the_same_logits(tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig

    from atlas.jobs.federation.answer import RunFolder

    model = wide_model(tmp_path / "model")
    folder, _ = own_federation(tmp_path, model, TASK, RECORDS, ["how much?"], quant="nf4")
    how = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=torch.float32,
        llm_int8_skip_modules=["lm_head"],
    )
    base = AutoModelForCausalLM.from_pretrained(model, quantization_config=how)
    # In eval mode the library rounds scales to bfloat16 on CPUs that have instructions for it.
    theirs = PeftModel.from_pretrained(base, folder).train()
    ids = AutoTokenizer.from_pretrained(model)("how much is 3?", return_tensors="pt").input_ids
    run = next((tmp_path / "runs").iterdir())
    mine = open_client(RunFolder(run), "me")
    with torch.no_grad(), adapters_active(mine.model, mine.stack):
        ours = mine.model.backbone.model(ids).logits
    with torch.no_grad():
        assert torch.allclose(theirs(input_ids=ids).logits, ours, atol=1e-5, rtol=0)


@needs_library
@pytest.mark.slow
def test_smollm2_in_four_bits():
    try:
        smollm_folder()
    except InputError as missing:
        pytest.skip(str(missing))
    plain, quant = (load_backbone("smollm2", quant=how) for how in (None, "nf4"))
    whole = kept = 0
    errors = []
    for index in range(plain.depth):
        for name, module in plain.linears(index).items():
            other = quant.linears(index)[name]
            whole, kept = whole + module.weight.numel() * 4, kept + other.bytes
            errors.append(float((other.weight - module.weight).norm() / module.weight.norm()))
    mean = sum(errors) / len(errors)
    print(f"smollm2: {whole:,} bytes, nf4 {kept:,}, {whole / kept:.2f} times, error {mean:.4f}")
    assert kept <= whole / 6 and mean < 0.12
