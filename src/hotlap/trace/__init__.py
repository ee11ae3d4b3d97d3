"""Reading `torch.profiler` traces: files into tables (`read`), tables into answers (`analyses`)."""
