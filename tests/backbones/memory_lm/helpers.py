"""Tiny Atlas models whose weights all count."""

import torch

from atlas.backbones.load import build_tiny_causal
from atlas.backbones.memory_lm import AtlasConfig, AtlasForCausalLM

SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "attention_window": 5,
    "persistent_tokens": 2,
    "segment": 6,
    "continuum_base": 4,
    "initializer_range": 0.3,
    "rule": {"chunk": 8},
}
KINDS = {
    "gate": {},
    "omega": {"rule": {"chunk": 8, "window": 3}, "feature_degree": 2},
    "context": {"placement": "context"},
    "layer": {"placement": "layer"},
    "none": {"placement": "none"},
    "chunk-start": {"rule": {"gradient": "chunk-start", "chunk": 8, "queries": "projected"}},
    "continuum": {"feed_forward": "continuum"},
    "projected": {"rule": {"chunk": 8, "queries": "projected"}},
    "levels": {
        "rule": {"gradient": "chunk-start", "chunk": 8},
        "local_rules": [
            {"gradient": "chunk-start", "chunk": 2, "queries": "projected"},
            {"gradient": "chunk-start", "chunk": 3},
        ],
        "local_shard": 5,
    },
    "moneta": {
        "rule": {
            "gradient": "chunk-start",
            "chunk": 4,
            "bias": "lp",
            "retention": "lq",
            "learner": "descent",
            "architecture": "mlp",
        }
    },
    "yaad-context": {
        "placement": "context",
        "rule": {
            "gradient": "chunk-start",
            "chunk": 4,
            "bias": "huber",
            "learner": "descent",
            "architecture": "mlp",
            "anchor": "start",
        },
    },
    "memora": {
        "rule": {
            "gradient": "chunk-start",
            "chunk": 4,
            "retention": "kl",
            "architecture": "mlp",
            "momentum": 0.5,
        }
    },
    "levels-context": {
        "placement": "context",
        "feature_degree": 2,
        "local_rules": [{"chunk": 8, "queries": "projected"}],
        "local_shard": 4,
    },
}


def make_model(kind="gate", dtype=torch.float64, seed=0, **changes):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AtlasForCausalLM(AtlasConfig(**{**SMALL, **KINDS[kind], **changes}))
        for parameter in model.parameters():  # some start at zero, where mistakes would not show
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def draw_ids(batch=2, length=19, seed=0):
    return torch.randint(3, 40, (batch, length), generator=torch.Generator().manual_seed(seed))


def save_backbone(folder, kind="gate", **changes):
    """A model and a byte tokenizer in a folder."""
    tokenizer = build_tiny_causal(torch.float32)[1]
    specials = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 64, "num_hidden_layers": 3}
    model = make_model(kind, torch.float32, **{**sizes, **specials, **changes})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def off(found, wanted):
    return float((found - wanted).detach().abs().max())
