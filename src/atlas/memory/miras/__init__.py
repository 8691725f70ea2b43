"""The Miras family (arXiv 2504.13173): architecture, bias, retention and learner at choice."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "variant": ["PRESETS", "Variant"],
        "architecture": ["ARCHITECTURES"],
        "bias": ["BIASES"],
        "retention": ["RETENTIONS"],
        "learner": ["LEARNERS"],
        "naive": ["variant_naive"],
        "chunked": ["variant_chunked"],
        "from_rule": ["variant_of"],
    },
)
