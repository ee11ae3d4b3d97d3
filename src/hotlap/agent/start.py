"""How the agent starts: called at the end of `import torch`. Never raises."""

import importlib
import os
import pkgutil
import sys

from hotlap.records.session import VARIABLE, Session

from . import clipping, hooks
from .compiled import hide_from_compiler
from .core import Agent, register_exit
from .guard import hook
from .probe import redraw

START, FORK = hook("agent_start"), hook("fork")
SEAMS = [importlib.import_module(f"{hooks.__name__}.{one.name}") for one in pkgutil.iter_modules(hooks.__path__)]


def start() -> None:
    """Install the agent in this process, once, if it runs under hotlap."""
    path = os.environ.get(VARIABLE)
    if not path or getattr(sys, "_hotlap_agent", None) is not None:
        return
    try:
        session = Session.read(path)
    except (OSError, ValueError, TypeError, KeyError):
        return
    sys._hotlap_agent = start_agent(session)  # type: ignore[attr-defined]


def start_agent(session: Session) -> Agent:
    """Make the agent and put in its hooks and levers."""
    agent = Agent(session)
    agent.guard.call(START, _install, agent)
    register_exit(agent)
    os.register_at_fork(after_in_child=lambda: _after_fork(agent))
    return agent


def _install(agent: Agent) -> None:
    if agent.session.seed is not None:
        redraw(agent.session.seed)  # before the script's own code runs; its own seeds override
    clipping.install(agent)
    for use in agent.session.levers:
        agent.seams.install_by_name(use.name, use.settings)
    for seam in SEAMS:
        seam.install(agent)
    agent.profile.install()
    agent.memory.install()
    agent.host.install()
    for name in list(sys.modules):
        if name.startswith(("hotlap.agent", "hotlap.records")):
            hide_from_compiler(name)


def _after_fork(agent: Agent) -> None:
    """A child forked from a loop (a loader's worker) is left alone; one forked before it may be a rank."""
    if agent.guard.on:
        agent.guard.call(FORK, agent.forked)
    agent.guard.on = agent.guard.on and not agent.begun
    agent.steps.unsampled = 0
    if agent.begun:
        agent.profile.forget()
    agent.pid = os.getpid()
    agent.thread = None
