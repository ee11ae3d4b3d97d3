"""Make docs/levers.md from the levers' own texts, and docs/schema/ from the records and their docstrings.

    python docs/generate.py > docs/levers.md
    python docs/generate.py schema

The second writes its files itself. `tests/test_docs.py` fails where a file is not what this makes.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

import msgspec

import hotlap.records
from hotlap.cli.memory import MemoryDocument
from hotlap.cli.run import RunDocument
from hotlap.diagnose.findings import all_findings
from hotlap.levers import all_levers
from hotlap.levers._base import Context, Lever, Settings
from hotlap.levers.compiler import _compile_cache
from hotlap.records import (
    advice,
    check,
    compare,
    fit,
    history,
    memory,
    mlperf,
    patch,
    peaks,
    profile,
    profilers,
    run,
    suite,
    telemetry,
    trace,
    tune,
)  # fmt: skip
from hotlap.records.diagnosis import Diagnosis, Spread
from hotlap.records.run import Environment, Facts, Gpu, LoaderFacts, OptimizerFacts, Phases, RootFacts
from hotlap.trace.findings import all_findings as trace_findings

HEAD = """\
# Levers

Written by `python docs/generate.py` from the levers' own texts; do not edit. A lever is one change that may help.
`hotlap tune` tries those that apply, on top of each other, and keeps those that measurably help and pass
[parity](parity.md).

Risk: `exact`, the same numbers, bit for bit or within what two runs of the bare command differ; `numeric`, rounding
changes; `semantic`, training changes (only with `--allow semantic`). Tolerance: how far the losses of a `numeric` lever
may lie from the bare command's without further proof. In the reasons, … stands for what was seen of the script or the
machine.

Stage: when in the [search](tune.md#what-it-tries-in-order) it comes. Switched: it can be put in and taken out in a live
process; others need a start of their own.
"""
EVIDENCE = """
## What each has won on public scripts

By tunes of scripts that nobody here wrote (`benchmarks/field.py`; `field.json` has scripts, cards and commits): each
with and without it beside the others, by switching or by turns, with its 95% interval. A lever stays that wins on two
of them, or that makes a command fit into memory; those not listed have not been measured since this rule. Twenty-six
that had won only in hotlap's own zoo, or nowhere, are gone, the last of them fp16-scaling and sdpa-backend; their causes are findings with advice.

| lever | interval above 1 | interval that reaches 1 |
|---|---|---|"""
FIELD = Path(__file__).parents[1] / "benchmarks" / "results" / "field.json"
ID = re.compile(r'\bid="([a-z0-9-]+)"')
REASON = re.compile(r"str \| None|Applies")
"""What a function returns that says why a lever does not apply."""
ROW = "| [{0}](#{0}) | {1} | {2} | {3} | {4} | {5} |"


def example(cuda: bool) -> Context:
    """A float32 image classifier that reads its batches in the training process, on 8 cores, with or without a GPU."""
    name = "cuda:0" if cuda else "cpu"
    phases = Phases(data=6.0, h2d=1.0 if cuda else None, forward=4.0, backward=7.0, optimizer=1.0, other=1.0)
    loader = LoaderFacts(
        dataset="Images", iterable=False, workers=0, batch_size=64, batches=9, training=True,
        batch_bytes=64 * 3 * 224 * 224 * 4, rows=2048, epoch_batches=32, default_collate=True, holds_tensors=True,
    )  # fmt: skip
    root = RootFacts(
        name="Net", parameters=10**7, modules=60, devices=(name,), dtypes=("float32",), conv=20, conv_input_4d=True
    )
    optimizer = OptimizerFacts(name="AdamW", builtin=True, tensors=60, devices=(name,), dtypes=("float32",))
    facts = Facts(
        pid=1, rank=0, world=1, argv=("train.py",), python="3.12", torch="2.13.0", device="cuda" if cuda else "cpu",
        capability=(9, 0) if cuda else None, threads=4, cpu_bf16=True, mode="train", forwards=9, backwards=9,
        optimizer_steps=9, loaders=(loader,), roots=(root,), optimizers=(optimizer,),
    )  # fmt: skip
    diagnosis = Diagnosis(
        mode="train", bound="input", step_ms=20.0, spread=Spread(p10=19.0, p50=20.0, p90=21.0), phases=phases,
        gpu_phases=phases if cuda else None, device=facts.device,
    )  # fmt: skip
    gpus = (Gpu(name="GPU", memory_gib=80.0),) if cuda else ()
    machine = Environment(hotlap="", python="", os="", cpu="", cores=8, memory_gib=64.0, gpus=gpus)
    return Context(diagnosis, facts, machine, {"loader-workers": {}})


def first_settings(lever: Lever) -> Settings:
    """The settings that it would try first in one of the examples."""
    return next(found[0] for cuda in (True, False) if (found := lever.variants(example(cuda))))


def refusals(function: FunctionType) -> Iterator[str]:
    """The reasons that it gives not to apply, or has from functions of the levers; values are shown as dots."""
    nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function))))
    for node in sorted(nodes, key=lambda node: getattr(node, "lineno", 0)):
        if isinstance(node, ast.Return) and node.value is not None:
            yield from _text(node.value)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Applies" and _is(node.args[0], False):
            yield from _text(node.args[1])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            called = function.__globals__.get(node.func.id)
            if isinstance(called, FunctionType) and REASON.search(str(called.__annotations__["return"])):
                yield from refusals(called)


def _is(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _text(node: ast.expr) -> Iterator[str]:
    """A string literal; None and expressions are passed over."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)


def helps(lever: Lever) -> list[str]:
    """Ids of the findings, of runs and of traces, that name it."""
    modules = (
        *(f"hotlap.diagnose.findings.{name}" for name in all_findings()),
        *(f"hotlap.trace.findings.{name}" for name in trace_findings()),
    )
    others = (name for name in modules if not name.endswith(f".{lever.name}"))  # a finding may be called as a lever is
    sources = (inspect.getsource(importlib.import_module(name)) for name in others)
    return sorted({found for text in sources if f'"{lever.name}"' in text for found in ID.findall(text)})


def section(lever: Lever) -> Iterator[str]:
    """What there is to say of a lever."""
    settings = first_settings(lever)
    module = inspect.getmodule(type(lever))
    yield f"## {lever.name}\n"
    for paragraph in inspect.cleandoc(f"{module.__doc__ if module else ''}").split("\n\n"):
        yield textwrap.fill(" ".join(paragraph.split()), 118) + "\n"
    yield f"* risk: `{lever.risk}`" + (f", tolerance {lever.tolerance:.1%}" if lever.tolerance else "")
    if lever.redraws:
        yield "* random transforms of the data may draw other numbers; the samples and their order stay"
    if named := helps(lever):
        yield f"* named by the findings: {', '.join(named)}"
    if excluded := [name for name, other in all_levers().items() if lever.excluding(other)]:
        yield f"* not together with: {', '.join(excluded)}"
    if settings:
        yield f"* settings, for example: {', '.join(f'`{key} = {value!r}`' for key, value in settings.items())}"
    if lever.saves_memory:
        yield "* lowers peak memory, mostly for time: for `--objective memory` and commands that run out of memory"
    if lever.resizes_step:
        yield "* a step holds another number of samples, so what counts is samples a second"
    for name, value in lever.environment(settings).items():
        shown = "~/.cache/hotlap/inductor" if value == _compile_cache.folder() else value
        yield f"* sets before the command starts: `{name}={shown}`"
    if reasons := list(dict.fromkeys(refusals(type(lever).applies))):
        yield "* not tried where:"
        yield from (f"  - {reason}" for reason in reasons)
    yield "\nIn your own source:\n"
    yield f"```python\n{lever.source(settings)}\n```\n"


def figure(worth: dict[str, Any] | None) -> tuple[str, float]:
    """A lever's own figure in a tune, and the low end of its interval; "" without an interval."""
    interval = (worth or {}).get("interval")
    if not worth or not interval:
        return "", 0.0
    return f"{worth['ratio']:.2f}× ({interval['low']:.2f}–{interval['high']:.2f})", interval["low"]


def evidence() -> Iterator[str]:
    """What each lever was worth beside the others on public scripts: rows of a table, of those that were measured."""
    rows = json.loads(FIELD.read_text(encoding="utf-8"))["rows"]
    won: dict[str, list[str]] = {}
    lost: dict[str, list[str]] = {}
    for row in rows:
        tune = row.get("tune") or {}
        known = [(kept["lever"], kept["worth"]) for kept in tune.get("kept", ())]
        alone = tune.get("unproved") or {}
        if len(alone.get("levers", ())) == 1 and not alone.get("over"):
            known.append((alone["levers"][0]["name"], alone))
        dropped = tune.get("dropped", {}).items()
        for name, worth in known + [(name, one) for name, one in dropped if isinstance(one, dict)]:
            told, low = figure(worth)
            if told and name in all_levers():
                (won if low > 1 else lost).setdefault(name, []).append(f"{row['script']} {told}")
    for name in all_levers():
        if name in won or name in lost:
            yield f"| [{name}](#{name}) | {'; '.join(won.get(name, ('-',)))} | {'; '.join(lost.get(name, ('-',)))} |"


def page() -> str:
    """The whole file."""
    levers = all_levers().values()
    lines = [HEAD, "| lever | risk | tolerance | stage | switched | what it does |", "|---|---|---|---|---|---|"]
    for lever in levers:
        tolerance = f"{lever.tolerance:.1%}" if lever.tolerance else "-"
        switched = "yes" if lever.switchable else "-"
        lines.append(ROW.format(lever.name, lever.risk, tolerance, lever.stage, switched, lever.meaning))
    lines += [EVIDENCE, *evidence(), ""]
    for lever in levers:
        lines += section(lever)
    return "\n".join(lines).rstrip() + "\n"


DOCUMENTS: dict[str, tuple[type[msgspec.Struct], str]] = {
    "run": (run.Run, "run.json"),
    "step": (run.Step, "rank-K/steps.jsonl, a line"),
    "facts": (run.Facts, "rank-K/facts.json"),
    "problem": (run.Problem, "rank-K/problems.jsonl, a line"),
    "lever-line": (tune.LeverLine, "rank-K/levers.jsonl, a line"),
    "memory": (memory.MemoryWindow, "rank-K/memory-WHEN.json"),
    "memory-steps": (memory.MemorySeries, "rank-K/memory-steps.json"),
    "memory-document": (MemoryDocument, "hotlap memory --json"),
    "profile": (profile.Profile, "rank-K/profile.json"),
    "capture": (profilers.Capture, "rank-K/capture.json"),
    "lines": (profile.Lines, "rank-K/lines.json"),
    "samples": (profile.Samples, "rank-K/samples.json"),
    "long-samples": (profile.LongSamples, "rank-K/long.json"),
    "worker-samples": (profile.WorkerSamples, "workers-PID.jsonl, a line"),
    "telemetry": (telemetry.TelemetrySample, "telemetry.jsonl, a line"),
    "diagnosis": (Diagnosis, "diagnosis.json"),
    "run-document": (RunDocument, "hotlap run --json, hotlap show --json"),
    "tune": (tune.Tune, "tune.json"),
    "trial": (tune.Trial, "trials.jsonl, a line"),
    "turn": (tune.Turn, "turns.jsonl, a line"),
    "check": (check.Check, "check.json, hotlap check --json"),
    "fit": (fit.Fit, "fit.json, hotlap fit --json"),
    "bench": (suite.Suite, "bench.json, hotlap bench --json"),
    "mlperf-settings": (mlperf.MlperfSettings, "mlperf.toml"),
    "printed-line": (mlperf.PrintedLine, "printed.jsonl, a line"),
    "suite-command": (suite.SuiteCommand, "a suite file, a table"),
    "recipe": (tune.Recipe, "recipe.toml"),
    "patch": (patch.Patch, "patch.json"),
    "history": (history.HistoryRuns, "hotlap history --json"),
    "history-changes": (history.HistoryReport, "hotlap history changes --json"),
    "advice": (advice.Advice, "hotlap advise --json"),
    "trace": (trace.TraceReport, "hotlap trace --json"),
    "trace-diff": (trace.TraceDiff, "hotlap diff --json, of traces"),
    "run-diff": (compare.RunDiff, "hotlap diff --json, of runs without traces"),
    "peaks": (peaks.Peaks, "hotlap calibrate --json"),
}
"""What is published, by the name of its schema: its record, and where it stands."""
SCHEMAS = Path(__file__).parent / "schema"
DIALECT = "https://json-schema.org/draft/2020-12/schema"
WIDTH = 118


def described(kind: type[msgspec.Struct]) -> tuple[str, dict[str, str]]:
    """What a docstring says of the record, and of each field.

    `name: text` and `name, name: text` are of fields, up to the next or the end of the paragraph. They begin a
    paragraph, or follow a full stop, comma or semicolon. All else is of the record.
    """
    name = f"(?:{'|'.join(map(re.escape, kind.__struct_fields__))})"
    mark = re.compile(rf"(?:^|(?<=[.,;] ))({name}(?:, {name})*): ")
    rest, fields = [], {}
    for paragraph in inspect.cleandoc(kind.__doc__ or "").replace("None", "null").split("\n\n"):
        before, *parts = mark.split(" ".join(paragraph.split()))
        rest.append(before)
        for names, text in zip(parts[::2], parts[1::2], strict=True):
            fields.update(dict.fromkeys(names.split(", "), text.strip(" .,;")))
    return " ".join(filter(None, map(str.strip, rest))), fields


def schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a document."""
    kind, where = DOCUMENTS[name]
    made = msgspec.json.schema(kind)
    kinds = {one.__name__: one for one in records()} | {kind.__name__: kind}
    for title, definition in made["$defs"].items():
        told, fields = described(kinds[title])
        definition["description"] = told
        for field, property_ in definition.get("properties", {}).items():  # none of what is an array
            if field in fields:
                definition["properties"][field] = {"description": fields[field], **property_}
    top = made["$defs"].pop(kind.__name__)
    rest = {"$defs": dict(sorted(made["$defs"].items()))} if made["$defs"] else {}
    return {"$schema": DIALECT, **top, "title": where, **rest}


def records() -> Iterator[type[msgspec.Struct]]:
    """Every record of hotlap's."""
    for found in pkgutil.iter_modules(hotlap.records.__path__):
        for kind in vars(importlib.import_module(f"hotlap.records.{found.name}")).values():
            if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
                yield kind


def laid_out(value: Any, indent: str = "", before: int = 0) -> str:
    """JSON in which what fits on a line stands on one. before: characters in front of it there."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent) + before + len(flat) < WIDTH or not value or not isinstance(value, dict | list):
        return flat
    deeper = indent + "  "
    if isinstance(value, list):
        lines = [laid_out(item, deeper) for item in value]
    else:
        keys = [f"{json.dumps(key)}: " for key in value]
        lines = [key + laid_out(item, deeper, len(key)) for key, item in zip(keys, value.values(), strict=True)]
    opening, closing = "[]" if isinstance(value, list) else "{}"
    return f"{opening}\n" + ",\n".join(deeper + line for line in lines) + f"\n{indent}{closing}"


def schema_files() -> dict[str, str]:
    """The files of docs/schema/, by name."""
    return {f"{name}.json": laid_out(schema(name)) + "\n" for name in DOCUMENTS}


if __name__ == "__main__":
    if sys.argv[1:] == ["schema"]:
        SCHEMAS.mkdir(exist_ok=True)
        for file, text in schema_files().items():
            (SCHEMAS / file).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(page())
