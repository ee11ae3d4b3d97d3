"""Where sample-cache keeps the rows of batches: in memory, or on disk in a file without a name. Not a lever.

The file's name is gone as soon as it is open, so that nothing stays behind however the process ends. It is written and
read by calls and not mapped: a disk that is full or fails is then an error that can be answered, and not a SIGBUS.
"""

import errno
import os
import shutil
import weakref
from collections.abc import Sequence
from typing import Any, Final

from . import _compile_cache

SHARE_OF_DISK: Final = 0.5
"""Of the space that would be free without the file; it never takes more."""


def folder() -> str:
    """Where files of samples are made: `samples` in hotlap's cache."""
    return os.path.join(_compile_cache.hotlap_cache(), "samples")  # noqa: PTH118


def no_room(need: int, held: int = 0) -> str | None:
    """Why a file of `need` bytes, `held` of which it has, may not be kept on disk; None if it may."""
    there = _compile_cache.nearest(folder())
    if there is None:
        return f"{folder()} can't be written"
    free = shutil.disk_usage(there).free + held
    if need <= SHARE_OF_DISK * free:
        return None
    return f"{need / 2**20:.0f} MiB are more than half of the {free / 2**20:.0f} MiB free on disk"


class Memory:
    """Tensors of all rows. Raises ValueError where they would take more than half of the free memory, or get none."""

    def __init__(self, rows: int, like: Sequence[Any]) -> None:
        import torch

        need, free = rows * row_bytes(like), _free_memory()
        if free is not None and need > free / 2:
            raise ValueError(f"the samples take {need / 2**20:.0f} MiB")
        try:
            self.leaves = [torch.empty((rows, *leaf.shape[1:]), dtype=leaf.dtype) for leaf in like]
        except RuntimeError as error:  # of torch's allocator: a limit that the system does not tell
            raise ValueError(f"the samples take {need / 2**20:.0f} MiB") from error

    def no_room(self) -> str | None:
        return None

    def write(self, indices: Sequence[int], leaves: Sequence[Any]) -> None:
        import torch

        at = torch.tensor(indices)
        for kept, rows in zip(self.leaves, leaves, strict=True):
            kept[at] = rows

    def read(self, indices: Sequence[int]) -> list[Any]:
        import torch

        at = torch.tensor(indices)
        return [torch.index_select(kept, 0, at) for kept in self.leaves]


class Disk:
    """A file of rows of one size, each holding its leaves one after another. Raises ValueError with what is in the way:
    no space, no permission, a disk that fails."""

    def __init__(self, rows: int, like: Sequence[Any]) -> None:
        self.each = row_bytes(like)
        self.need = rows * self.each
        self.shapes = [(leaf.shape[1:], leaf.dtype) for leaf in like]
        try:
            why = no_room(self.need)
            if why is not None:
                raise ValueError(why)
            self.handle = _nameless(folder())
            weakref.finalize(self, os.close, self.handle)
            self.identity = self._identity()
        except OSError as error:
            raise _kept_not(error) from error

    def _identity(self) -> tuple[int, int, int]:
        status = os.fstat(self.handle)
        return status.st_dev, status.st_ino, status.st_nlink  # a new file may have the inode, but has a name too

    def no_room(self) -> str | None:
        """Whether others have come to need the space."""
        try:
            return no_room(self.need, os.fstat(self.handle).st_blocks * 512)
        except OSError as error:
            return str(_kept_not(error))

    def write(self, indices: Sequence[int], leaves: Sequence[Any]) -> None:
        self._each(os.pwritev, indices, [leaf.contiguous() for leaf in leaves], errno.ENOSPC)

    def read(self, indices: Sequence[int]) -> list[Any]:
        import torch

        leaves = [torch.empty((len(indices), *shape), dtype=dtype) for shape, dtype in self.shapes]
        self._each(os.preadv, indices, leaves, errno.EIO)
        return leaves

    def _each(self, move: Any, indices: Sequence[int], leaves: Sequence[Any], short: int) -> None:
        """Move rows between contiguous leaves and the file. short: the error where only a part of a row was moved."""
        parts = [_bytes(leaf) for leaf in leaves]
        try:
            if self._identity() != self.identity:  # closed by a script that closes all it finds, and used again
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
            for place, index in enumerate(indices):
                if move(self.handle, [part[place] for part in parts], index * self.each) != self.each:
                    raise OSError(short, os.strerror(short))
        except OSError as error:
            raise _kept_not(error) from error


def row_bytes(leaves: Sequence[Any]) -> int:
    """What a row of these leaves takes, bytes."""
    return sum(leaf[:1].numel() * leaf.element_size() for leaf in leaves)


def _nameless(where: str) -> int:
    """A new, empty file that only this process can reach. Raises OSError."""
    import tempfile

    os.makedirs(where, mode=0o700, exist_ok=True)  # noqa: PTH103 - pathlib costs the user an import
    with tempfile.TemporaryFile(dir=where, buffering=0) as file:
        return os.dup(file.fileno())


def _bytes(leaf: Any) -> Any:
    """The memory of a contiguous leaf as an array of bytes, a line for each row."""
    import torch

    return leaf.reshape(-1).view(torch.uint8).reshape(leaf.shape[0], row_bytes([leaf])).numpy()


def _kept_not(error: OSError) -> ValueError:
    return ValueError(f"the samples can't be kept on disk: {error.strerror or error}")


def _free_memory() -> int | None:
    """Memory that is free to use without swapping, bytes; None where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:  # noqa: PTH123 - pathlib costs the user an import
            lines = [line for line in file if line.startswith("MemAvailable:")]
        return int(lines[0].split()[1]) * 1024
    except (OSError, IndexError, ValueError):
        return None
