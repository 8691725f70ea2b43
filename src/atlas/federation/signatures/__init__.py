"""What clients tell of themselves after every fit, by which others find who is relevant to them."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "signature": ["Signature", "finish_gradient", "signature_width"],
        "gradient": ["probe_gradient", "sign_by_gradient"],
        "representation": ["pooled_features", "sign_by_representation"],
        "stores": ["SignatureStores", "as_prompts"],
        "gather": ["gather_signatures", "known_signatures", "remember"],
    },
)
