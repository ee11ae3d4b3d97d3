"""Floor 5: keeps a command fast: compares two versions of it, says which change made it slower, and remembers runs."""
