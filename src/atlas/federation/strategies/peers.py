"""Methods of others: of local training, and of how adapters of unequal ranks become one.

With the server of `fedavg`, `fedprox` (Li et al. 2020) pulls a client to where it started the round
and `ditto` (Li et al. 2021) trains a personal adapter beside the averaged one, pulled to what was
delivered last.

`hetlora` (Cho et al. 2024) pads factors with zeros, weights them by the norm of what each adapter
changes and cuts the mean to each client's rank; its pruning of ranks is left out. `flexlora` (Bai
et al. 2024) cuts the exact mixture by its singular values. `flora` (Wang et al. 2024) stacks all
factors, which is exact; clients add the product to a dense change of their own and start anew.
`ffa` (Sun et al. 2024) leaves A as drawn, so that the mean of B alone is exact. `fedrot` turns
factors to a common gauge before A and B are averaged; its soft form is left out.
"""

from __future__ import annotations

from atlas.federation.strategies.base import Strategy, register
from atlas.federation.strategies.relations_sparse import scaled_data_shares, scaled_norm_shares

FEDPROX = register(
    Strategy(
        name="fedprox",
        relation=scaled_data_shares,
        anchor="start",
        about="fedavg; training is pulled to where the round began",
    )
)
DITTO = register(
    Strategy(
        name="ditto",
        relation=scaled_data_shares,
        anchor="global",
        about="fedavg, and a personal adapter beside it that is pulled to it",
    )
)


HETLORA = register(
    Strategy(
        name="hetlora",
        relation=scaled_norm_shares,
        space="factors",
        about="unequal ranks padded with zeros, who changes more counts for more",
    )
)
FLEXLORA = register(
    Strategy(
        name="flexlora",
        relation=scaled_data_shares,
        space="svd",
        about="fedavg; the exact mean is cut to each rank by its singular values",
    )
)
FLORA = register(
    Strategy(
        name="flora",
        relation=scaled_data_shares,
        space="stack",
        deliver="merge",
        about="factors stacked, so exact; clients add the sum to themselves and start anew",
    )
)
FFA = register(
    Strategy(
        name="ffa",
        relation=scaled_data_shares,
        space="b",
        trains="b",
        about="A stays as drawn, so that the mean of B alone is exact",
    )
)
FEDROT = register(
    Strategy(
        name="fedrot",
        relation=scaled_data_shares,
        space="factors",
        align="rotate",
        about="means of A and of B, after turning all to a common gauge",
    )
)
