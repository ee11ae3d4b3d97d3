"""Floor 4: which trial next, which verdict. `tune.tune(...)` is the way in."""
