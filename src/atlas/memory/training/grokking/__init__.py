"""Grokking: small models that learn modular arithmetic, and what tells that they understood it."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "equations": ["Equations"],
        "jump": ["Jump", "find_jump"],
        "measures": ["measure"],
        "phase": ["PHASES", "PhaseStart", "find_phases"],
        "together": ["Together", "moves_together"],
        "trainer": ["ArithmeticTrainer"],
    },
)
