"""Reading traces: files of `torch.profiler` (`read`) and of Nsight Systems (`nsys`) into tables, tables into answers
(`analyses`)."""
