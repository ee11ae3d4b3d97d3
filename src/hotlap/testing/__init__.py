"""Floor 6: hotlap inside pytest."""
