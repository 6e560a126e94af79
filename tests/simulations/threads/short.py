"""Methods of the studies of threads, in fewer rounds."""

from dataclasses import replace


def shortened(method, **options):
    """Return a method with some options changed at every ε."""
    changed = {epsilon: {**given, **options} for epsilon, given in method.options.items()}
    return replace(method, options=changed)
