"""The fallback where TORCH_DEVICE_BACKEND_AUTOLOAD=0 switches torch's entry points off.

Runs the user's own sitecustomize first, then waits for torch to be executed (not merely looked up).
"""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _chain():
    """Run the sitecustomize that this one shadows."""
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


class _Loader(importlib.abc.Loader):
    """Runs torch's own loader, then the agent's entry."""

    def __init__(self, loader):
        self.loader = loader

    def create_module(self, spec):
        return self.loader.create_module(spec)

    def exec_module(self, module):
        self.loader.exec_module(module)
        from _hotlap_entry import start

        start()

    def __getattr__(self, name):
        return getattr(self.loader, name)


class _Finder(importlib.abc.MetaPathFinder):
    """Hands out torch's spec with a loader that tells us when it has run; every look-up gets one."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


_chain()
if os.environ.get("HOTLAP_SESSION"):
    sys.meta_path.insert(0, _Finder())
