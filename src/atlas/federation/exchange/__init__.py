"""What travels between server and clients, how, and what is refused."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "message": ["Message", "MessageError", "decode", "encode"],
        "transport": ["CONTRACTS", "Failure", "TaskContract", "Transport"],
        "guard": ["Expected", "Refusal", "check_reply"],
    },
)
