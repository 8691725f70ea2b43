"""Who is like whom: fingerprints taken, compared and grouped, for few clients or many."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "take": ["Print", "take_print"],
        "compare": ["Prints", "compare_prints"],
        "compare_streamed": ["compare_many"],
        "clusters": ["Clusters", "Split", "group_clients"],
        "clusters_sampled": ["SampledPlan", "group_many", "plan_many"],
        "planned": ["CohortPlan", "describe_planned", "plan_cohort"],
    },
)
