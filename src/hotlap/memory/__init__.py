"""What the memory of a run means."""
