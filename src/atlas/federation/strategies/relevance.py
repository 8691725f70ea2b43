"""Strategies on what clients tell of themselves in every round: who is relevant to whom.

`simgrad` compares the gradients of clients' data at a shared frozen probe (RELA of FedMosaic,
2506.11024), `repsim` the representations of their adapted models on generated texts, by linear CKA
(Kornblith et al. 2019). Neither asks clients to have the same model.
"""

from atlas.federation.strategies.base import Strategy, register
from atlas.federation.strategies.relations import scaled_relevance_step

SIMGRAD = register(
    Strategy(
        name="simgrad",
        relation=scaled_relevance_step,
        signature="gradient",
        about="clients move towards those whose data asks the same of a shared probe",
    )
)
REPSIM = register(
    Strategy(
        name="repsim",
        relation=scaled_relevance_step,
        signature="representation",
        about="clients move towards those whose models represent texts alike",
    )
)
