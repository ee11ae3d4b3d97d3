"""Where what torch.compile made is kept, so that a later trial or run starts warm.

torch's own default, a folder in /tmp, is lost with the container or the reboot. The user's own setting stands.
"""

import getpass
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"
BUILDS: Final = "_CxxBuild"
"""Ends the name of the folder in which Inductor's C++ compiler works while it builds the files of that name."""
BUILT: Final = frozenset({".so", ".o"})


def folder() -> str:
    """`$TORCHINDUCTOR_CACHE_DIR`, else `inductor` in hotlap's cache."""
    from hotlap.records.files import cache_folder

    return os.environ.get(VARIABLE) or str(cache_folder("inductor"))


def variables() -> dict[str, str]:
    """Environment of a command that compiles: compiled code is found where an earlier one left it. Nothing where hotlap
    may not write there; torch's default is then in force."""
    wanted = folder()
    there = next(one for one in (Path(wanted), *Path(wanted).parents) if os.path.lexists(one))
    return {VARIABLE: wanted} if there.is_dir() and os.access(there, os.W_OK | os.X_OK) else {}


def mend() -> None:
    """Take out what a C++ compiler had half written when it was killed.

    Inductor lets g++ write into the cache itself and takes a file that is there for whole, so that every later process
    that needs it dies of an "invalid ELF header" (torch 2.13, `_worker_compile_cpp`). It builds under a lock, in a
    folder of its own beside the file, which is gone when the file is whole.
    """
    for cache in {Path(folder()), _of_torch()}:
        locks = cache / "locks"
        for place in cache.glob(f"*/*{BUILDS}"):
            name = place.name.removesuffix(BUILDS)
            own = locks / f"{name.split('.')[0]}.lock"
            with _free(own) if own.exists() else nullcontext(_all_free(locks)) as free:
                if free:
                    for file in place.parent.glob(f"{name}.*"):
                        if file.suffix in BUILT:
                            with suppress(OSError):
                                file.unlink()
                    shutil.rmtree(place, ignore_errors=True)


def _of_torch() -> Path:
    """Inductor's own default, where a script that compiles by itself keeps it."""
    return Path(tempfile.gettempdir()) / ("torchinductor_" + re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser()))


@contextmanager
def _free(lock: Path) -> Iterator[bool]:
    """Holds a lock of Inductor's, if nobody else does; whether it could."""
    import fcntl  # not on Windows, where nothing of this is called

    with ExitStack() as opened:
        free = False
        with suppress(OSError):
            fcntl.flock(opened.enter_context(lock.open("r+b")), fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        yield free


def _all_free(locks: Path) -> bool:
    """Whether nothing is being built. The second file of a build has no lock of its own name."""
    for lock in locks.glob("*.lock"):
        with _free(lock) as free:
            if not free:
                return False
    return True
