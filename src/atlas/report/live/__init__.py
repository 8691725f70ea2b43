"""What is shown while runs are under way: on a terminal, and as a page in a browser."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "terminal": ["BarDisplay", "PlainDisplay", "PlanLine", "RoundLine", "live_display"],
        "app": ["create_app", "page_router"],
        "access": ["Access"],
    },
)
