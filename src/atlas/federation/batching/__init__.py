"""Many clients' texts through one frozen model."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "backbone": ["Backbone", "Footprint", "HeadLayer"],
        "forward": ["Batch", "Model", "Outcome", "Stack", "run", "stack_cohorts"],
        "store": ["ExampleStore"],
        "packing": ["AttentionPages", "Packing"],
        "prefix_cache": ["PrefixCache"],
        "spill": ["SpillingRows"],
    },
)
