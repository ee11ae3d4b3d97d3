"""The machine, the command, and what it ran with."""

from collections.abc import Iterator
from typing import Any, Final

from ...records.page import Page
from ...records.run import Facts
from ..console import minutes, quote
from ..run_screen import ending_text
from ..tune_screen import environment_parts, settings_text

TITLE: Final = "Environment"
Row = tuple[str, str]


def data(page: Page) -> dict[str, Any] | None:
    """Rows of a label and a text."""
    rows = [*_command(page), *_machine(page), *(_facts(page.facts) if page.facts else ())]
    rows += [
        ("trace", f"{rank.source} · {rank.device_name}") for rank in (page.traces.ranks if page.traces else ())[:1]
    ]
    return {"rows": [(label, text) for label, text in rows if text]}


def _command(page: Page) -> Iterator[Row]:
    record = page.run or page.tune
    yield "command", " ".join(quote(word) for word in record.command) if record else ""
    if page.run is not None:
        yield "folder of the command", page.run.cwd
        yield "ended", ending_text(page.run) or f"by itself after {minutes(page.run.wall_s or 0.0)}"
        yield "levers", ", ".join(f"{one.name}{settings_text(one.settings)}" for one in page.run.levers)
        yield "levers not in", "; ".join(f"{one.lever.name}: {one.why}" for one in page.run.left_out)
        yield "recipe", page.run.recipe or ""
    yield "records", page.folder
    yield "page made", f"{page.made} by hotlap {page.hotlap}"


def _machine(page: Page) -> Iterator[Row]:
    if record := page.run or page.tune:
        yield "machine", " · ".join(filter(None, environment_parts(record.environment, record.versions)))
        yield "system", record.environment.os
        yield "variables", " ".join(f"{name}={value}" for name, value in record.environment.variables.items())


def _facts(facts: Facts) -> Iterator[Row]:
    cuda = f", CUDA {facts.cuda}" if facts.cuda else ""
    yield "torch", f"{facts.torch}{cuda}"
    yield "device", facts.device_name or facts.device
    yield "models", ", ".join(f"{one.name} ({one.parameters:,} parameters)" for one in facts.roots)
    yield "loaders", ", ".join(f"{one.dataset}: {one.workers} workers, batch {one.batch_size}" for one in facts.loaders)
    yield "optimizers", ", ".join(one.name for one in facts.optimizers)
