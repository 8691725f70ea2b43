"""How a rule is computed fast: chunks, exact or from the chunk's start."""
