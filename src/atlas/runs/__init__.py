"""Run folders: events, checkpoints, seeds, machine facts and summaries."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "folder": ["RunFolder", "read_summary", "write_summary"],
        "events": ["EventLog", "Observe", "Progress", "read_events"],
        "checkpoint": ["Checkpoint", "latest_round", "save_round"],
        "seeds": ["generator"],
        "process": ["machine_facts", "usable_cores"],
        "cores": ["side_by_side"],
    },
)
