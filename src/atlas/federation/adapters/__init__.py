"""Adapters: one client's, a whole cohort's, and what they do to a module."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "adapter": [
            "Adapter",
            "Factors",
            "Layout",
            "Member",
            "adapter_sha256",
            "adapter_shapes",
            "initial_adapter",
        ],
        "cohort": ["Cohort", "initial_cohort", "restart"],
        "lora_hooks": ["LoraChange"],
    },
)
