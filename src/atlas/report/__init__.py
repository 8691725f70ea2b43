"""Tables, live display and plots; reads events and run folders, never training itself."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "live": ["live_display"],
        "bench": ["bench_view"],
    },
)
