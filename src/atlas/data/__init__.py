"""Data: the edge to files, the hub and the synthetic generator."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "arithmetic": ["ArithmeticTask"],
        "clients": ["load_clients"],
        "examples": ["Record", "Source", "read_example"],
        "tasks": ["task_registry"],
        "recall": ["RecallTask", "draw_recall"],
        "text": ["TextLines"],
    },
)
