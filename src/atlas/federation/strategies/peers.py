"""Methods that change local training; the server does what `fedavg` does.

`fedprox` (Li et al. 2020) pulls a client to where it started the round. `ditto` (Li et al. 2021)
trains a personal adapter beside the averaged one and pulls it to what was delivered last.
"""

from atlas.federation.strategies.base import Strategy, data_shares, register

FEDPROX = register(Strategy(name="fedprox", relation=data_shares, anchor="start"))
DITTO = register(Strategy(name="ditto", relation=data_shares, anchor="global"))
