"""How an ε that was asked for is written."""


def asked(target: float) -> str:
    """Return an ε that was asked for, which no run exceeds."""
    return f"{target:g}"
