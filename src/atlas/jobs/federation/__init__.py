"""Federations from start to end: run and resume, plan, finish, and answer as a client would."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "run": ["FederationJob"],
        "answer": ["evaluate_file", "export_client", "export_merged", "predict_texts"],
    },
)
