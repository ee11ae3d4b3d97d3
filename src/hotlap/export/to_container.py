"""A container recipe: the environment of a run as `Containerfile` and `requirements.txt`, as far as its record knows.

The base is Python's own image; torch's wheels bring CUDA, cuDNN and NCCL with them, and the build fails where they are
not those of the run. What can't be pinned is said at the top of the file: driver, hardware, source, data, and what the
record does not know. Records are untrusted: names and versions must look like some, variables are those that a record
may hold, texts are quoted, and what can't be is left out and said.
"""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from hotlap.launch.environment import LONGEST_VALUE, variables
from hotlap.levers import all_levers
from hotlap.records.errors import RecordError
from hotlap.records.files import write_atomic
from hotlap.records.run import Environment, Run, Versions

from ._base import Target
from .series import Series

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
VERSION: Final = re.compile(r"\d[A-Za-z0-9.!_-]{0,60}(\+[A-Za-z0-9._]{1,40})?")
PYTHON: Final = re.compile(r"3\.\d{1,2}\.\d{1,2}")
WHEEL: Final = re.compile(r"cpu|cu\d{2,4}|rocm\d[\d.]{0,8}")
"""Builds of torch that its own index has."""
VARIABLE: Final = re.compile(r"[A-Z_][A-Z0-9_]{0,99}")
OF_TORCH: Final = frozenset({"torch", "triton"})
"""Torch's own line pins these."""
INDEX: Final = "https://download.pytorch.org/whl"
IMAGE: Final = "hotlap-run"


def write(series: Series, path: Path) -> list[str]:
    """`Containerfile` and `requirements.txt` in a folder; the lines build it and run the command in it."""
    run = series.run
    if run.versions is None:
        raise RecordError(
            f"{series.folder.file(Run)} has no versions to pin: nothing was seen in the run, or it is of an "
            "older hotlap. Run the command again"
        )
    pins, left_out = requirements(run.versions)
    write_atomic(path / "requirements.txt", "".join(f"{line}\n" for line in pins).encode())
    write_atomic(
        path / "Containerfile", "".join(f"{line}\n" for line in _lines(series, run.versions, left_out)).encode()
    )
    return [
        f"docker build -t {IMAGE} -f {shlex.quote(str(path / 'Containerfile'))} {shlex.quote(str(path))}",
        docker_run(run),
        "what it can't pin is at the top of the Containerfile",
    ]


def docker_run(run: Run) -> str:
    """The line that starts the command in the container, from the folder of the source."""
    gpus = "--gpus all " if run.environment.gpus else ""
    return f'docker run --rm {gpus}--ipc=host -v "$PWD":/work {IMAGE}'


def requirements(versions: Versions) -> tuple[list[str], list[str]]:
    """The lines of requirements.txt, and what could not be pinned."""
    build = versions.torch.partition("+")[2]
    torch = VERSION.fullmatch(versions.torch) is not None and (not build or WHEEL.fullmatch(build) is not None)
    lines, left_out = [], []
    if torch:
        lines += [f"--extra-index-url {INDEX}/{build}"] if build else []
        lines.append(f"torch=={versions.torch}")
    else:
        left_out.append(f"torch {versions.torch}: not a release, so it can't be installed by version")
    for name, version in versions.packages.items():
        if name in OF_TORCH:
            continue
        known = "+" not in version or (torch and version.partition("+")[2] == build)  # such as torchvision's
        if known and NAME.fullmatch(name) and VERSION.fullmatch(version):
            lines.append(f"{name}=={version}")
        else:
            left_out.append(f"{name} {version}: this version is in no package index")
    return lines, left_out


def _lines(series: Series, versions: Versions, left_out: list[str]) -> Iterator[str]:
    run, base = series.run, PYTHON.fullmatch(versions.python)
    settings, unset = _variables(run.environment)
    yield f"# What the run {_comment(series.name)} ran in, by hotlap {_comment(run.environment.hotlap)}. Build and run:"
    yield f"#   docker build -t {IMAGE} -f Containerfile ."
    yield f"#   {docker_run(run)}      # in the folder of the source"
    yield "# It does not pin:"
    for text in (*_not_pinned(run, versions), *left_out, *unset):
        yield f"# * {_comment(text)}"
    yield ""
    yield f"FROM python:{base[0] if base else '3'}-slim"
    if _compiles(series):
        yield "RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*"
    yield "COPY requirements.txt /tmp/requirements.txt"
    yield "RUN pip install --no-cache-dir -r /tmp/requirements.txt"
    yield f"RUN {json.dumps(['python', '-c', _check(versions)])}"
    yield from (f"ENV {name}={_quoted(value)}" for name, value in settings.items())
    yield "WORKDIR /work"
    yield f"CMD {json.dumps(_command(run))}"


def _not_pinned(run: Run, versions: Versions) -> Iterator[str]:
    machine = run.environment
    if not PYTHON.fullmatch(versions.python):
        yield f"Python {versions.python}: no release"
    if machine.gpus:
        names = ", ".join(dict.fromkeys(gpu.name for gpu in machine.gpus))
        yield f"{len(machine.gpus)} × {names}, driver {machine.driver or 'unknown'}: the host's"
    quota = "" if machine.cpu_quota is None else f", {machine.cpu_quota:g} of them by quota"
    yield f"{machine.cpu}, {machine.cores} cores{quota}, {machine.memory_gib:.0f} GiB; {machine.os}: the host's"
    if machine.git_commit:
        dirty = ", with changes that it does not have" if machine.git_dirty else ""
        yield f"the source: git commit {machine.git_commit}{dirty}, mounted from {run.cwd}"
    else:
        yield f"the source, mounted from {run.cwd}: not in a git commit"
    yield "data and files elsewhere, libraries of the system"
    yield (
        "packages that the process had not imported"
        if versions.packages
        else "packages other than torch: the run recorded none"
    )
    if run.levers:
        names = ", ".join(lever.name for lever in run.levers)
        yield f"levers of hotlap's that were in: {names} (hotlap run --recipe, or hotlap patch)"


def _variables(environment: Environment) -> tuple[dict[str, str], list[str]]:
    """The recorded variables to set, and why others are not."""
    settings, left_out = {}, []
    allowed = variables(environment.variables)
    for name, value in environment.variables.items():
        if name not in allowed or not VARIABLE.fullmatch(name):
            left_out.append(f"the variable {name}: records may not contain it")
        elif len(value) >= LONGEST_VALUE:
            left_out.append(f"{name}: the record has only its beginning")
        elif not value.isprintable() or not value.isascii():
            left_out.append(f"{name}: its value does not fit on one line")
        elif "/" in value:
            left_out.append(f"{name}={value}: a path on that machine")
        else:
            settings[name] = value
    return settings, left_out


def _quoted(value: str) -> str:
    """A value as a Containerfile reads it back: in double quotes, with nothing that it would expand."""
    return '"' + re.sub(r'(["\\$])', r"\\\1", value) + '"'


def _check(versions: Versions) -> str:
    """Python that fails where torch is not what the run had."""
    told = {"torch": versions.torch, "CUDA": versions.cuda}
    return (
        "import torch; have = {'torch': str(torch.__version__), 'CUDA': torch.version.cuda}; "
        f"want = {told!r}; assert have == want, (have, want)"
    )


def _command(run: Run) -> list[str]:
    """The command, with the image's Python where it named that of a virtual environment."""
    first, *rest = run.command or ("python",)
    return ["python" if re.fullmatch(r"python[\d.]*", Path(first).name) else first, *rest]


def _compiles(series: Series) -> bool:
    """Whether something was compiled, which needs a compiler."""
    compilers = {name for name, lever in all_levers().items() if lever.compiles}
    if any(one.name in compilers for one in series.run.levers):
        return True
    facts = series.folder.facts
    return facts is not None and (bool(facts.compiled) or any(root.compiled for root in facts.roots))


def _comment(text: str) -> str:
    """Text on one line of a comment."""
    return "".join(char if char.isprintable() else "?" for char in text.encode("utf-8", "replace").decode()[:300])


TARGET = Target("container", "", write)
