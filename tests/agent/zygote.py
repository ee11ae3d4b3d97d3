"""A process that has imported torch, without hotlap, and forks a child for each script it is asked to run.

Saves the seconds that `import torch` takes. A request with a session starts the agent as torch itself would have done
at the end of its import; without one the script runs bare. One JSON line in with the requests that run at once, one
out with their wait statuses.
"""

import atexit
import ctypes
import gc
import json
import os
import sys
from pathlib import Path


class Libraries(set):
    """Names of torch's modules and of those it imports. whole: Python's own end is wanted; code: the exit code, once
    the script has ended. What it needs is bound here: in a child the names of this file are the script's."""

    whole = False
    code = None

    def ended(self, code):
        """The script ended by itself, with what `SystemExit` holds."""
        if not self.whole:
            self.code = code & 0xFF if isinstance(code, int) else int(code is not None)

    def leave(self, os=os, sys=sys, modules=sys.modules, keep=ctypes.pythonapi.Py_IncRef, boxed=ctypes.py_object):
        """The last thing that Python calls before it takes its modules apart. That would be 0.25 s, of which a tenth
        is the script's part: it is left out, or where it was asked for (`whole`), only torch's part of it is."""
        if self.code is not None:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(self.code)
        keep(boxed({name: modules.pop(name) for name in self & set(modules)}))


LIBRARIES = Libraries()
atexit.register(LIBRARIES.leave)
# Registered first, it is called after whatever torch, the agent and the script register.
import torch  # noqa: E402
import torch._dynamo  # noqa: E402 - the first `Optimizer.step` imports it
import torch._inductor.compile_fx  # noqa: E402 - what compiles imports these, which takes a second
import torch.utils.cpp_extension  # noqa: E402
import torch.utils.data  # noqa: E402

LIBRARIES.update(name for name in sys.modules if name.split(".")[0] not in {*sys.stdlib_module_names, "__main__"})


def child(request):
    """Become the script: exits as the script does."""
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(0)
    os.open(os.devnull, os.O_RDONLY)
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    sys.path[0] = str(Path(sys.argv[0]).parent)
    exec(request["before"], {"torch": torch})
    LIBRARIES.whole = request["whole"]
    if request["session"]:
        os.environ["HOTLAP_SESSION"] = request["session"]
        sys.path.append(request["inject"])
        from _hotlap_entry import start

        start()
    script = sys.argv[0]
    main = sys.modules["__main__"]
    for name in [name for name in vars(main) if not name.startswith("__")]:
        delattr(main, name)
    main.__file__, main.__doc__ = script, None
    with open(script, encoding="utf-8") as file:  # noqa: PTH123
        return compile(file.read(), script, "exec"), main.__dict__


def serve():
    """Answer requests until the pipe closes; returns, in a child, the script to run."""
    gc.freeze()  # or each child spends a second at its end on what torch has made
    for line in iter(sys.stdin.buffer.readline, b""):
        pids = []
        for request in json.loads(line):
            pids.append(os.fork())
            if pids[-1] == 0:
                return child(request)
        os.write(1, f"{[os.waitpid(pid, 0)[1] for pid in pids]}\n".encode())
    return None


def become(found, libraries=LIBRARIES):
    """Run the script, if this is a child, and note how it ended. Ctrl-C is Python's own to end by."""
    if found is None:
        return
    try:
        exec(*found)
    except SystemExit as error:
        libraries.ended(error.code)
        raise
    except Exception:
        libraries.ended(1)
        raise
    libraries.ended(None)


become(serve())  # the name is looked up first: in a child it is the script's
