"""Where the loop's thread is in steps that take much longer than the others, in a profiled run."""

from hotlap.agent.profile import COMPILED
from hotlap.records.profile import LongSamples, Profile

from .harness import SCRIPTS, Runner, check_same


def test_long_steps_are_looked_at_and_named(runner: Runner) -> None:
    ran = runner.untouched("long_steps.py", "saves", profile_steps=1)
    found = ran.ranks[0].document(LongSamples)
    assert found is not None and found.looks >= 5
    line = 1 + [text.endswith("# line: save") for text in (SCRIPTS / "long_steps.py").read_text().splitlines()].index(
        True
    )
    assert found.lines[0][1][-1][1:] == (line, "save") and found.lines[0][1][0][2] == "<module>"
    assert found.usual and not any(one[1] == line for one in found.usual)
    assert not any("profile" in row[2] for row in found.lines), "nothing of the windows"
    (said,) = [one for one in runner.judged(ran, "long_steps.py", "saves").findings if one.id == "long-steps"]
    assert said.title.startswith("one step in 30 takes ") and said.share > 0.1
    assert said.where is not None and said.where.function == "save"


def test_without_long_steps_nothing_is_written(runner: Runner) -> None:
    ran = runner.forked("long_steps.py", "plain", profile_steps=1)
    assert ran.ranks[0].document(LongSamples) is None


def test_a_trace_in_which_something_was_compiled_each_time_is_not_kept(runner: Runner) -> None:
    bare = runner.bare("long_steps.py", "shapes")
    ran = runner.forked("long_steps.py", "shapes", profile_steps=4)
    check_same(ran, bare)
    found = ran.ranks[0].document(Profile)
    assert found is not None and (found.file, found.note) == (None, COMPILED)
    assert not (ran.ranks[0].path / "trace.json.gz").exists()
