"""What the verbs of the command line do, without the command line."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "runner": ["Finished", "Job", "resume_run", "start_run"],
        "show": ["describe_run", "find_run", "list_runs"],
    },
)
