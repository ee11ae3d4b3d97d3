"""Floor 3: what measurements mean. Functions of records alone; `diagnose(folder)` is the way in."""
