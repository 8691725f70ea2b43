"""The edge to transformers and PEFT: frozen models behind the `Backbone` protocol."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "load": ["load_backbone"],
        "transformer": ["TransformerBackbone"],
        "export": ["export_adapter", "merge_adapter"],
        "peft_folder": ["ExportedAdapter", "load_adapter"],
    },
)
