"""Federated averaging (McMahan et al. 2017), on products of adapters, weighted by data.

`fedavg` averages adapters and, within one label set, heads; `fedavg-body` leaves heads personal.
"""

from atlas.federation.strategies.base import Strategy, data_shares, register

FEDAVG = register(Strategy(name="fedavg", relation=data_shares))
FEDAVG_BODY = register(Strategy(name="fedavg-body", relation=data_shares, heads="personal"))
