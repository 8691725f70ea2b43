"""The strategy that settings name, and what does not go with it."""

from __future__ import annotations

from dataclasses import replace

from atlas.config.federation import FederationConfig
from atlas.errors import InputError
from atlas.federation import strategies as strategies  # fills the register of strategies
from atlas.federation.strategies.base import STRATEGIES, Strategy, find_strategy


def find_checked_strategy(config: FederationConfig) -> Strategy:
    """The strategy of the settings.

    Raises:
        InputError: There is none of that name, or another setting does not go with it.
    """
    strategy = find_strategy(config.strategy)
    if config.keep_best is not None and strategy.pool == "none":
        strategy = replace(strategy, keep_best=config.keep_best)
    if strategy.keep_best and config.alone is False:
        raise InputError("alone: false, but keep_best needs the solo shadow; allowed: true, needed")
    if strategy.keep_best and strategy.anchor == "global":
        raise InputError(
            f"keep_best: true, but under {strategy.name} clients use personal adapters, not the "
            "mixtures they would accept; allowed: false"
        )
    if strategy.keep_best and strategy.deliver == "merge":
        raise InputError(
            f"keep_best: true, but under {strategy.name} mixtures are merged whole and adapters "
            "start again, so there is nothing to go back to; allowed: false"
        )
    if strategy.deliver == "merge" and config.route.budget is not None:
        raise InputError(
            f"route.budget: {config.route.budget:g}, but under {strategy.name} whole adapters are "
            "merged and start again; allowed: null"
        )
    _check_cut(config, strategy)
    if config.relation.eta == "shrink":
        _check_shrink(config, strategy)
    return strategy


def _check_cut(config: FederationConfig, strategy: Strategy) -> None:
    """Refuse settings of the cut where there is no such cut, or nothing to make up for."""
    if strategy.space != "product" and config.mixing.cut != "leading":
        raise InputError(
            f"mixing.cut: {config.mixing.cut}, but {strategy.name} mixes in space "
            f"{strategy.space!r}, where mixtures have no directions to choose from; allowed: "
            "leading, or a strategy that mixes products"
        )
    if config.mixing.feedback and strategy.space != "product":
        raise InputError(
            f"mixing.feedback: {config.mixing.feedback:g}, but {strategy.name} mixes in space "
            f"{strategy.space!r}; what a cut removes is known of mixed products alone; allowed: 0"
        )
    if config.mixing.feedback and config.wire.form != "plain":
        raise InputError(
            f"mixing.feedback: {config.mixing.feedback:g}, but with wire.form {config.wire.form!r} "
            "the server does not know to the bit what a client holds; allowed: 0, or the form plain"
        )
    if config.mixing.feedback and strategy.deliver != "replace":
        raise InputError(
            f"mixing.feedback: {config.mixing.feedback:g}, but under {strategy.name} a mixture "
            "does not take the place of what a client trains; allowed: 0"
        )


def _check_shrink(config: FederationConfig, strategy: Strategy) -> None:
    """Estimated steps need neighbours to step to, and whole adapters to compare, as trained."""
    if strategy.plans == "nothing":
        able = ", ".join(n for n, s in sorted(STRATEGIES.items()) if s.plans != "nothing")
        raise InputError(
            f"relation.eta: 'shrink' given, but under {strategy.name} clients take no steps toward "
            f"neighbours; allowed with strategy {able}"
        )
    if (config.route.budget or strategy.budget) < 1:
        raise InputError(
            "relation.eta: 'shrink' given, but not all modules travel (route.budget), and a step "
            "is estimated from whole adapters; allowed: a number, even, auto"
        )
    if config.wire.form == "topk":
        raise InputError(
            "relation.eta: 'shrink' given, but with wire.form 'topk' most of what a client trained "
            "is left out of its reply, and its distance from neighbours is no longer that of what "
            "it trained; allowed: the forms plain, bfloat16, int8"
        )
