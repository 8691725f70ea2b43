"""Low-rank changes of layers, and their mixtures."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "factors": ["Layer", "Span", "delta", "nearest_gauge", "pull"],
        "mixing": ["MIXERS", "mix_product", "mixture_error", "stack_factors"],
        "mixing_sparse": ["mix_sparse"],
        "leading": ["Leading"],
    },
)
