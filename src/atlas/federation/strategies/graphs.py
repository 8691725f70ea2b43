"""Strategies on what clients' fingerprints say.

`mira` is one step of diffusion over a graph of clients (Elbakary et al. 2024) whose edges come
from fingerprints; a client that was not sampled keeps its own. `cluster` is strict averaging inside
clusters. `atlas` diffuses inside clusters, and every client keeps what its validation data likes.
"""

from atlas.federation.strategies.base import Strategy, register
from atlas.federation.strategies.relations_sparse import scaled_cluster_mean, scaled_diffusion

MIRA = register(
    Strategy(
        name="mira",
        relation=scaled_diffusion,
        reach="present",
        plans="fingerprints",
        about="clients move towards those whose fingerprints are alike",
    )
)
CLUSTER = register(
    Strategy(
        name="cluster",
        relation=scaled_cluster_mean,
        plans="clusters",
        about="one adapter for each cluster of fingerprints",
    )
)
ATLAS = register(
    Strategy(
        name="atlas",
        relation=scaled_diffusion,
        keep_best=True,
        plans="clusters",
        about="mira inside clusters; clients take what their validation data likes",
    )
)
