"""`pytest --hotlap main`: whether a function or a training step has become slower, judged as `hotlap check` judges.

    def test_step_is_no_slower(hotlap_loop):
        model, batch = ...
        hotlap_loop(lambda: train_step(model, batch))

Without `--hotlap` the function is called twice, so that the test still tests something. With it `hotlap check` runs
this one test at the commit and in the source tree as it is, alive at once and taking turns; a call is a step.

pytest imports this file in every session, so it imports the standard library and pytest alone.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any, Final

import pytest

CALLS: Final = 2
ENTRY: Final = "hotlap"
SIDE: Final = "--hotlap-side"
FAIL, UNTOLD = 1, 2
"""Exit codes of `hotlap check`."""
MOST_SHOWN: Final = 4000
Loop = Callable[[Callable[[], object]], None]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of their own group."""
    group = parser.getgroup("hotlap")
    group.addoption("--hotlap", metavar="BASE", help="Compare tests that use hotlap_loop with a commit, or BASE..HEAD.")
    group.addoption("--hotlap-slowdown", default="0.05", help="What fails: 0.05 is 5%% slower.")
    group.addoption("--hotlap-budget", default="5m", help="Time for each test: 90s, 2m.")
    group.addoption("--hotlap-strict", action="store_true", help="What was not told fails, else it is skipped.")
    group.addoption(SIDE, action="store_true", help="hotlap's own: this process is one side of a check.")


@pytest.fixture
def hotlap_loop(request: pytest.FixtureRequest, record_property: Callable[[str, object], None]) -> Loop:
    """Call a function again and again, and fail where it has become slower since the commit that `--hotlap` names."""

    def loop(function: Callable[[], object]) -> None:
        config = request.config
        if config.getoption(SIDE):
            _for_ever(function)
        if not config.getoption("--hotlap"):
            for _ in range(CALLS):
                function()
            return
        code, why, said = _checked(config, request.node.nodeid)
        record_property("hotlap", why)
        if code == UNTOLD and not config.getoption("--hotlap-strict"):
            pytest.skip(f"hotlap: {why}")
        if code:
            pytest.fail(f"hotlap: {why}\n{said}", pytrace=False)

    return loop


def _for_ever(function: Callable[[], object]) -> None:
    """One side: makes calls until hotlap ends it. A step of an optimizer that changes nothing ends each, so that a
    function without any is a step too; beside the function's own it is one of the cycle."""
    import torch

    mark = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    while True:
        function()
        mark.step()


def _checked(config: pytest.Config, test: str) -> tuple[int, str, str]:
    """The exit code of a check of one test, why, and what else it said."""
    base: str = config.getoption("--hotlap")
    own = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-o",
        "addopts=",
        "-p",
        "no:cacheprovider",
        *_plugin(config),
        SIDE,
        test,
    ]
    options = ["--slowdown", config.getoption("--hotlap-slowdown"), "--budget", config.getoption("--hotlap-budget")]
    words = [
        sys.executable,
        "-m",
        "hotlap",
        "check",
        "--json",
        *options,
        base if ".." in base else f"{base}..",
        "--",
        *own,
    ]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        words, cwd=config.rootpath, env=environment, capture_output=True, text=True, errors="replace", check=False
    )
    try:
        document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return done.returncode, str(document["why"]), _cause(document)
    except (IndexError, ValueError, KeyError, TypeError):
        return done.returncode or FAIL, "the check came to nothing", done.stderr[-MOST_SHOWN:]


def _plugin(config: pytest.Config) -> list[str]:
    """How this plugin gets into another pytest, where it is not found by its entry point."""
    name = config.pluginmanager.get_name(sys.modules[__name__])
    return [] if name in {None, ENTRY} else ["-p", str(name)]


def _cause(document: dict[str, Any]) -> str:
    """The findings of a failure, a line each."""
    found = (document.get("cause") or {}).get("findings", [])
    return "\n".join(f"{one.get('title')} ({(one.get('where') or {}).get('file', '')})" for one in found)
