"""Reports: run folders as pages that need nothing else."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "document": ["run_document", "runs_document", "study_document"],
        "page": ["open_document", "render", "write_report"],
    },
)
