"""Local training: the loop, one step of it, on all cores, split, and scores."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "loop": ["Clock", "Course", "EarlyStop", "Fitted", "fit"],
        "step": ["Anchor", "TrainingState"],
        "parallel": ["fit_on_cores"],
        "split": ["Wire", "split_gradients"],
        "evaluate": ["score_answers", "score_choices", "score_labels"],
    },
)
