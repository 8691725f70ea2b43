"""Strategies on what clients tell of themselves in every round: who is relevant to whom.

`simgrad` compares the gradients of clients' data at a shared frozen probe (RELA of FedMosaic,
2506.11024), `repsim` the representations of their adapted models on generated texts, by linear CKA
(Kornblith et al. 2019). Neither asks clients to have the same model. What is relevant to a client
stands beside its own adapter, and its gates weigh the two.

`mosaic` does so with cores (Co-LoRA), which all backbones share; `mosaic-adaptive` lets only those
modules travel that count.
"""

from dataclasses import replace

from atlas.federation.strategies.base import Strategy, register
from atlas.federation.strategies.relations_sparse import scaled_relevance

SIMGRAD = register(
    Strategy(
        name="simgrad",
        relation=scaled_relevance,
        heads="personal",
        deliver="global",
        signature="gradient",
        about="beside one's own: the adapters of those whose data asks the same of a shared probe",
    )
)
REPSIM = register(
    replace(
        SIMGRAD,
        name="repsim",
        signature="representation",
        about="beside one's own: the adapters of those whose models represent texts alike",
    )
)
MOSAIC = register(
    replace(
        SIMGRAD,
        name="mosaic",
        space="core",
        adapter="pq",
        about="simgrad with cores, which clients of all backbones share",
    )
)
MOSAIC_ADAPTIVE = register(
    replace(
        MOSAIC,
        name="mosaic-adaptive",
        budget=0.4,
        about="mosaic; modules that count most travel, 40 % of the bytes",
    )
)
