"""Starts the user's command as it is, with the agent's folder on PYTHONPATH and a session file in the environment."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from hotlap.records.errors import CommandNotFound, CommandNotRunnable, RecordError, UsageError
from hotlap.records.session import VARIABLE, Session
from hotlap.runs.plan import PACKAGE

INJECT: Final = PACKAGE / "launch" / "inject"
INJECT_SITE: Final = PACKAGE / "launch" / "inject_site"


def environment_for(session_file: Path, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The command's environment: the user's own, plus the way in. `extra` (from levers) overrides."""
    env = {**os.environ, **(extra or {})}
    ways = [str(INJECT)]
    if env.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "0":
        ways.insert(0, str(INJECT_SITE))
    if env.get("PYTHONPATH"):
        ways.append(env["PYTHONPATH"])
    env["PYTHONPATH"] = os.pathsep.join(ways)
    env[VARIABLE] = str(session_file)
    return env


def find_program(command: Sequence[str], cwd: Path) -> str:
    """The path of the command's program. Raises UsageError, CommandNotFound or CommandNotRunnable."""
    if not command or not command[0]:
        raise UsageError("no command given. Example: hotlap run python train.py --lr 3e-4")
    name = command[0]
    path = cwd / name
    relative = os.sep in name  # to `cwd`, which is not ours where a tune is resumed
    found = shutil.which(str(path) if relative else name)
    if found:
        return name if relative else found
    if path.is_dir():
        raise CommandNotRunnable(f"{name}: is a folder, not a program")
    if path.exists():
        hint = f"; did you mean `python {name}`?" if name.endswith(".py") else ""
        raise CommandNotRunnable(f"{name}: not executable{hint}")
    raise CommandNotFound(f"{name}: command not found")


def prepared(command: Sequence[str], session: Session, session_file: Path, cwd: Path) -> str:
    """The path of the command's program, with the session written for its agent. Raises CommandError, RecordError."""
    program = find_program(command, cwd)
    try:
        session.write(session_file)
    except OSError as error:
        raise RecordError(f"cannot write {session_file}: {error.strerror or error}") from error
    return program


def start(
    command: Sequence[str],
    session: Session,
    session_file: Path,
    extra_env: Mapping[str, str] | None = None,
    output: IO[bytes] | None = None,
    cwd: Path | None = None,
    streams: tuple[int, int] | None = None,
) -> "subprocess.Popen[bytes]":
    """Start the command. With `output` it gets a session of its own (so that it can be ended whole) and no stdin.

    streams: its stdout and stderr, where they are not ours. Raises CommandError, RecordError (the session file can't be
    written).
    """
    where = cwd or Path.cwd()
    program = prepared(command, session, session_file, where)
    own_session = output is not None
    try:
        return subprocess.Popen(
            list(command),
            executable=program,
            env=environment_for(session_file, extra_env),
            cwd=where,
            stdin=subprocess.DEVNULL if own_session else None,
            stdout=streams[0] if streams else output,
            stderr=streams[1] if streams else subprocess.STDOUT if own_session else None,
            start_new_session=own_session,
        )
    except OSError as error:
        raise CommandNotRunnable(f"{command[0]}: {error.strerror or error}") from error
