"""How the agent gets into commands of every form: real processes, started as `hotlap run` starts them."""

import sys
from pathlib import Path

import pytest

from hotlap.diagnose.diagnose import diagnose
from hotlap.launch.command import INJECT
from hotlap.records.errors import NothingMeasured

from .harness import SCRIPTS, Ran, Runner, check_clean, check_lines, check_same, free_port, recorded_losses

BY_HAND = ["by_hand.py", "model", "12"]
"""Without an optimizer, whose first step imports as much as torch itself."""


def check_run(ran: Ran, bare: Ran, steps: int = 12) -> None:
    check_same(ran, bare)
    check_clean(ran)
    check_lines(ran.folder)
    assert len(ran.ranks) == 1
    assert len(ran.steps) == steps
    assert recorded_losses(ran.steps) == ran.losses


def test_script_from_another_folder_with_a_pythonpath_of_the_users(runner: Runner, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "theirs.py").write_text("value = 7\n")
    script = tmp_path / "far.py"
    script.write_text(
        f"import sys, theirs, runpy\nprint(theirs.value)\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
        f"sys.argv = ['by_hand.py', *{BY_HAND[1:]}]\n"
        f"runpy.run_path({str(SCRIPTS / BY_HAND[0])!r}, run_name='__main__')\n"
    )
    variables = {"PYTHONPATH": str(tmp_path / "mine")}
    bare = runner.bare(*BY_HAND)
    check_run(runner.under([script], cwd=tmp_path, variables=variables), Ran(bare.code, "7\n" + bare.output))


def test_a_script_that_sets_pythonpath_anew_is_told_as_a_cause(runner: Runner, tmp_path: Path) -> None:
    script, bare = tmp_path / "start.sh", runner.bare(*BY_HAND)
    for path, seen in ((".", False), (".:$PYTHONPATH", True)):
        script.write_text(f"PYTHONPATH={path} {sys.executable} {' '.join(BY_HAND)}\n")
        ran = runner.under(["bash", script], python=False)
        check_same(ran, bare)
        assert len(ran.steps) == (12 if seen else 0)
        if not seen:
            with pytest.raises(NothingMeasured, match=r"PYTHONPATH=\.:\$PYTHONPATH"):
                diagnose(ran.folder)


def test_module_with_relative_imports(runner: Runner, tmp_path: Path) -> None:
    script = tmp_path / "as_m.py"
    script.write_text(
        f"import runpy, sys\nsys.path.insert(0, {str(SCRIPTS)!r})\n"
        "runpy.run_module('pkg', run_name='__main__', alter_sys=True)\n"
    )
    check_run(runner.under(["-m", "pkg"]), runner.bare(str(script)))


def test_config_that_is_executed(runner: Runner) -> None:
    check_run(runner.forked("configured.py", "config.txt"), runner.bare("configured.py", "config.txt"), steps=7)


def test_loader_workers_that_are_spawned(runner: Runner) -> None:
    """A worker imports torch and so starts an agent; a model in the data set is none of the loop's."""
    argv = ("loader.py", "model", "--workers", "1", "--context", "spawn")
    check_run(runner.under(argv), runner.bare("loader.py", "model"))


def test_a_compiled_function_when_torch_compile_is_imported_late(runner: Runner) -> None:
    argv = ("compiled.py", "warm", "eager")
    check_run(runner.under(argv), runner.bare(*argv))


def test_a_process_that_makes_no_step_says_so_also_where_inductor_helps_it(runner: Runner) -> None:
    ran = runner.under(("compiled_inference.py",))
    check_same(ran, runner.bare("compiled_inference.py"))
    assert ran.facts.argv[0].endswith("compiled_inference.py") and not ran.facts.forwards
    with pytest.raises(NothingMeasured, match=r"0 forwards .* called only by a torch\.compile'd function are not seen"):
        diagnose(ran.folder)


def test_an_error_of_the_users_leaves_its_traceback_untouched(runner: Runner) -> None:
    argv = [*BY_HAND, "9:error"]
    bare = runner.in_child(argv)
    assert "ValueError: the user's own error" in bare.output
    assert "hotlap" not in bare.output.replace(str(SCRIPTS), "")
    ran = runner.under(argv)
    check_same(ran, bare)
    check_clean(ran)
    assert ran.code == 1
    assert recorded_losses(ran.steps) == ran.losses and len(ran.losses) == 10


def test_without_the_entry_point_the_users_sitecustomize_still_runs(runner: Runner, tmp_path: Path) -> None:
    """TORCH_DEVICE_BACKEND_AUTOLOAD=0; the script looks torch up before it imports it."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nprint('theirs', sys.flags.no_site)\n")
    variables = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": str(tmp_path)}
    probing = runner.bare("probing.py")
    bare = Ran(probing.code, "theirs 0\n" + probing.output)
    check_run(runner.under(["probing.py"], variables=variables), bare)


def test_the_agent_is_made_of_nothing_but_itself_and_torch(runner: Runner, tmp_path: Path) -> None:
    script = tmp_path / "names.py"
    script.write_text(
        "import sys, torch\n"
        "print(sorted({n.split('.')[0] for n in sys.modules} & {'msgspec', 'psutil', 'rich', 'typer', 'tomli_w'}))\n"
        "print(sorted(n for n in sys.modules if n.startswith('hotlap.') and n.split('.')[1] != 'agent'))\n"
    )
    ran = runner.under([script])
    names = ["hotlap.records", *(f"hotlap.records.{name}" for name in ("phases", "session", "steady", "whose"))]
    assert ran.output == f"[]\n{names}\n"
    assert ran.facts.mode == "none"


def test_spawned_ranks(runner: Runner) -> None:
    """Their parent never trains; they know their rank from the process group alone."""
    ran = runner.under(["ranks.py", "spawn", free_port()])
    check_clean(ran)
    check_lines(ran.folder)
    assert ran.code == 0
    assert ran.output.count("last") == 2
    assert [len(list(rank.steps)) for rank in ran.ranks] == [12, 12]
    assert (ran.facts.rank, ran.facts.world) == (0, 2)
    (root,) = ran.facts.roots
    told = root.exchange  # as DDP times it itself
    assert told is not None and told.compute_ms is not None and told.exchange_ms is not None
    assert told.compute_ms > 0 and told.exchange_ms >= told.hidden_ms >= 0 and told.backwards == 1


def test_a_session_that_cannot_be_read_changes_nothing(runner: Runner) -> None:
    bare = runner.bare(*BY_HAND)
    ran = runner.in_child(BY_HAND, {"PYTHONPATH": str(INJECT), "HOTLAP_SESSION": "/nowhere/session.json"})
    assert (ran.code, ran.output) == (bare.code, bare.output)
