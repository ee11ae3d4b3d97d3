"""What stands in the way of the script's own torch.compile: seen in real compilations, told with its line."""

import json
from pathlib import Path

import msgspec
import pytest

from agent.harness import Runner
from hotlap.agent.compiled import _first_lines
from hotlap.diagnose.compiled import with_compiled
from hotlap.records.diagnosis import Diagnosis, Finding, Place
from hotlap.records.run import CompiledFunction, Facts, RootFacts
from hotlap.report.run_screen import finding_head
from made_runs import diagnosis_of

SCRIPT = """
import sys, json, torch
from torch import nn

class Told(nn.Module):
    def forward(self, x):
        for _ in range(2):
            x = x + 1
            print("x", file=sys.stderr)  # in a loop
        return x

def helper(x):
    for _ in range(2):
        x = x + 1
        helped(x)
    return x

class Calls(nn.Module):
    def forward(self, x):
        return helper(x) * 2

class Split(nn.Module):
    def forward(self, x):
        x = x + 1
        print("x", file=sys.stderr)  # one break
        return x * 2

class Grows(nn.Module):
    def forward(self, x):
        return x.sum() * 2

class Most(nn.Module):
    def forward(self, x):
        return x.sum() * 3

torch._dynamo.config.recompile_limit = 100
sys.path.insert(0, sys.argv[1])
from helps import helped
for model, most in ((Told(), 1), (Split(), 1), (Grows(), 6), (Calls(), 1)):
    compiled = torch.compile(model, backend="eager", dynamic=False)
    for n in range(most):
        compiled(torch.ones(n + 2))
with torch._dynamo.config.patch(recompile_limit=5):
    compiled = torch.compile(Most(), backend="eager", dynamic=False)
    for n in range(7):
        compiled(torch.ones(n + 2))
from hotlap.agent.compiled import compiled_functions
print(json.dumps(compiled_functions()))
"""


HELPS = """
import sys

def helped(x):
    print("x", file=sys.stderr)  # in another file
"""


@pytest.fixture(scope="module")
def functions(runner: Runner, tmp_path_factory: pytest.TempPathFactory) -> list[CompiledFunction]:
    script = tmp_path_factory.mktemp("compiled") / "script.py"
    script.write_text(SCRIPT)
    (script.parent / "helps.py").write_text(HELPS)
    ran = runner.bare(str(script), str(script.parent))
    assert ran.code == 0, ran.output
    return msgspec.convert(json.loads(ran.output.splitlines()[-1]), list[CompiledFunction])


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(SCRIPT.splitlines(), 1) if text in line)


def verdict(*findings: Finding) -> Diagnosis:
    return diagnosis_of(bound="launch", step_ms=10.0, findings=findings)


def facts(*functions: CompiledFunction) -> Facts:
    return Facts(pid=1, rank=0, world=1, argv=(), python="3", torch="2", compiled=functions)


AUTOCAST = """
import json, torch
from torch import nn
from hotlap.agent.compiled import compiled_functions
from hotlap.levers.precision.bf16_autocast import autocasting

model = nn.Linear(2, 2)
forward = torch.compile(autocasting(model, lambda x: model(x)), backend="eager", dynamic=False)
for n in (1, 2, 3):
    forward(torch.ones(n, 2))
root = {"file": "m.py", "line": 7, "function": "Net.forward"}
print(json.dumps([compiled_functions(), compiled_functions(root)]))
"""


def test_what_a_lever_puts_around_the_forward_counts_as_the_forward(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(AUTOCAST)
    ran = runner.bare(str(tmp_path / "script.py"))
    assert ran.code == 0, ran.output
    without, (row,) = json.loads(ran.output.splitlines()[-1])
    assert without == []
    told = msgspec.convert(row, CompiledFunction)
    assert (told.file, told.line, told.function, told.graphs, told.recompiles) == ("m.py", 7, "forward", 3, 2)


LAUNCH = Finding(id="launch", bound="launch", share=0.7, cost_ms=7.0, where=Place(file="m.py", line=3), evidence="idle")


def test_a_break_in_a_loop_leaves_the_function_to_eager_mode(functions: list[CompiledFunction]) -> None:
    told = next(one for one in functions if one.failed)
    assert not told.failed_in
    assert (told.failed_at, told.graphs) == (line_of("# in a loop"), 0)
    found = with_compiled(verdict(LAUNCH), facts(told)).findings[0]
    assert (found.id, found.bound, found.share, found.cost_ms) == ("graph-break", "launch", 0.7, 7.0)
    assert found.where is not None
    assert found.where.line == line_of("# in a loop")


def test_what_is_called_may_lie_in_another_file(functions: list[CompiledFunction]) -> None:
    told = next(one for one in functions if one.failed_in)
    found = with_compiled(verdict(), facts(told)).findings[0]
    assert told.file.endswith("script.py") and told.failed_in.endswith("helps.py")
    assert found.where == Place(file=told.failed_in, line=5)
    installed = msgspec.structs.replace(told, failed_in="/v/site-packages/x/y.py")
    assert with_compiled(verdict(), facts(installed)).findings[0].where == Place(
        file=told.file, line=told.line, function=told.function
    )


def test_a_break_splits_a_function(functions: list[CompiledFunction]) -> None:
    split = next(one for one in functions if one.breaks)
    assert split.breaks == (line_of("# one break"),)
    assert split.graphs == 2
    found = with_compiled(verdict(), facts(split)).findings
    assert [(one.id, one.share) for one in found] == [("graph-break", 0.0)]
    for holds in (True, False):  # torch's encoder, which breaks the graph by its look at the mask
        root = RootFacts(name="Net", parameters=1, modules=1, mask_checks=holds)
        (finding,) = with_compiled(verdict(), msgspec.structs.replace(facts(split), roots=(root,))).findings
        assert ("is_causal" in finding.instead) is holds


def test_recompilations_are_counted_and_explained(functions: list[CompiledFunction]) -> None:
    grows = next(one for one in functions if one.recompiles)
    assert (grows.recompiles, grows.graphs, grows.failed) == (5, 6, "")
    assert (grows.limit, grows.reached) == (100, False)
    assert "size mismatch" in grows.reason
    found = with_compiled(verdict(LAUNCH), facts(grows)).findings[0]
    assert found.id == "recompiles"
    assert found.where is not None
    assert found.where.line == line_of("class Grows") + 1
    assert "after 100 of one function" in found.why


@pytest.mark.parametrize(("compiling", "first"), [(0.1, False), (0.6, True)])
def test_recompilations_that_take_much_of_the_run_come_first(
    compiling: float, first: bool, functions: list[CompiledFunction]
) -> None:
    """The steps in which is compiled are left out of all that the others are shares of."""
    grows = next(one for one in functions if one.recompiles)
    other = Finding(id="compute", bound="compute", share=0.9)
    found = with_compiled(msgspec.structs.replace(verdict(other), compiling=compiling), facts(grows)).findings
    assert [one.id for one in found] == (["recompiles", "compute"] if first else ["compute", "recompiles"])
    assert ("(60% of the time)" in found[0].title) is first


def test_the_limit_of_recompilations_is_the_one_in_force(functions: list[CompiledFunction]) -> None:
    most = next(one for one in functions if one.limit == 5)
    assert (most.graphs, most.recompiles, most.failed, most.reached) == (5, 4, "", True)
    (found,) = with_compiled(verdict(), facts(most)).findings
    assert "5 graphs are made of it; calls that fit none of them run in eager mode" in found.why
    (unknown,) = with_compiled(verdict(), facts(msgspec.structs.replace(most, limit=0, reached=False))).findings
    assert "after some number of them (torch._dynamo.config.recompile_limit)" in unknown.why


def test_each_function_is_told_the_worst_first(functions: list[CompiledFunction]) -> None:
    found = with_compiled(verdict(LAUNCH), facts(*functions)).findings
    assert [one.id for one in found] == ["recompiles", "recompiles", "graph-break"]
    assert [one.share for one in found] == [0.7, 0.0, 0.0]
    assert {one.where.line for one in found if one.where} == {
        line_of("class Grows") + 1, line_of("class Most") + 1, line_of("# in a loop")
    }  # fmt: skip
    assert all(one.seconds > 0 for one in functions if one.graphs)
    slow = msgspec.structs.replace(functions[1], seconds=12.34)
    assert "compiling it took 12.3 s" in with_compiled(verdict(), facts(slow)).findings[0].evidence


SKIPS = """
import json, sys, torch
from types import SimpleNamespace
from hotlap.agent import compiled
why = "skipping cudagraphs due to cpu device (arg0_1). Found from :\\n   File x"
rows = [
    SimpleNamespace(co_filename="m.py", co_name="forward", co_firstlineno=3, compile_id="0/0",
                    cudagraph_skip_reason=why, entire_frame_compile_time_s=4.5),
    SimpleNamespace(co_filename="m.py", co_name="forward", co_firstlineno=3, compile_id="0/1"),
]
sys.modules["torch._dynamo.utils"] = SimpleNamespace(get_compilation_metrics=lambda: rows)
print(json.dumps(compiled.compiled_functions()))
"""


def test_a_cuda_graph_that_was_not_made_is_told_with_its_reason(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SKIPS)
    (row,) = json.loads(runner.bare(str(tmp_path / "script.py")).output.splitlines()[-1])
    told = msgspec.convert(row, CompiledFunction)
    assert (told.seconds, told.without_graph) == (4.5, "skipping cudagraphs due to cpu device (arg0_1). Found from :")
    (found,) = with_compiled(verdict(), facts(told)).findings
    assert found.id == "cudagraph-skip" and found.where is not None and found.where.line == 3
    assert "cpu device" in found.evidence and "4.5 s" in found.evidence


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("5/2: tensor 'x' dtype mismatch. expected Half", "tensor 'x' dtype mismatch. expected Half"),
        (
            "0/1: ___check_type_id(args[1], 139819802260288), type=<class 'list'>  # output = forward(*args)  "
            '# src/hotlap/levers/_autocast.py:74 in half_forward (HINT: type list)\nUser stack trace:\n  File "x.py"',
            "args[1] is no longer of type list",
        ),
        ("2/0: len(hidden) == 2  # for h in hidden:  # m.py:6 in forward", "len(hidden) == 2"),
    ],
)  # fmt: skip
def test_why_a_function_is_compiled_again_is_told_in_short(reason: str, said: str) -> None:
    function = CompiledFunction(file="m.py", function="forward", line=1, graphs=9, recompiles=8, reason=reason)
    (found,) = with_compiled(verdict(), facts(function)).findings
    assert found.evidence == f"forward was recompiled 8 times, the last time because {said}"
    assert finding_head(found).plain == "unknown", "what it costs is not known, and not nothing"


def test_nothing_is_said_where_all_was_compiled_or_torchs_own_code_recompiles() -> None:
    whole = CompiledFunction(file="m.py", function="forward", line=1, graphs=2, recompiles=1)
    assert with_compiled(verdict(LAUNCH), facts(whole)) == verdict(LAUNCH)
    assert with_compiled(verdict(LAUNCH), None) == verdict(LAUNCH)
    torchs = CompiledFunction(file="/x/site-packages/torch/nn/c.py", function="forward", line=1, graphs=9, recompiles=8)
    found = with_compiled(verdict(LAUNCH), facts(torchs)).findings[0]
    assert (found.id, found.where) == ("recompiles", LAUNCH.where)


def test_what_the_compiler_fails_on_is_told_as_that() -> None:
    raised = "backend='inductor' raised: AssertionError: no such view"
    function = CompiledFunction(file="m.py", function="forward", line=7, failed=raised)
    (found,) = with_compiled(verdict(), facts(function)).findings
    assert (found.id, found.title, found.evidence) == (
        "graph-break", "the compiler fails on the model", f"forward: {raised}",
    )  # fmt: skip
    assert "eager" not in f"{found.evidence} {found.why}" and "disable" in found.instead and not found.levers
    (other,) = with_compiled(
        verdict(), facts(msgspec.structs.replace(function, failed="a call that is not known"))
    ).findings
    assert "runs in eager mode" in other.evidence and other.title != found.title


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("0/1: tensor 'x' requires_grad mismatch. expected requires_grad=1", "never, need a gradient"),
        ("0/1: tensor 'x' size mismatch at index 0. expected 4, actual 5", "pad to a few shapes"),
        ("0/1: tensor 'x' stride mismatch at index 0. expected 4, actual 5", "contiguous()"),
        ("0/1: self.temperature == 3", "Python numbers"),
        ("0/1: ___check_obj_id(self.f, 1)", "the same in each call"),
    ],
)
def test_what_helps_follows_the_reason(reason: str, remedy: str) -> None:
    function = CompiledFunction(file="m.py", function="forward", line=7, graphs=6, recompiles=5, reason=reason)
    (found,) = with_compiled(verdict(), facts(function)).findings
    assert found.id == "recompiles" and remedy in found.instead


def test_a_reason_that_only_announces_one_is_told_with_it() -> None:
    assert _first_lines("backend='inductor' raised:\n\n  AssertionError: no such view\nmore") == (
        "backend='inductor' raised: AssertionError: no such view"
    )
    assert _first_lines("a call\nmore") == "a call" and _first_lines("") == ""
