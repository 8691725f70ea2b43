"""What a step keeps on a device, for families beside those of the capacity tests."""

import pytest

from atlas.engines.local.capacity import take_ranks, trial_bytes
from tests.federation.capacity.test_cost import ALL, estimate, group_of


@pytest.mark.parametrize(("modules", "blocks"), [(["query", "value"], 1), (ALL, 2)])
@pytest.mark.parametrize(
    "kind", ["roberta", "mpnet", "distilbert", "qwen3", "gemma", "gpt2", "atlas"]
)
def test_a_measured_step_is_within_a_tenth_of_the_estimate(kind, modules, blocks, checkpoint):
    group, settings = group_of(str(checkpoint(kind)), modules, blocks)
    ranks = [4] * len(group.model.layout.modules)
    take_ranks(group, {"one": ranks}, seed=0)
    need, total = estimate(group, settings, ranks)
    measured = trial_bytes(group, "one", settings.train, seed=0)
    assert measured - need.weights == pytest.approx(total - need.weights, rel=0.1)
