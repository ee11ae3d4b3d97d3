"""What the agent patches, one file a seam. `install(agent)` in each; nothing is patched twice."""
