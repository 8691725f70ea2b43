"""Small layers in float64 with weights that all count, and ways to read a text in pieces."""

import torch

from atlas.memory.layer.layer import MemoryLayer
from atlas.memory.layer.settings import LayerSettings
from atlas.memory.rules.rule import Rule

HEADS, HEAD_WIDTH = 2, 6
WIDTH = HEADS * HEAD_WIDTH
LENGTH = 29

RULES = {
    "exact": Rule(chunk=8),
    "omega": Rule(chunk=8, window=3),
    "chunk-start": Rule(gradient="chunk-start", chunk=8),
    "everything": Rule(
        gradient="chunk-start", chunk=8, window=3, learner="newton-schulz", queries="projected"
    ),
    "projected": Rule(chunk=8, queries="projected"),
    "constant-sum": Rule(chunk=8, window=4, window_errors="sum", momentum=0.6),
}
MIRAS = {
    "moneta": {"bias": "lp", "retention": "lq", "learner": "descent", "architecture": "mlp"},
    "yaad": {
        "bias": "huber",
        "learner": "descent",
        "architecture": "mlp",
        "anchor": "start",
        "forgetting": "local-global",
    },
    "memora": {"retention": "kl", "learner": "momentum", "architecture": "mlp", "expansion": 1},
    "elastic": {
        "bias": "huber",
        "retention": "elastic-net",
        "learner": "newton-schulz",
        "retention_threshold": 0.01,
    },
}
RULES |= {name: Rule("chunk-start", 8, **own) for name, own in MIRAS.items()}
LEVELS = {
    "rule": Rule(gradient="chunk-start", chunk=12),
    "local_rules": (
        Rule(gradient="chunk-start", chunk=2, queries="projected"),
        Rule(gradient="chunk-start", chunk=3),
        Rule(chunk=8, queries="projected"),
    ),
    "local_shard": 8,
}
MEMORIES = {
    **{name: {"rule": rule} for name, rule in RULES.items()},
    "levels": LEVELS,
    "omega-levels": {
        "rule": RULES["omega"],
        "local_rules": (Rule("chunk-start", chunk=4, window=3, queries="projected"),),
        "local_shard": 7,
    },
}


def make_layer(placement="gate", memory="exact", *, gradient="full", degree=1, seed=0, **changes):
    settings = LayerSettings(
        HEADS,
        HEAD_WIDTH,
        placement=placement,
        **MEMORIES[memory],
        degree=degree,
        memory_gradient=gradient,
        **{"window": 5, "persistent": 2, "segment": 7, **changes},
    )
    generator = torch.Generator().manual_seed(seed)
    layer = MemoryLayer(settings).double()
    for parameter in layer.parameters():  # some start at zero, where mistakes would not show
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data.copy_(0.3 * noise + (1.0 if parameter.dim() == 1 else 0.0))
    return layer


def draw_tokens(batch=2, length=LENGTH, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, length, WIDTH, generator=generator, dtype=torch.float64)


def read_in_pieces(layer, x, cuts=()):
    """Outputs and final state of a text that is cut after the tokens named."""
    outputs, state, begin = [], None, 0
    for end in (*cuts, x.shape[1]):
        output, state = layer(x[:, begin:end], state)
        outputs.append(output)
        begin = end
    return torch.cat(outputs, 1), state


def largest(x):
    return float(x.detach().abs().max()) if x.numel() else 0.0
