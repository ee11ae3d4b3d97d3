"""How a duration is written, in what a finding says as on screens."""

import math


def three(value: float) -> str:
    """Three significant digits below 1000, whole numbers above, two decimals at most."""
    value = float(f"{value:.3g}") if abs(value) < 1000 else value
    decimals = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def ms(value: float | None) -> str:
    """Milliseconds as people read them: 0.42 ms, 5.31 ms, 215 ms, 12.3 s."""
    if value is None or not math.isfinite(value):
        return "unknown"
    if 0 < value < 0.01:
        return "<0.01 ms"
    return f"{three(value / 1000)} s" if value >= 999.5 else f"{three(value)} ms"
