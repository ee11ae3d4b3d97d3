"""Profiled runs: results as without, a whole trace with labels, lines that are right, and no quoted time disturbed."""

import gzip
import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hotlap.agent import profile as profile_module
from hotlap.records.files import read_record
from hotlap.records.profile import Lines, Profile, Samples

from .harness import SCRIPTS, Ran, Runner, check_clean, check_lines, check_same, free_port

HOOKS = [profile_module.WINDOW, profile_module.OP, profile_module.LABEL, profile_module.EXPORT]
SAMPLED, MOST = profile_module.SAMPLED_STEPS, profile_module.MOST_SAMPLED
LEFT = {
    "trace.json.gz",
    "lines.json",
    "samples.json",
    "profile.json",
    "steps.jsonl",
    "facts.json",
    "problems.jsonl",
    "levers.jsonl",
}


def events(ran: Ran) -> list[dict[str, Any]]:
    return json.loads(gzip.decompress((ran.ranks[0].path / "trace.json.gz").read_bytes()))["traceEvents"]


def profile_of(ran: Ran) -> Profile:
    found = ran.ranks[0].document(Profile)
    assert found is not None
    return found


def samples_of(ran: Ran) -> Samples:
    return read_record(ran.ranks[0].path / "samples.json", Samples)


def lines_of(ran: Ran) -> Lines:
    found = ran.ranks[0].document(Lines)
    assert found is not None
    return found


def line_of(mark: str) -> int:
    """The line of profiled.py that ends in `# line: mark`."""
    text = (SCRIPTS / "profiled.py").read_text().splitlines()
    (at,) = [number for number, line in enumerate(text, 1) if line.endswith(f"# line: {mark}")]
    return at


def ops_at(found: Lines, mark: str) -> list[tuple[str, int, int, str]]:
    """The ops of a line of profiled.py."""
    return [op for op in found.ops if found.files[op[1]].endswith("profiled.py") and op[2] == line_of(mark)]


def profiled(runner: Runner, *argv: str, steps: int = 3, **settings: Any) -> Ran:
    """The script is left as it is, whatever becomes of the profile, and no part of a file stays."""
    ran = runner.forked(*argv, profile_steps=steps, **settings)
    check_same(ran, runner.bare(*argv))
    check_lines(ran.folder)
    assert {path.name for path in ran.ranks[0].path.iterdir()} <= LEFT
    return ran


@pytest.fixture(scope="module")
def whole(runner: Runner) -> Ran:
    return profiled(runner, "profiled.py", "plain", "9")


def test_nothing_of_the_run_changes(whole: Ran) -> None:
    """Losses to the last bit, weights, random states, the stack of modes, what is printed."""
    check_clean(whole)
    assert len(whole.losses) == 108
    assert [step.loss for step in whole.steps] == whole.losses


def test_steps_in_windows_are_marked_and_no_others(whole: Ran) -> None:
    """Those that are sampled, one for the lines, one to warm up, three recorded, one in which the trace is written."""
    found = profile_of(whole)
    assert found == Profile(file="trace.json.gz", first_step=found.first_step, steps=3, wanted=3)
    assert found.first_step is not None
    sampled = samples_of(whole).steps
    assert 2 <= sampled <= MOST
    first = found.first_step - 2 - sampled
    assert [step.step for step in whole.steps if step.probe] == list(range(first, first + 6 + sampled))
    assert first >= 20


def test_the_trace_has_steps_and_phases(whole: Ran) -> None:
    labels = [event for event in events(whole) if event.get("cat") == "user_annotation"]
    count = Counter(event["name"] for event in labels)
    first = profile_of(whole).first_step
    assert first is not None
    wanted = {f"ProfilerStep#{first + at}": 1 for at in range(3)}
    wanted |= {f"hotlap:{phase}": 3 for phase in ("data", "forward", "backward", "optimizer")}
    # The twelfth step of an epoch is followed by a `next` that finds the loader empty, and one that makes its iterator.
    assert {name: count[name] for name in wanted if name != "hotlap:data"} == {
        name: number for name, number in wanted.items() if name != "hotlap:data"
    }
    assert count["hotlap:data"] >= 3
    steps = sorted((e["ts"], e["ts"] + e["dur"]) for e in labels if e["name"].startswith("ProfilerStep"))
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(steps))
    for event in labels:
        inside = [start <= event["ts"] and event["ts"] + event["dur"] <= end for start, end in steps]
        assert event["name"].startswith("ProfilerStep") or sum(inside) == 1, event["name"]


def test_ranges_nest(whole: Ran) -> None:
    """Nothing cuts through another range of its thread, as a step that ended inside `Optimizer.step` would."""
    ranges = sorted(
        (event["tid"], event["ts"], -event["dur"])
        for event in events(whole)
        if event.get("cat") in {"user_annotation", "cpu_op"}
    )
    stack: list[tuple[int, float]] = []
    for thread, start, negative in ranges:
        while stack and (stack[-1][0] != thread or stack[-1][1] <= start):
            stack.pop()
        assert not stack or start - negative <= stack[-1][1] + 0.002  # clocks are told to a thousandth of a µs
        stack.append((thread, start - negative))


def test_the_trace_has_ops_with_shapes(whole: Ran) -> None:
    products = [event for event in events(whole) if event["name"] == "aten::addmm"]
    assert len(products) == 3 * 4  # two layers, and again in the checkpoint's backward
    assert {str(event["args"]["Input Dims"][1]) for event in products} == {"[6, 4]", "[6, 8]"}


def test_lines_are_those_of_the_source(whole: Ran) -> None:
    found = lines_of(whole)
    assert (found.steps, found.skipped, found.left_out, found.syncs) == (1, "", 0, ())
    assert {Path(found.files[op[1]]).name for op in found.ops} == {"common.py", "profiled.py"}
    dropout = ops_at(found, "dropout")
    assert [op[0] for op in dropout] == ["aten::empty_like", "aten::bernoulli_", "aten::div_", "aten::mul"]
    assert {op[3] for op in dropout} == {"Net.forward"}
    assert [op[0] for op in ops_at(found, "loss")] == ["aten::sub", "aten::pow", "aten::mean"]
    assert [op[0] for op in ops_at(found, "own backward")] == ["aten::mul", "aten::mul"]
    assert {name: place[1] for name, place in found.places.items() if name != "data"} == {
        "forward": line_of("loss"),
        "backward": line_of("backward"),
        "optimizer": line_of("optimizer"),
    }
    assert found.places["data"][2] == "epochs"
    inner = {name: [op for op in found.ops[at:] if op[2] == line_of("loss")] for name, at in found.begins}
    assert len(inner["forward"]) == 3 and not inner["optimizer"], "each phase says after how many ops it begins"


def test_lines_hold_nothing_of_hotlaps_own(whole: Ran) -> None:
    """It reads the loss in each backward; ops that the backward calls have no line either."""
    found = lines_of(whole)
    assert [op[0] for op in ops_at(found, "backward")] == ["aten::ones_like"]
    assert not [op for op in found.ops if op[0].startswith("profiler::")]
    assert sum(op[0] == "aten::_local_scalar_dense" and op[3] == "said" for op in found.ops) == 1


def test_lines_are_in_the_order_of_the_trace(whole: Ran) -> None:
    """A recorded step calls what the looked-at step called, in the same order (within the backward nearly so)."""
    again = {line_of("inner"), line_of("own forward"), line_of("own backward"), line_of("save")}
    found = events(whole)
    first = profile_of(whole).first_step
    (step,) = [event for event in found if event["name"] == f"ProfilerStep#{first}"]
    within = [event for event in found if event.get("cat") == "cpu_op" and 0 <= event["ts"] - step["ts"] < step["dur"]]
    names = iter([event["name"] for event in sorted(within, key=lambda event: event["ts"])])
    script = next(at for at, name in enumerate(lines_of(whole).files) if name.endswith("profiled.py"))
    # `epochs` makes an iterator once in 12 steps.
    ops = [op[0] for op in lines_of(whole).ops if (op[1] != script or op[2] not in again) and op[3] != "epochs"]
    missing = [op for op in ops if op not in names]  # consumes `names` up to the op
    assert len(ops) > 50
    assert missing == []


def test_options_reach_the_profiler(runner: Runner) -> None:
    ran = runner.forked("profiled.py", "plain", "9", profile_steps=2, profile_memory=True, profile_stacks=True)
    bare = runner.bare("profiled.py", "plain", "9")
    assert ran.losses == bare.losses
    assert ran.output.splitlines()[-2:] == bare.output.splitlines()[-2:]  # torch warns of allocations from before
    check_clean(ran)
    kinds = Counter(event.get("cat") for event in events(ran))
    names = Counter(event["name"] for event in events(ran))
    assert kinds["python_function"] > 0
    assert names["[memory]"] > 0
    assert (profile_of(ran).steps, profile_of(ran).memory, profile_of(ran).stacks) == (2, True, True)


def test_the_steps_asked_for_come_first(runner: Runner) -> None:
    """With `--steps` the windows come when those were timed, and then the run ends."""
    ran = runner.forked("profiled.py", "plain", "20", steps=30, profile_steps=3)
    check_clean(ran)
    assert ran.facts.stopped
    assert ran.code == 0
    marked = [step.step for step in ran.steps if step.probe]
    assert len(marked) == 6 + samples_of(ran).steps
    assert marked[0] > 30
    assert marked[-1] == ran.steps[-1].step
    assert profile_of(ran).steps == 3


@pytest.mark.parametrize(("steps", "recorded"), [(30, True), (2, False)])
def test_a_run_that_ends_first(steps: int, recorded: bool, runner: Runner) -> None:
    """What was recorded is kept, with a note."""
    rounds = "6" if recorded else "1"
    ran = profiled(runner, "profiled.py", "plain", rounds, steps=60 if recorded else 3)
    check_clean(ran)
    found = profile_of(ran)
    assert "the run ended" in found.note
    assert (found.file is not None) == recorded == (ran.ranks[0].path / "trace.json.gz").exists()
    if recorded:
        assert 0 < found.steps < 60
        whole_steps = [event for event in events(ran) if event["name"].startswith("ProfilerStep")]
        assert found.steps <= len(whole_steps) <= found.steps + 1


def test_a_compiled_model_is_not_looked_at(runner: Runner) -> None:
    """The mode would make its graphs anew. Places are known all the same."""
    ran = profiled(runner, "profiled.py", "compiled", "6")
    check_clean(ran)
    assert (lines_of(ran).steps, lines_of(ran).ops) == (0, ())
    assert "torch.compile" in lines_of(ran).skipped
    assert lines_of(ran).places["backward"][1] == line_of("backward")
    assert profile_of(ran).steps == 3
    assert [step.step for step in ran.steps if step.compiles and step.step > 5] == []


def test_a_mode_of_the_script(runner: Runner) -> None:
    ran = profiled(runner, "profiled.py", "mode", "6")
    check_clean(ran)
    assert "uses its own dispatch mode" in lines_of(ran).skipped
    assert profile_of(ran).steps == 3


def test_steps_that_begin_in_inference_mode(runner: Runner) -> None:
    """Its end switches dispatch modes on again that were on at its begin, and torch fails where there is none then."""
    ran = profiled(runner, "profiled.py", "teacher", "6")
    check_clean(ran)
    assert (lines_of(ran).steps, profile_of(ran).steps) == (1, 3)
    assert len(lines_of(ran).ops) > 50


def test_masks_and_autocast_of_a_step(runner: Runner) -> None:
    ran = profiled(runner, "given.py")
    check_clean(ran)
    found, text = lines_of(ran), (SCRIPTS / "given.py").read_text().splitlines()
    at = {mark: number for number, line in enumerate(text, 1) if (mark := line.partition("# line: ")[2])}
    assert [(one.line, one.function, one.kind, one.times) for one in found.masks] == [
        (at["attention"], "Net.forward", "causal", 1)
    ]
    assert [row[1:] for row in found.autocasts] == [(at["autocast"], "main")]


@pytest.mark.parametrize("hook", ["profile_op", "profile_label"])
def test_an_error_in_inference_mode_leaves_the_job_alone(hook: str, runner: Runner) -> None:
    profiled(runner, "profiled.py", "teacher", "6", fail_in=hook)


def test_a_loop_in_a_thread(runner: Runner) -> None:
    """Lines are known; torch's profiler would crash the process if the thread ended before it."""
    ran = profiled(runner, "profiled.py", "thread", "6")
    check_clean(ran)
    assert lines_of(ran).steps == 1
    assert len(lines_of(ran).ops) > 50
    assert (profile_of(ran).file, profile_of(ran).steps) == (None, 0)
    assert "thread" in profile_of(ran).note


def test_workers_that_are_forked_in_the_windows(runner: Runner) -> None:
    """Each step has an epoch of its own, so some begin while the mode and the profiler are on."""
    ran = runner.forked("profiled.py", "workers", "60", steps=12, profile_steps=2)
    check_clean(ran)
    check_lines(ran.folder)
    bare = runner.bare("profiled.py", "workers", "60")
    assert ran.losses
    assert ran.losses == bare.losses[: len(ran.losses)]
    assert (profile_of(ran).steps, profile_of(ran).note) == (2, "")
    assert lines_of(ran).steps == 1
    assert not [op for op in lines_of(ran).ops if op[3] == "Data.__getitem__"]


def test_a_profiler_of_the_script_comes_first(runner: Runner) -> None:
    """torch takes one at a time; the script's records what it does without hotlap."""
    bare = runner.bare("profiled.py", "own", "12")
    ran = runner.forked("profiled.py", "own", "12", profile_steps=100)
    assert re.search(r"^own 12$", bare.output, re.MULTILINE)
    said = [line for line in bare.output.splitlines() if not line.startswith("USDT:")]  # the tracer's log
    assert ran.output.splitlines() == said
    check_clean(ran)
    check_lines(ran.folder)
    found = profile_of(ran)
    assert "started its own profiler" in found.note
    assert (found.file, 0 < found.steps < 100) == ("trace.json.gz", True)
    assert [step.step for step in ran.steps if step.probe][-1] == 99  # the 100th: there the script's own begins


@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_in_a_profile(hook: str, runner: Runner) -> None:
    """It ends the profile; the run goes on and stays observed, and no time it disturbed is quoted."""
    ran = profiled(runner, "profiled.py", "plain", "9", fail_in=hook)
    assert len(ran.steps) == 108
    assert [(problem.where, problem.what) for problem in ran.problems] == [
        (hook, f"RuntimeError: injected into {hook}")
    ]
    assert not (ran.ranks[0].path / "trace.json.gz").exists()
    assert (hook == profile_module.EXPORT) is ("could not be written" in profile_of(ran).note)
    assert profile_of(ran).note and ran.ranks[0].profiled
    marked = [step.step for step in ran.steps if step.probe]
    assert 1 <= len(marked) <= 6 + MOST
    assert marked == list(range(marked[0], marked[-1] + 1))


def test_an_error_in_the_sampling_thread(runner: Runner) -> None:
    """It ends the sampling, and neither the profile nor the run; nothing is printed."""
    ran = profiled(runner, "profiled.py", "plain", "9", fail_in=profile_module.SAMPLE)
    assert [problem.where for problem in ran.problems] == [profile_module.SAMPLE] * 2  # the one for long steps too
    assert profile_of(ran).steps == 3
    assert samples_of(ran).looks == 0


@pytest.mark.parametrize("begins", [0, 1])
@pytest.mark.parametrize("every", [2, 3])
def test_the_step_that_is_looked_at_holds_no_evaluation_where_most_do_not(
    every: int, begins: int, runner: Runner
) -> None:
    """Seen on a public autoencoder: what its evaluation computed of the same weights was told as computed three times a
    step."""
    ran = runner.forked("sampled.py", str(every), str(begins), steps=22, profile_steps=1)
    check_clean(ran)
    assert sum(op[0] == "aten::addmm" for op in lines_of(ran).ops) == 1 and lines_of(ran).steps == 1


@pytest.mark.parametrize(("every", "evaluation"), [(3, "evaluation"), (1, "other")])
def test_samples_are_at_the_lines_that_take_the_time(every: int, evaluation: str, runner: Runner) -> None:
    """A sleep in the loader, one in the model and one in the loop; evaluations apart, unless one lies in each step."""
    ran = runner.forked("sampled.py", str(every), steps=15, profile_steps=1)
    check_clean(ran)
    found = samples_of(ran)
    text = (SCRIPTS / "sampled.py").read_text().splitlines()
    top: dict[str, tuple[int, float]] = {}
    for phase, file, line, _function, _inside, ms in found.lines:
        if file >= 0 and ms > top.get(phase, (0, 0.0))[1]:
            top[phase] = line, ms
    for phase, mark in (("data", "data"), ("forward", "forward"), (evaluation, "forward")):
        assert text[top[phase][0] - 1].endswith(f"# {mark}"), (phase, top)
    assert every == 1 or text[top["other"][0] - 1].endswith("# other"), top
    assert found.looks > 10 and found.steps >= 2
    stood = {text[line - 1].rpartition("# ")[2] for _, file, line, _, inside, _ in found.stood if file >= 0}
    assert stood >= {"data", "forward", "other"}


def test_a_list_that_is_searched_is_read(runner: Runner) -> None:
    bare, ran = runner.bare("searches.py"), runner.forked("searches.py", profile_steps=1)
    check_same(ran, bare)
    check_clean(ran)
    ((file, line, expression, entries, took_us),) = samples_of(ran).searched
    text = (SCRIPTS / "searches.py").read_text().splitlines()
    assert file == str(SCRIPTS / "searches.py") and text[line - 1].endswith("# search")
    assert (expression, entries) == ("self.of[at % 3]", 50_000) and took_us > 0


FULL_DISK = """
import hotlap.agent.profile as profile

class Full:
    def __init__(self, *args, **kwargs):
        raise OSError(28, "No space left on device")

profile.gzip.open = Full
"""
CUT_SHORT = """
original = torch.profiler.profile.export_chrome_trace
def export(self, path):
    original(self, path)
    with open(path, "r+") as file:
        file.truncate(5000)
torch.profiler.profile.export_chrome_trace = export
"""


@pytest.mark.parametrize(("before", "what"), [(FULL_DISK, "No space left"), (CUT_SHORT, "cut short")])
def test_a_disk_that_is_full_for_the_trace(before: str, what: str, runner: Runner) -> None:
    ran = profiled(runner, "profiled.py", "plain", "9", before=before)
    assert [problem.where for problem in ran.problems] == [profile_module.EXPORT]
    assert what in ran.problems[0].what
    assert (profile_of(ran).file, profile_of(ran).steps) == (None, 3)
    assert "problems.jsonl" in profile_of(ran).note
    assert len(ran.steps) == 108


def test_an_error_elsewhere_takes_everything_out(runner: Runner) -> None:
    """Hotlap goes off while a mode is on: `profiled.py` prints the stack of modes at its end."""
    before = """
import hotlap.agent.core as core
original = core.Steps.backward_end
def backward_end(self):
    original(self)
    import sys
    if sys._hotlap_agent.profile.lines is not None:
        raise RuntimeError("once, in the window")
core.Steps.backward_end = backward_end
"""
    ran = runner.forked("profiled.py", "plain", "9", profile_steps=3, before=before)
    check_same(ran, runner.bare("profiled.py", "plain", "9"))
    assert [problem.where for problem in ran.problems] == ["backward_end"]


def test_ranks_take_the_same_windows(runner: Runner) -> None:
    port = free_port()
    argvs = [["ranks.py", "alone", port, str(number), "long"] for number in range(2)]
    ranks = runner.forked_at_once(argvs, steps=8, profile_steps=3)
    for ran in ranks:
        check_clean(ran)
        check_lines(ran.folder)
        assert ran.code == 0
    marked = [[step.step for step in ran.steps if step.probe] for ran in ranks]
    at = marked[0][0]
    assert marked == [list(range(at, at + 6 + SAMPLED))] * 2
    assert [ran.ranks[0].document(Profile) for ran in ranks] == [
        Profile(file="trace.json.gz", first_step=at + 2 + SAMPLED, steps=3, wanted=3)
    ] * 2
    assert len({len(ran.steps) for ran in ranks}) == 1


@pytest.mark.parametrize("kinds", [("coo", "csr", "mkldnn"), ("nested", "jagged"), ("meta", "quantized", "subclass")])
def test_tensors_without_a_storage_of_their_own_are_passed_by(runner: Runner, kinds: tuple[str, ...]) -> None:
    ran = profiled(runner, "kinds.py", *kinds)
    check_clean(ran)
    assert profile_of(ran).steps == 3
    assert {row[0] for row in lines_of(ran).ops} >= {"aten::addmm"}


def test_what_a_step_computes_and_does_not_need(runner: Runner) -> None:
    ran = runner.untouched("unneeded.py", profile_steps=2)
    found, text = lines_of(ran), (SCRIPTS / "unneeded.py").read_text().splitlines()
    (rows,), (again,) = found.same_rows, found.recurrent
    assert (rows[3], text[rows[1] - 1].strip()) == (3, "x = self.head(self.drop(self.encoder(x)))[:, None]")
    assert [function for _, _, function in rows[5]][-1] == "Net.forward"
    assert text[again[1] - 1].endswith("# line: again") and again[3] == 4
    assert again[4] == pytest.approx((1 + 2 + 3) / (1 + 2 + 3 + 4))
    (zero,), (siblings,) = found.zeroed, found.siblings
    (recast,) = found.recasts
    assert text[recast[1] - 1].strip().startswith("given = model.head")
    assert (recast[3], [text[line - 1].endswith("# line: autocast") for _, line, _ in recast[5]]) == (4, [True])
    assert text[siblings[1] - 1].endswith("# line: one by one") and siblings[3:5] == (4, 1.0)
    assert text[zero[6] - 1].endswith("# line: zero") and zero[3] == 2
    assert {text[line - 1].endswith("# line: autocast") for _, line, _ in found.autocasts} == {True}
