"""The Miras family (arXiv 2504.13173): architecture, bias, retention and learner at choice."""
