"""Sizes of memory, in words."""


def size_text(of: float) -> str:
    """`20 KiB`, `1.5 GiB`: three digits; 1000 MiB are GiB already."""
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(of) >= 0.9995 * 1000 * 2 ** (power - 10):
            return f"{of / 2**power:.3g} {unit}"
    return f"{of:.0f} bytes"
