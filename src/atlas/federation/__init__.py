"""The federation: tasks, cohorts, strategies and the round loop."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "rounds": ["run_round", "run_rounds"],
        "prepare": ["make_plan"],
        "server": ["RunPlan", "Server", "ServerState"],
        "clients": ["ClientData", "Example", "Holder", "Task"],
        "newcomer": ["find_place", "first_adapter"],
    },
)
