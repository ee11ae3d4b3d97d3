"""Called by torch at the end of `import torch`, in any process that hotlap started. Must never raise."""


def start():
    """Load the hotlap package from where the session says it is, without touching sys.path, and start the agent."""
    import os

    path = os.environ.get("HOTLAP_SESSION")
    if not path:
        return
    try:
        import importlib.util
        import json
        import sys

        if "hotlap" not in sys.modules:
            with open(path, encoding="utf-8") as file:
                package = json.load(file)["package"]
            spec = importlib.util.spec_from_file_location(
                "hotlap", os.path.join(package, "__init__.py"), submodule_search_locations=[package]
            )
            module = importlib.util.module_from_spec(spec)
            sys.modules["hotlap"] = module
            spec.loader.exec_module(module)
        from hotlap.agent.start import start as start_agent

        start_agent()
    except Exception as error:  # noqa: BLE001 - the agent's guard before the agent exists: torch must import
        _tell(path, error)


def _tell(path, error):
    """Leave word beside the session file; nothing more can be done here."""
    try:
        with open(path + ".error", "a", encoding="utf-8") as file:
            file.write(f"{type(error).__name__}: {error}\n")
    except OSError:
        pass
