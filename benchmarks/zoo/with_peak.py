"""Run a script as it is and print the most device memory that its tensors took, when it ends.

python with_peak.py train.py --steps 60
"""

import atexit
import runpy
import sys
from pathlib import Path

import torch


def report():
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        print(f"peak memory {torch.cuda.max_memory_allocated()} bytes", flush=True)


if __name__ == "__main__":
    atexit.register(report)
    sys.argv = sys.argv[1:]
    sys.path[0] = str(Path(sys.argv[0]).resolve().parent)
    runpy.run_path(sys.argv[0], run_name="__main__")
