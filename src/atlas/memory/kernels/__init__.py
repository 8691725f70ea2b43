"""How a rule is computed fast: chunks, exact or from the chunk's start."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "chunked": ["run_chunked", "run_rule"],
        "exact": ["exact_scan"],
        "chunk_start": ["muon_scan", "start_scan"],
        "gate_products": ["GateProducts"],
        "omega_window": ["every_window"],
        "query_projection": ["project"],
    },
)
