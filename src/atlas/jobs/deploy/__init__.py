"""Federations over machines: what the server's host and every node do."""

from atlas.exports import exports

__all__, __getattr__, __dir__ = exports(
    __name__,
    {
        "folder": ["make_deployment", "read_federation"],
        "operate": ["check", "register_nodes", "run_deployed"],
        "serve": ["make_run"],
        "trainer": ["NodeTrainer"],
    },
)
