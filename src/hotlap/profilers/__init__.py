"""What other profilers recorded, read: Nsight Systems as a trace of its own, Nsight Compute, perf and py-spy beside
one."""
