"""Who belongs together among very many clients: a sample is grouped, then everybody is placed.

Whether a split is real and which k is best is decided on a sample, by the rules of `grouping`; a
test on more clients would tell smaller groups apart, at a cost beyond any use. What the sample is
split into further is found by halving alone, which needs far fewer rotations than trying all k.
A group of which the sample holds fewer than two is not found.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from atlas.config.plan import ClusterSettings
from atlas.federation.fingerprints.clusters import KNOWN, Clusters, Examine, group_clients
from atlas.federation.fingerprints.compare import Prints
from atlas.ops.clustering.clusters import canonical
from atlas.ops.extend import extend_labels, score_sampled
from atlas.runs.seeds import generator

SAMPLE = 128
"""Most clients that are grouped all together; of more, so many are."""


def group_many(
    examine: Examine,
    features: Tensor,
    tasks: Sequence[str],
    settings: ClusterSettings,
    seed: int,
) -> Clusters:
    """`grouping.group_clients` for more than `SAMPLE` clients.

    Args:
        examine: Gives the fingerprints of some clients.
        features: Of all of them [n, d].
        tasks: Task of each client, for `oracle` alone.
        settings: Method and limits.
        seed: Run seed.
    """
    scored = int(generator(seed, "clusters", "scored").integers(2**32))
    if settings.method in KNOWN:
        labels = KNOWN[settings.method](tasks)
        return Clusters(settings.method, labels, score_sampled(features, labels, scored))
    size = min(SAMPLE, len(tasks))
    drawn = generator(seed, "clusters", "sample").choice(len(tasks), size, replace=False)
    sample = sorted(drawn.tolist())

    def examine_sample(some: Sequence[int]) -> Prints:
        return examine([sample[i] for i in some])

    method = "kmeans" if settings.method == "permuted" else settings.method
    told = settings.model_copy(update={"method": method})
    halving = told.model_copy(update={"largest": 2})
    found = group_clients(examine_sample, [tasks[i] for i in sample], told, seed, halving)
    batches = int(generator(seed, "clusters", "mini-batches").integers(2**32))
    labels = extend_labels(features, sample, found.labels, batches)
    if settings.method == "permuted":
        order = generator(seed, "clusters", "permuted").permutation(len(labels))
        labels = canonical([labels[i] for i in order])
    metrics = score_sampled(features, labels, scored)
    return Clusters(settings.method, labels, metrics, found.tried)
