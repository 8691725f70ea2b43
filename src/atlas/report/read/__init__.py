"""What pictures and tables read from events and results."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "cohorts": ["GrantedCohort", "PlannedCohort"],
        "studies": ["rows_by_arm"],
    },
)
