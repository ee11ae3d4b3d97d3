"""Where what torch.compile made is kept, so that a later trial or run starts warm.

torch's own default, a folder in /tmp, is lost with the container or the reboot. The user's own setting stands.
"""

import os
from typing import Final

VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"


def folder() -> str:
    """`$TORCHINDUCTOR_CACHE_DIR`, else `inductor` in hotlap's cache (`$HOTLAP_CACHE`, `$XDG_CACHE_HOME/hotlap`)."""
    own = os.environ.get(VARIABLE)
    if own:
        return own
    return os.path.join(hotlap_cache(), "inductor")  # noqa: PTH118


def hotlap_cache() -> str:
    """Where hotlap's caches lie: `$HOTLAP_CACHE`, else `$XDG_CACHE_HOME/hotlap`, else `~/.cache/hotlap`."""
    base = os.environ.get("HOTLAP_CACHE")
    if base:
        return base
    user = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118
    return os.path.join(user, "hotlap")  # noqa: PTH118


def nearest(wanted: str) -> str | None:
    """The folder, or the one in which it and those above it would be made; None where hotlap may not write there."""
    there = wanted
    while not os.path.lexists(there) and os.path.dirname(there) != there:  # noqa: PTH120
        there = os.path.dirname(there)  # noqa: PTH120
    return there if os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK) else None  # noqa: PTH112


def variables() -> dict[str, str]:
    """Environment of a command that compiles: compiled code is found where an earlier one left it. Nothing where hotlap
    may not write there; torch's default is then in force."""
    wanted = folder()
    return {} if nearest(wanted) is None else {VARIABLE: wanted}


def warm() -> bool:
    """Whether anything was ever kept there; not whether it is of this command."""
    try:
        with os.scandir(folder()) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
