"""Nsight Systems and Nsight Compute in front of a command, over a few of its steady steps.

Both record between cudaProfilerStart and cudaProfilerStop, which the agent calls (`agent/capture.py`). Their options
are those of Nvidia's user guides. nsys: no sampling of the CPU, which needs rights, nothing killed, and the report is
written when the range ends. ncu: the section `SpeedOfLight`, which says how near a kernel comes to what the device can
do; clocks are left as they are, because locking them is felt by all who use the device; collectives are left out,
because a kernel that waits for another device can not be run alone.
"""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from hotlap.records.errors import CommandNotFound, RecordError
from hotlap.records.profilers import NCU_FILE, NSYS_FILE, Capture
from hotlap.runs.folder import RankFolder, RunFolder

from .front import Front, NotStarted, Relayed

REPORT: Final = "nsys.nsys-rep"
STEPS: Final[dict[str, int]] = {"nsys": 3, "ncu": 1}
LAUNCHES: Final = 120
"""Kernel launches that ncu measures, the first of the step: about a minute. One took about 0.5 s (168 in about 80 s, by
ncu 2025.3.1 on an H200, the section `SpeedOfLight`, some 13 passes each)."""
EXPORT_S: Final = 300.0
ROOT: Final = Path("/")
PLACES: Final[dict[str, tuple[str, ...]]] = {
    "nsys": ("usr/local/cuda/bin/nsys", "opt/nvidia/nsight-systems*/*/bin/nsys"),
    "ncu": ("usr/local/cuda/bin/ncu", "opt/nvidia/nsight-compute/*/ncu"),
}
"""Where Nvidia's packages put them; they do not put that on PATH."""
SAID: Final = re.compile(r"error|fail|not supported|unrecogni[sz]ed|unknown|invalid|permission|no reports", re.I)
OWN: Final = "hotlap: "
"""Begins what hotlap itself adds to what it printed."""
NOISE: Final = re.compile(r"^=+\s*(PROF|ERROR|WARNING)\s*=+\s*")
PERMISSION: Final = "ERR_NVGPUCTRPERM"
ALLOW: Final = (
    "this user may not read the device's counters: run as root, with CAP_SYS_ADMIN in a container, or have the driver "
    "loaded with NVreg_RestrictProfilingToAdminUsers=0 (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)


def find(name: str) -> str:
    """Its path. Raises CommandNotFound."""
    found = shutil.which(name)
    places = [str(place) for pattern in PLACES[name] for place in sorted(ROOT.glob(pattern), reverse=True)]
    found = found or next((place for place in places if os.access(place, os.X_OK)), None)
    if found is None:
        where = "Nsight Systems" if name == "nsys" else "Nsight Compute, in the CUDA toolkit"
        raise CommandNotFound(
            f"--with {name}: {name} was not found on PATH nor where its packages install it; it is part of {where}"
        )
    return found


class Nsight:
    """One of the two, for one run."""

    def __init__(self, name: str, program: str, folder: Path) -> None:
        self.name, self.program, self.folder = name, program, folder.resolve()
        self.front = Front(self._words())

    def _words(self) -> list[str]:
        if self.name == "ncu":
            return [
                self.program, "--profile-from-start", "off", "--target-processes", "all", "--clock-control", "none",
                "--section", "SpeedOfLight", "--launch-count", str(LAUNCHES), "--kernel-name", "regex:^(?!nccl)",
                "--csv", "--page", "raw",
            ]  # fmt: skip
        output = str(self.folder / REPORT).removesuffix(".nsys-rep").replace("%", "%%")  # % begins a pattern
        return [
            self.program, "profile", "--trace=cuda,nvtx", "--sample=none", "--cpuctxsw=none",
            "--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--kill=none", "--wait=primary",
            "--cuda-graph-trace=node", "--force-overwrite=true", f"--output={output}",
        ]  # fmt: skip

    @property
    def said(self) -> Path:
        """What it printed."""
        return self.folder / f"{self.name}.txt"

    def start(self, command: Sequence[str], program: str, cwd: Path, environment: Mapping[str, str]) -> Relayed | None:
        """Start the command behind it; None where it would not, and the command has not run. Raises CommandError."""
        try:
            with self._files() as (out, errors):
                return self.front.start(command, program, cwd, environment, out, errors)
        except NotStarted as error:
            self._note(f"{error}; the command ran without it")
            return None

    @contextlib.contextmanager
    def _files(self) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
        """ncu prints its table on stdout. Raises NotStarted."""
        with contextlib.ExitStack() as stack:
            try:
                errors = stack.enter_context(self.said.open("ab"))
                table = self.name == "ncu"
                out = stack.enter_context((self.folder / NCU_FILE).open("wb")) if table else errors
            except OSError as error:
                raise NotStarted(f"its output can't be written: {error.strerror or error}") from error
            yield out, errors

    def _note(self, what: str) -> None:
        with contextlib.suppress(OSError), self.said.open("a", encoding="utf-8") as file:
            file.write(f"{OWN}{what}\n")

    def finish(self) -> None:
        """Once the command has ended: wait for what it recorded, and make that readable. Ctrl-C ends it at once."""
        why = self.front.finish()
        if why:
            self._note(why)
        if self.name == "nsys" and not why and (self.folder / REPORT).is_file():
            self._export()

    def _export(self) -> None:
        target = self.folder / NSYS_FILE
        words = [self.program, "export", "--type=sqlite", "--force-overwrite=true", f"--output={target}"]
        words.append(str(self.folder / REPORT))
        try:
            with self.said.open("ab") as said:
                done = subprocess.run(
                    words, stdin=subprocess.DEVNULL, stdout=said, stderr=said, timeout=EXPORT_S, process_group=0,
                    check=False,
                )  # fmt: skip
            why = f"its export failed (exit code {done.returncode})" if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            why = f"its export failed: {error}"
        except KeyboardInterrupt:
            why = "Ctrl-C ended its export"
        if why:
            self._note(why)


def why_not(folder: Path, name: str) -> str:
    """Why a run holds nothing of it: in its words, or in those of the agent."""
    run = RunFolder(folder)
    lines = [*run.text(f"{name}.txt"), *run.text(NCU_FILE)]
    if any(PERMISSION in line for line in lines):
        return ALLOW
    note = next((line.removeprefix(OWN) for line in lines if line.startswith(OWN)), "")
    said = [NOISE.sub("", line) for line in lines if not line.startswith((OWN, '"'))]
    worst = next((line for line in said if SAID.search(line)), said[-1] if said else "")
    seen = next((found for rank in run.ranks if (found := _captured(rank))), "")
    return "; ".join(part[:300] for part in (note, seen, worst) if part) or f"see {folder / name}.txt"


def _captured(rank: RankFolder) -> str:
    """What the agent noted of its window."""
    with contextlib.suppress(RecordError):
        return capture.note if (capture := rank.document(Capture)) else "the run ended before its steady steps"
    return ""
