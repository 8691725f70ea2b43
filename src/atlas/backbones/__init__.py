"""The edge to transformers and PEFT: frozen models behind the `Backbone` protocol."""
