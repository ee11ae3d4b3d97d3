"""What the agent patches, one file a seam, found by listing: `install(agent)` in each. Nothing is patched twice, so
they may come in any order."""
