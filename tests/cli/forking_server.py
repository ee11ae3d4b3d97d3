"""Imports hotlap once and forks a process for each command line: most of the time of a refusal is the import.

One JSON line in, one (the exit status as a number) out.
"""

import contextlib
import gc
import json
import os
import sys

from hotlap.cli import main


def warm():
    """Import what commands import late: nothing is computed, so that no thread of polars has started."""
    quiet = os.open(os.devnull, os.O_WRONLY)
    kept = os.dup(1), os.dup(2)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    for command in ("show", "trace", "report"):
        sys.argv = ["hotlap", command, "/nowhere"]
        with contextlib.suppress(SystemExit):
            main()
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(kept[0], 1)
    os.dup2(kept[1], 2)


def become(request):
    """In the child: the command itself."""
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv = ["hotlap", *request["words"]]
    exec(request["before"], {})
    main()


warm()
gc.freeze()
for line in iter(sys.stdin.buffer.readline, b""):
    if not os.fork():
        become(json.loads(line))
        sys.exit()
    os.write(1, f"{os.waitstatus_to_exitcode(os.wait()[1])}\n".encode())
