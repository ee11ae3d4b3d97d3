"""What every lever must keep to, whatever it does. A new lever is tested here as soon as its file exists."""

import dataclasses
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
from contexts import CPU_ENVIRONMENT, GPU_ENVIRONMENT, context, empty
from msgspec.structs import replace

import hotlap.levers
from hotlap.diagnose.findings import all_findings
from hotlap.levers import all_levers, answering
from hotlap.levers._base import Cause, Context, Lever, Settings
from hotlap.levers.host.fewer_syncs import SELDOM
from hotlap.tune.recipe import clashing

FOLDER = Path(hotlap.levers.__file__).parent
MODULES = sorted(f"{path.parent.name}.{path.stem}" for path in FOLDER.glob("*/*.py") if not path.name.startswith("_"))
LEVERS = sorted(all_levers().values(), key=lambda lever: lever.name)
CONTEXTS = {
    "cpu": context(False),
    "cuda": context(True),
    "cuda, launch-bound": context(True, bound="launch"),
    "cuda, with bf16": context(True, {"bf16-autocast": {}, "tf32": {}}),
    "cpu, nothing seen": empty(False),
    "cuda, nothing seen": empty(True),
    "cuda, old": context(True, capability=(6, 1)),
    "cpu, many ranks": context(False, world=64),
    "cuda, capability unknown": context(True, capability=None, device_name=None),
}
JUNK: list[dict[str, Any]] = [
    {"nonsense": 1},
    {"": ""},
    {"mode": ["default"], "workers": "many", "threads": True, "leaves": {"a": 1}},
    {"mode": "default; import os", "workers": -1, "threads": 0, "leaves": [-1]},
    {"workers": 1e300, "threads": float("nan"), "leaves": [True, None], "mode": None},
    {"workers": 10**30, "prefetch": 10**30, "pin_memory": "yes", "persistent": 1, "threads": 10**30},
]
each_lever = pytest.mark.parametrize("lever", LEVERS, ids=lambda lever: lever.name)


def test_every_module_is_a_lever_of_its_name() -> None:
    assert MODULES, "no levers were found"
    for module in MODULES:
        lever = importlib.import_module(f"hotlap.levers.{module}").LEVER
        assert isinstance(lever, Lever)
        assert lever.name == module.partition(".")[2].replace("_", "-")
        assert all_levers()[lever.name] is lever
    assert len(all_levers()) == len(MODULES)
    assert list(all_levers()) == sorted(all_levers())


@each_lever
def test_identity(lever: Lever) -> None:
    assert lever.meaning and "\n" not in lever.meaning and len(lever.meaning) <= 120
    assert not lever.meaning.endswith(".") and lever.meaning == lever.meaning.strip()
    assert lever.risk in {"exact", "numeric", "semantic"}
    assert 0 <= lever.tolerance <= 0.05
    assert (lever.tolerance > 0) == (lever.risk == "numeric"), "a tolerance is what numeric levers are judged by"
    assert lever.redraws in {True, False}


@each_lever
def test_excludes_real_levers_and_not_itself(lever: Lever) -> None:
    assert set(lever.excludes) <= set(all_levers()) - {lever.name}


@each_lever
def test_applies_gives_its_reason(lever: Lever) -> None:
    for name, where in CONTEXTS.items():
        applies = lever.applies(where)
        assert isinstance(applies.yes, bool), name
        assert applies.why and "\n" not in applies.why and "None" not in applies.why, name


@each_lever
def test_nothing_applies_where_nothing_was_seen(lever: Lever) -> None:
    """Process-wide settings of the CPU's threads are the only thing that can be changed blindly."""
    for where in (empty(False), empty(True)):
        assert lever.applies(where).yes is False or lever.name == "cpu-threads"


@each_lever
def test_variants_are_settings_that_pass_its_own_check(lever: Lever) -> None:
    for name, where in CONTEXTS.items():
        print(name)  # shown where it fails
        check_variants(lever, where)


def check_variants(lever: Lever, where: Context) -> None:
    variants = lever.variants(where)
    if lever.applies(where).yes:
        assert variants, "it applies, so there is something to try"
    for settings in variants:
        assert lever.check(settings) is None
        assert json.loads(json.dumps(settings)) == settings, "settings go through JSON and TOML"
        assert all(value is not None for value in settings.values()), "TOML has no null"
        assert isinstance(lever.source(settings), str) and lever.source(settings).strip()
        same = lever.for_parity(settings)
        assert same is None or lever.check(same) is None
        for name, value in lever.environment(settings).items():
            assert isinstance(name, str) and isinstance(value, str) and name and "=" not in name
    assert len({json.dumps(settings, sort_keys=True) for settings in variants}) == len(variants)


@each_lever
def test_share_is_a_share(lever: Lever) -> None:
    for name, where in CONTEXTS.items():
        assert 0 <= lever.share(where) <= 1, name


@each_lever
def test_check_refuses_junk(lever: Lever) -> None:
    for junk in JUNK:
        why = lever.check(junk)
        assert isinstance(why, str) and why, junk


@each_lever
def test_check_refuses_a_known_setting_of_another_type(lever: Lever) -> None:
    for settings in [*lever.variants(context(False)), *lever.variants(context(True))]:
        for name in settings:
            for junk in (None, "", -1, 3.5, [], {}, [[]], "\x00", float("nan")):
                if junk != settings[name] and not (name == "leaves" and junk == []):
                    assert lever.check({**settings, name: junk}), f"{name}={junk!r} passes"
            missing = {key: value for key, value in settings.items() if key != name}
            assert lever.check(missing), f"{name} may be missing"


@each_lever
def test_fits_says_why_not(lever: Lever) -> None:
    for cuda, machine in ((False, CPU_ENVIRONMENT), (True, GPU_ENVIRONMENT), (True, CPU_ENVIRONMENT)):
        for settings in lever.variants(context(cuda)):
            why = lever.fits(machine, settings)
            assert why is None or (isinstance(why, str) and why)


def test_levers_that_need_a_gpu_say_so() -> None:
    for name in ("tf32", "fewer-syncs"):
        lever = all_levers()[name]
        assert "GPU" in (lever.fits(CPU_ENVIRONMENT, lever.variants(context(True))[0]) or "")
        assert lever.fits(GPU_ENVIRONMENT, lever.variants(context(True))[0]) is None
        assert not lever.applies(context(False)).yes


def with_levers(found: Context, **active: Settings) -> Context:
    return Context(found.diagnosis, found.facts, found.environment, active)


def test_a_module_imports_the_standard_library_only() -> None:
    """In a fresh interpreter: what is imported in the user's process costs nothing and pulls in nothing."""
    code = (
        "import importlib, sys, json\n"
        f"for name in {MODULES!r}: importlib.import_module('hotlap.levers.' + name)\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=FOLDER.parents[1], capture_output=True, text=True, check=True
    )
    assert set(json.loads(done.stdout)) <= {"hotlap", "__main__"}
    loaded = "import sys, hotlap.levers.compiler.compile; print([m for m in sys.modules if 'hotlap' in m])"
    inside = subprocess.run(
        [sys.executable, "-S", "-c", loaded],
        cwd=FOLDER.parents[1], capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "hotlap.records" not in inside.stdout and "hotlap.agent" not in inside.stdout


def test_findings_name_real_levers() -> None:
    """The family beside this one: `diagnose/findings` points at levers by name."""
    named = set()
    for module in all_findings():
        found = importlib.import_module(f"hotlap.diagnose.findings.{module}")
        named |= set(getattr(found, "LEVERS", ()))
    assert named <= set(all_levers())


def test_where_the_host_runs_ahead_no_launch_is_waited_for() -> None:
    lever, where = all_levers()["graph-training"], context(True)
    assert lever.share(where) == pytest.approx(0.5 * 0.85 * where.share_of("forward", "backward"))
    ahead = replace(where.diagnosis, clock="device")
    assert lever.share(dataclasses.replace(where, diagnosis=ahead)) == 0.0


def test_batches_are_made_beside_what_the_device_computes_and_no_more_of_them() -> None:
    """Of a step that waited for batches in 92% of it, waiting for the loss was said to win 12 times."""
    lever, where = all_levers()["fewer-syncs"], context(True)
    phases = replace(where.diagnosis.phases, data=9.0, h2d=0.0, forward=0.3, backward=0.3, optimizer=0.2, other=0.2)
    waiting = replace(where.diagnosis, phases=phases, gpu_phases=phases)
    assert lever.share(dataclasses.replace(where, diagnosis=waiting)) == pytest.approx(0.1 * SELDOM)


ORDINARY = {"allocator", "compile", "tf32"}
"""Names of levers that are words as well: a finding's id, a function of torch, a type of number."""


def test_no_lever_is_named_outside_of_its_own_floor() -> None:
    """Findings ask for what answers a cause, the search for what a lever declares: so a lever is one file."""
    names = "|".join(name for name in all_levers() if name not in ORDINARY)
    named = re.compile(f"(?<!answering\\()[\"']({names})[\"']")  # which is asked for a cause
    files = [path for path in FOLDER.parent.rglob("*.py") if FOLDER not in path.parents]
    assert len(files) > 100
    assert {path.name: found for path in files if (found := named.findall(path.read_text("utf-8")))} == {}


def test_what_needs_an_eager_forward_is_not_used_with_levers_that_compile() -> None:
    levers = all_levers()
    compiling = {name for name, lever in levers.items() if lever.compiles}
    assert {*clashing(levers, levers["activation-offload"], levers)} == {*compiling, "graph-training"}
    assert all("activation-offload" in clashing(levers, levers[name], levers) for name in compiling)


@pytest.mark.parametrize("beside", ["compile", "compile-blocks", "graph-training"])
def test_a_cast_is_free_beside_what_compiles_or_replays_the_forward(beside: str) -> None:
    lever, where = all_levers()["bf16-autocast"], context(True)
    where = dataclasses.replace(where, diagnosis=replace(where.diagnosis, bound="launch"))
    assert lever.share(with_levers(where, **{beside: {}})) > lever.share(with_levers(where, tf32={})) * 5


@pytest.mark.parametrize(
    ("said", "names"),
    [
        ("RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly", {"loader-workers"}),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Aborted. ", {"loader-workers"}),
        ("ConnectionResetError: [Errno 104] Connection reset by peer", {"loader-workers"}),
        ("RuntimeError: Function CompiledFunctionBackward returned an invalid gradient at index 16 - got [64] but "
         "expected shape compatible with [1, 64, 1, 1]", {"channels-last", "compile", "compile-blocks"}),
        ("RuntimeError: view size is not compatible with input tensor's size and stride", {"channels-last"}),
        ("torch._dynamo.exc.Unsupported: call_method", {"compile", "compile-blocks"}),
        ("torch._inductor.exc.InductorError: CppCompileError: C++ compile error", {"compile", "compile-blocks"}),
        ("RuntimeError: expected mat1 and mat2 to have the same dtype, but got: float != c10::BFloat16",
         {"bf16-autocast"}),
        ("RuntimeError: CUDA error: operation not permitted when stream is capturing",
         {"graph-training", "graph-optimizer"}),
        ("RuntimeError: `fused=True` requires all the params to be floating point Tensors", {"fused-optimizer"}),
        ("torch._inductor.exc.InductorError: OutOfResources: out of resource: shared memory, Required: 229456",
         {"compile", "compile-blocks"}),
        ("RuntimeError: unable to open shared memory object </torch_7_1> in read-write mode", {"loader-workers"}),
        ("ConnectionRefusedError: [Errno 111] Connection refused", set()),
        ("ValueError: Expected input batch_size (3) to match target batch_size (4).", set()),
        ("KeyError: 'labels'", set()),
    ],
)  # fmt: skip
def test_which_levers_an_error_points_at(said: str, names: set[str]) -> None:
    """Those of faults that were seen on public scripts, and others of their kinds."""
    assert {lever.name for lever in LEVERS if any(sign in said for sign in lever.signs)} == names


def test_each_place_among_the_levers_of_a_cause_is_taken_once() -> None:
    for cause in get_args(Cause):
        places = [lever.causes[cause] for lever in LEVERS if cause in lever.causes]
        assert sorted(places) == list(range(len(places))) and places, cause
    assert answering("launches")[0] == "compile" and answering("attention", "launches")[0] == "attention"
