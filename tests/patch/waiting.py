"""Recorded runs that waited at lines of a script, written as records: nothing is run."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from hotlap.patch.findings import make
from hotlap.records.diagnosis import WAITS, Finding, Place
from hotlap.records.files import write_record
from hotlap.records.patch import Rewrite
from hotlap.trace.findings.sync import INSTEAD
from made_runs import diagnosis_of, folder_of

CAUSES = {
    "item": "`.item()`",
    "cpu": "`.cpu()` or `.to('cpu')`",
    "print": "`print(tensor)`",
    "bool": "`bool(tensor)`, as in `if` or `assert`",
    "mask": "boolean mask",
    "synchronize": "`torch.cuda.synchronize()`",
}


def finding_of(cause: str, where: Place) -> Finding:
    """What a trace of an H100 would have said."""
    if cause == "allocator":
        title = "memory is taken from the driver in every step"
        return Finding(id="allocator", bound="memory", share=0.25, title=title, where=where, instead="take it out")
    title = WAITS + CAUSES[cause]
    return Finding(
        id="sync", bound="sync", share=0.25, cost_ms=2.5, title=title, where=where, instead=INSTEAD[CAUSES[cause]]
    )


def marked(path: Path) -> Iterator[Finding]:
    """A finding for each line that ends in `# waits: CAUSE`, without the marks."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.search(r"# waits: (\w+)$", line):
            yield finding_of(found[1], Place(file=str(path), line=number, function=_function(tree, number)))


def _function(tree: ast.Module, line: int) -> str:
    """As Python's `co_qualname`."""
    name = ""
    body: list[ast.stmt] = tree.body
    while inner := [n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and _around(n, line)]:
        above = ".<locals>." if name and not name.endswith(".") else ""
        name += above + inner[0].name + ("." if isinstance(inner[0], ast.ClassDef) else "")
        body = inner[0].body
    return name or "<module>"


def _around(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or 0)


def recorded(folder: Path, script: Path, findings: list[Finding], *words: str) -> Path:
    """A run folder of a script."""
    command, started = ("python", script.name, *words), script.stat().st_mtime + 1
    folder_of(folder, command=command, cwd=str(script.parent), started=started)
    write_record(folder / "diagnosis.json", diagnosis_of(bound="sync", findings=tuple(findings)))
    return folder


class Rewritten:
    """A script whose marked lines were rewritten in memory."""

    def __init__(self, folder: Path, text: str) -> None:
        script = folder / "train.py"
        script.write_text(text, encoding="utf-8")
        made = make(recorded(folder / "run", script, list(marked(script))), (), folder)
        self.before, self.after = text, made.after.main.data.decode()
        self.findings: tuple[Rewrite, ...] = made.record.findings
        self.diff = made.diff

    @property
    def one(self) -> Rewrite:
        (found,) = self.findings
        return found

    @property
    def lines(self) -> tuple[list[str], list[str]]:
        """Lines that went and lines that came, without their blanks and marks."""
        old, new = (
            [re.sub(r" +# waits: \w+$", "", line).strip() for line in text.splitlines()]
            for text in (self.before, self.after)
        )
        return [line for line in old if line not in new], [line for line in new if line not in old]
