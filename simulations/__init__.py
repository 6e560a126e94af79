"""Studies: methods that only papers compare, and their tables and figures, one folder a paper."""

#: Modules with tables and figures of papers, loaded when one is asked for.
REPRODUCTIONS = (
    "simulations.threads.by_thread",
    "simulations.threads.ablation",
    *(f"simulations.adadps.tables.table{number}" for number in (1, 2, 3, 4, 6, 7, 8, 9, 10)),
    *(f"simulations.adadps.figures.figure{number}" for number in range(1, 7)),
    "simulations.agd.command",
    "simulations.bolt_on.command",
    "simulations.scraps.command",
    "simulations.scraps.tags.command",
    "simulations.scraps.by_example.command",
    *(f"simulations.dpnsgd.figure{number}" for number in (2, 3, 4)),
)
