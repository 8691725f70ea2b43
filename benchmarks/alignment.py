"""What alignment finds where the answer is known: `python benchmarks/alignment.py`.

Eight clients hold one adapter in gauges that are randomly rotated and reflected. Printed are the
relative error of their mean, unaligned and aligned, and how much the outputs of a client change
when its factors are turned.

Then bases of PQ-LoRA: a Llama and its twin that computes the same in a wider and deeper model,
and, with `ATLAS_DATA`, a trained Llama with its twin and with an encoder. Residuals of paired
coordinates are those of texts that nothing was fitted to, means over modules, sides and seeds.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch

from atlas.backbones.load import load_backbone
from atlas.bench.planted import rotated_copies, widened_twin
from atlas.build.alignment import find_bases
from atlas.build.models import find_model
from atlas.config.federation import FederationConfig
from atlas.config.plan import AlignSettings
from atlas.federation.batching.forward import Model
from atlas.ops.lowrank.factors import Layer, delta
from atlas.ops.lowrank.gauge import common_gauge, find_turns, joint_factors
from atlas.ops.lowrank.mixing import mix_factors, mix_rotated

SEEDS, COPIES, RANK, WIDTHS = range(5), 8, 16, (576, 192)
METHODS = ("paired", "cca", "unpaired", "random")
BASIS_SEEDS, BASIS_RANK, LENGTH = range(3), 8, 128


def main() -> None:
    """Measure and print."""
    rows = [gauge_row(seed) for seed in SEEDS]
    print(f"{COPIES} copies of one adapter, rank {RANK}, {WIDTHS[0]} to {WIDTHS[1]}, float32")
    print("relative, worst of seeds     unaligned mean  aligned mean  change of outputs")
    print(f"  {len(rows)} seeds {min(r[0] for r in rows):24.3f} (least)", end="")
    print(f"{max(r[1] for r in rows):12.1e} {max(r[2] for r in rows):18.1e}")
    print(f"\nbases of rank {BASIS_RANK}, 256 texts, q and v of the last 2 blocks: residuals")
    print(f"{'':34}{'unrotated':>10}" + "".join(f"{method:>10}" for method in METHODS))
    with tempfile.TemporaryDirectory() as folder:
        for what, models in basis_cases(Path(folder)):
            found = {method: residuals(models, method) for method in METHODS}
            after = "".join(f"{found[method][1]:10.4f}" for method in METHODS)
            print(f"{what:34}{found['paired'][0]:10.4f}{after}")


def basis_cases(folder: Path) -> Iterator[tuple[str, dict[str, Model]]]:
    """Pairs of models, by what they are."""
    twin = widened_twin(load_backbone("tiny-causal"), folder / "tiny-twin", width=96, before=(0, 0))
    tiny = model_of("tiny-causal")
    yield "tiny-causal (32), twin (96)", {"tiny-causal": tiny, "twin": model_of(str(twin))}
    data = os.environ.get("ATLAS_DATA")
    trained = str(Path(data).parent / "models" / "stories260K") if data else ""
    if not data or not Path(trained).is_dir():
        return
    source, llama = load_backbone(trained), model_of(trained)
    narrow = widened_twin(source, folder / "narrow", width=64, before=())
    wide = widened_twin(source, folder / "wide", width=160, before=(0, 0))
    twins = {"narrow": model_of(str(narrow)), "wide": model_of(str(wide))}
    yield "stories260K folded (64), twin (160)", twins
    yield "stories260K (64), twin (160)", {"stories": llama, "wide": twins["wide"]}
    yield (
        "stories260K (64), MiniLM (384)",
        {
            "stories": llama,
            "minilm": model_of("minilm", ("query", "value")),
        },
    )


def model_of(name: str, modules: tuple[str, str] = ("q_proj", "v_proj")) -> Model:
    """A model with adapters in its last two blocks."""
    config = FederationConfig.model_validate(
        {
            "name": "alignment",
            "backbone": {"name": name, "max_length": LENGTH},
            "adapter": {"modules": list(modules), "blocks": 2},
        }
    )
    return find_model(config, name)


def residuals(models: dict[str, Model], method: str) -> tuple[float, float]:
    """Before and after alignment by a method."""
    found = []
    for seed in BASIS_SEEDS:
        settings = AlignSettings.model_validate({"method": method})
        bases = find_bases(settings, models, BASIS_RANK, seed, LENGTH)
        found += [(float(str(e["before"])), float(str(e["after"]))) for e in bases.report]
    before, after = (sum(column) / len(found) for column in zip(*found, strict=True))
    return before, after


def gauge_row(seed: int) -> tuple[float, float, float]:
    """Errors of the mean, unaligned and aligned, and of outputs of turned factors."""
    layer = rotated_copies(COPIES, RANK, WIDTHS, seed)
    shares = torch.full((COPIES, COPIES), 1 / COPIES, dtype=torch.float64)
    true = delta(layer.a.double(), layer.b.double(), layer.scales)
    plain, turned = (delta(*mix(*layer, shares), 1.0) for mix in (mix_factors, mix_rotated))
    x = torch.randn(64, WIDTHS[0], generator=torch.Generator().manual_seed(seed))
    before, after = (x @ delta(*pair, 1.0).mT for pair in (layer[:2], in_gauge(layer, shares[0])))
    return relative(plain, true), relative(turned, true), relative(after, before)


def in_gauge(layer: Layer, shares: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Every client's factors as they are averaged."""
    found = common_gauge(layer, shares)
    turns = find_turns(found.reference, joint_factors(layer, found.balance), layer.ranks).float()
    return turns @ layer.a, layer.b @ turns.mT


def relative(found: torch.Tensor, true: torch.Tensor) -> float:
    """How far `found` is from `true`, relative to that."""
    return float((found.double() - true.double()).norm() / true.double().norm())


if __name__ == "__main__":
    main()
