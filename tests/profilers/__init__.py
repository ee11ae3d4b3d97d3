"""Reading what other profilers recorded."""
