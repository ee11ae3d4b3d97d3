"""Floor 2, the parent's side: how a command is started, watched and ended."""
