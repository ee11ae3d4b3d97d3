"""What other profilers recorded, read: Nsight Compute, perf and py-spy. Nsight Systems' is a trace: `trace/nsys.py`."""
