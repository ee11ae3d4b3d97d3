"""`hotlap check`."""

import contextlib
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from hotlap.experiment.side import STEPS
from hotlap.guard import check as checking
from hotlap.guard.bisect import bisect, changed
from hotlap.guard.target import measure, target_of
from hotlap.guard.versions import Repository, at_commit, own_files, range_of, workplace
from hotlap.launch.command import find_program
from hotlap.launch.environment import environment
from hotlap.records.check import Bisected, Check, Target, Version
from hotlap.records.errors import Interrupted, RecordError, UsageError
from hotlap.records.files import write_atomic
from hotlap.report.check_comment import comment_of, junit_of
from hotlap.report.check_screen import check_screen
from hotlap.report.console import stderr_console, stdout_console
from hotlap.report.progress import Progress
from hotlap.runs.folder import RunFolder
from hotlap.tune.recipe import levers_of

from ._common import confirmed, free_name, print_json, seconds

FAILED, UNTOLD = 1, 2
"""Exit codes."""
INTERRUPTED = "interrupted"
MOST_SLOWDOWN = 10.0


def check(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[BASE..HEAD --] COMMAND...", help="What to compare, and the command.")
    ] = None,
    baseline: Annotated[
        str, typer.Option(help="In place of commits: an earlier run's folder, a recipe, or another command in quotes.")
    ] = "",
    slowdown: Annotated[
        float, typer.Option(help="What fails: 0.05 is 5% longer steps, or more memory.")
    ] = checking.LIMIT,
    budget: Annotated[str, typer.Option(help="Time it may take: 90s, 10m, 1h.")] = "10m",
    losses: Annotated[bool, typer.Option("--losses", help="Other losses than the baseline's fail too.")] = False,
    target: Annotated[
        str, typer.Option(metavar="METRIC>=X", help="Run the new version to its end; the last METRIC it prints counts.")
    ] = "",
    find: Annotated[
        bool, typer.Option("--bisect", help="Where the step time has changed, find the commit that brought it.")
    ] = False,
    comment: Annotated[Path | None, typer.Option(help="Write a comment for a pull request (Markdown).")] = None,
    junit: Annotated[Path | None, typer.Option(help="Write the result as JUnit XML.")] = None,
    steps: Annotated[int, typer.Option(min=12, help="Steady steps of each process before its turns, at most.")] = STEPS,
    out: Annotated[Path | None, typer.Option(help="Folder for the records; must not exist.")] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="With --baseline RUN: run the command that the run holds.")
    ] = False,
    json: Annotated[bool, typer.Option(help="Print check.json as the last line of stdout.")] = False,
) -> int:
    """Say whether a command has become slower: two versions of it, alive at once and taking turns.

    PASS (exit code 0) where a slowdown of 5% is ruled out, FAIL (1) where one was shown and shown again from fresh
    starts, INCONCLUSIVE (2) otherwise. Peak memory is judged by the same rule; so are waiting for data, the start and
    what is compiled, which can only fail. Commits are checked out beside your source tree, which is not touched; data
    and other files that git does not follow are linked. BASE.. compares with the source tree as it is.

    Examples:

      hotlap check main..HEAD -- python train.py --lr 3e-4

      hotlap check --bisect v1.2.. -- torchrun --nproc-per-node 2 train.py

      hotlap check --baseline "python train.py --workers 4" python train.py --workers 8

      hotlap check --baseline recipe.toml python train_patched.py
    """
    begun = time.monotonic()
    commits, command = _split(words or [], baseline)
    wanted = target_of(target) if target else None
    limit_s = seconds(budget)
    if not 0 < slowdown <= MOST_SLOWDOWN:
        raise UsageError(f"--slowdown {slowdown} is not between 0 and {MOST_SLOWDOWN:g}; 0.05 means 5%")
    if find and commits is None:
        raise UsageError("--bisect needs commits: hotlap check --bisect BASE..HEAD -- COMMAND...")
    folder = out or free_name(list(command), "check")
    made_in = environment(Path.cwd())
    with (
        contextlib.closing(Progress(stderr_console(), limit_s)) as progress,
        _versions(commits, baseline, command, yes) as (base, head, repository),
    ):
        progress.start(f"check  {folder}")
        request = checking.Request(base, head, slowdown, losses, limit_s, steps)
        find_program(head.command, Path(head.cwd))
        found = checking.Found()
        bisected: Bisected | None = None
        reached: Target | None = None
        try:
            with checking.bench_for(request, folder, progress) as bench:
                checking.compare(bench, request, found)
            if repository is not None and (same := own_files(repository, found.imported)):
                raise RecordError(
                    f"both versions imported {same[0]} from your own source tree, not from their commit (an editable "
                    "install?), so nothing was compared; install the package without -e"
                )
            if find and repository is not None and found.attempts and changed(found.attempts[-1]) is not None:
                bisected = bisect(repository, request, command, found.attempts[-1], folder, progress)
            if wanted is not None and checking.verdict(found, request)[0] != "fail":
                reached = measure(wanted, head, folder / "target", progress)
        except KeyboardInterrupt:
            found.notes.append(INTERRUPTED)
        result = checking.record(found, request, folder, made_in, time.monotonic() - begun, reached, bisected)
    if comment is not None:
        write_atomic(comment, comment_of(result).encode())
    if junit is not None:
        write_atomic(junit, junit_of(result))
    stdout_console().print(check_screen(result, folder)) if not json else print_json(result)
    return _code(result)


def _code(result: Check) -> int:
    if INTERRUPTED in result.notes:
        return Interrupted.exit_code
    return {"pass": 0, "fail": FAILED, "inconclusive": UNTOLD}[result.verdict]


def _split(words: list[str], baseline: str) -> tuple[str | None, tuple[str, ...]]:
    """The range of commits, and the command. Raises UsageError."""
    commits = None
    if "--" in words and not baseline:
        at = words.index("--")
        if at == 1:
            commits, words = words[0], words[2:]
    elif words[:1] == ["--"]:
        words = words[1:]
    if not words:
        raise UsageError("no command; hotlap check BASE..HEAD -- COMMAND..., or hotlap check --baseline X COMMAND...")
    if commits is None and not baseline:
        raise UsageError("nothing to compare with: give BASE..HEAD -- before the command, or --baseline")
    if commits is not None:
        range_of(commits)
    return commits, tuple(words)


@contextlib.contextmanager
def _versions(
    commits: str | None, baseline: str, command: tuple[str, ...], yes: bool
) -> Iterator[tuple[Version, Version, Repository | None]]:
    """Both versions, for as long as the block lasts."""
    here = str(Path.cwd())
    with contextlib.ExitStack() as stack:
        if commits is not None:
            first, second = range_of(commits)
            repository = Repository.of(Path.cwd())
            place = stack.enter_context(workplace())
            commit, changed = (repository.commit(second), False) if second else repository.now()
            base = stack.enter_context(at_commit(repository, first, repository.commit(first), command, place / "base"))
            head = stack.enter_context(
                at_commit(repository, second or "the source tree", commit, command, place / "head", changed)
            )
            yield base, head, repository
            return
        mine = Version(name="the command", command=command, cwd=here)
        path = Path(baseline)
        if path.is_dir():
            yield stack.enter_context(_of_run(path, yes)), mine, None
        elif path.suffix == ".toml":
            levers, _ = levers_of(path, environment(Path.cwd()))
            yield Version(name=f"with {path}", command=command, cwd=here, levers=tuple(levers)), mine, None
        else:
            other = tuple(shlex.split(baseline))
            find_program(other, Path.cwd())
            yield Version(name=baseline, command=other, cwd=here), mine, None


@contextlib.contextmanager
def _of_run(path: Path, yes: bool) -> Iterator[Version]:
    """The command of an earlier run, at its commit where git knows it. Raises UsageError, RecordError."""
    record = RunFolder(path).record
    confirmed((), record.command, path, record.cwd, yes)
    made_in = record.environment
    if record.levers:
        raise UsageError(
            f"{path} was run with levers; compare with their recipe: --baseline {record.recipe or 'RECIPE'}"
        )
    if made_in.git_commit is None:
        yield Version(name=str(path), command=record.command, cwd=record.cwd)
        return
    if made_in.git_dirty:
        raise UsageError(
            f"the source of {path} had changes that were not committed, so it can't be run again; give a commit: "
            f"hotlap check {made_in.git_commit[:10]}.. -- COMMAND..."
        )
    repository = Repository.of(Path(record.cwd))
    with workplace() as place, at_commit(
        repository, str(path), repository.commit(made_in.git_commit), record.command, place / "base"
    ) as found:  # fmt: skip
        yield found
