"""Floor 5: terminal screens. They show records and compute nothing that a record does not hold."""
