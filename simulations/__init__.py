"""Studies: methods that only papers compare, and their tables and figures, one folder a paper.

`python -m simulations` lists and runs them.
"""

#: Modules with tables and figures of papers, loaded when one is asked for.
REPRODUCTIONS = (
    "simulations.threads.command",
    "simulations.threads.encoders",
    "simulations.threads.adapters",
    "simulations.defaults.evaluation",
    "simulations.adadps.tables",
    "simulations.adadps.figure2",
    "simulations.adadps.toy",
    "simulations.adadps.figure6",
    "simulations.adadps.public_only.examples",
    "simulations.adadps.public_only.tags",
    "simulations.agd.study",
    "simulations.bolt_on.study",
    "simulations.checkpoint_recycling.convex",
    "simulations.checkpoint_recycling.tags.command",
    "simulations.checkpoint_recycling.problems",
    *(f"simulations.dpnsgd.figure{number}" for number in (2, 3, 4)),
    "simulations.theory.command",
)
