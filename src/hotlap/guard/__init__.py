"""Floor 5: keeps a command fast: compares two versions of it, and says which change made it slower."""
