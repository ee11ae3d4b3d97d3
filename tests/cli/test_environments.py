"""Two runs beside each other, and a container recipe of one: through the command line, on recorded folders."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hotlap.export.to_container import _quoted, requirements
from hotlap.records.files import write_record
from hotlap.records.run import CompiledFunction, Environment, Gpu, Lever, Phases, Run, Step, Versions
from made_runs import FACTS, folder_of

MACHINE = Environment(
    hotlap="0.1.0", python="3.12.1 (/venv/bin/python)", os="Linux-6.1", cpu="AMD EPYC", cores=16, memory_gib=127.6,
    driver="550.54", gpus=(Gpu(name="NVIDIA H100", memory_gib=80.0),), variables={"OMP_NUM_THREADS": "4"},
    git_commit="0123456789abcdef", git_dirty=False,
)  # fmt: skip
VERSIONS = Versions(
    python="3.12.1", torch="2.11.0+cu130", cuda="13.0", cudnn="9.15.1", nccl="2.28.9",
    packages={"numpy": "2.4.6", "torch": "2.11.0+cu130", "triton": "3.6.0"},
)  # fmt: skip
RUN = Run(
    command=("/home/u/.venv/bin/python3.12", "train.py", "--lr", "3e-4"), cwd="/home/u/proj", environment=MACHINE,
    versions=VERSIONS, status="finished", exit_code=0,
)  # fmt: skip
HOSTILE = 'x"\n\\ $(id) `id`\x1b[31m'


def recorded(folder: Path, run: Run = RUN, step_ms: float = 10.0, **facts: Any) -> Path:
    """A finished run."""
    phases = Phases(forward=step_ms / 2, backward=step_ms / 2)
    steps = [Step(step=at, time=float(at), wall_ms=step_ms, phases=phases, samples=4, tokens=32) for at in range(30)]
    folder_of(folder, (steps, msgspec.structs.replace(FACTS, **facts)))
    write_record(folder / "run.json", run)
    return folder


def other(**changes: Any) -> Run:
    return msgspec.structs.replace(RUN, **changes)


def machine(**changes: Any) -> Environment:
    return msgspec.structs.replace(MACHINE, **changes)


# diff


def differs(out: str) -> dict[str, list[str | None]]:
    return {one["what"]: [one["before"], one["after"]] for one in json.loads(out)["differs"]}


def test_only_what_differs_is_printed_beside_the_step_times(tmp_path: Path, hotlap: Any) -> None:
    after = other(
        environment=machine(driver="580.1", variables={"NCCL_ALGO": "Ring"}, git_dirty=True),
        versions=msgspec.structs.replace(VERSIONS, torch="2.13.0+cu130", packages={"numpy": "2.5.0"}),
        levers=(Lever(name="tf32"),),
    )
    before = recorded(tmp_path / "a")
    code, out, _ = hotlap("diff", before, recorded(tmp_path / "b", after, 5.0), "--json")
    assert code == 0 and differs(out) == {
        "lever tf32": [None, "in"],
        "driver": ["550.54", "580.1"],
        "git commit": ["0123456789abcdef", "0123456789abcdef with changes"],
        "OMP_NUM_THREADS": ["4", None],
        "NCCL_ALGO": [None, "Ring"],
        "torch": ["2.11.0+cu130", "2.13.0+cu130"],
        "package numpy": ["2.4.6", "2.5.0"],
        "package torch": ["2.11.0+cu130", None],
        "package triton": ["3.6.0", None],
    }
    code, out, _ = hotlap("diff", before, tmp_path / "b")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert code == 0 and "driver 550.54 580.1" in lines and "OMP_NUM_THREADS 4 not set" in lines
    assert "10.0 ms a step" in out and "5.00 ms a step" in out and "6,400 tokens/s" in out
    assert "×" not in out and "AMD EPYC" not in out and "tune proves" in out


def test_runs_alike_have_nothing_to_print(tmp_path: Path, hotlap: Any) -> None:
    code, out, _ = hotlap("diff", recorded(tmp_path / "a"), recorded(tmp_path / "b"))
    assert code == 0 and "no difference in what both recorded" in out


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (other(versions=None), "versions of torch and CUDA"),
        (other(versions=Versions(python="3.12.1", torch="2.11.0+cu130")), "package versions other than torch's"),
    ],
)
def test_what_one_record_does_not_know_is_no_difference(after: Run, said: str, tmp_path: Path, hotlap: Any) -> None:
    _, out, _ = hotlap("diff", recorded(tmp_path / "a"), recorded(tmp_path / "b", after), "--json")
    assert "package numpy" not in differs(out) and said in json.loads(out)["unknown"][0]


def test_a_run_without_steps_and_what_is_no_run(tmp_path: Path, hotlap: Any) -> None:
    before, after = recorded(tmp_path / "a"), recorded(tmp_path / "b")
    (after / "rank-0" / "steps.jsonl").unlink()
    code, out, _ = hotlap("diff", before, after)
    assert code == 0 and "nothing was measured" in out
    assert hotlap("diff", before, tmp_path)[0] == 125


def test_hostile_values_steer_no_terminal(tmp_path: Path, hotlap: Any) -> None:
    bad = other(environment=machine(driver=HOSTILE, variables={HOSTILE: HOSTILE}), command=("python", HOSTILE))
    code, out, _ = hotlap("diff", recorded(tmp_path / "a"), recorded(tmp_path / "b", bad))
    assert code == 0 and "\x1b" not in out and "$(id)" in out


# container


def exported(run: Run, tmp_path: Path, hotlap: Any, **facts: Any) -> tuple[list[str], list[str], str]:
    """Lines of the Containerfile and of the requirements, and what was printed."""
    code, out, err = hotlap("export", recorded(tmp_path / "r", run, **facts), "--to", "container")
    assert code == 0, err
    folder = tmp_path / "r" / "export" / "container"
    files = [(folder / name).read_text().splitlines() for name in ("Containerfile", "requirements.txt")]
    assert sorted(path.name for path in folder.iterdir()) == ["Containerfile", "requirements.txt"]
    return files[0], files[1], out


def test_a_container_pins_what_the_record_knows(tmp_path: Path, hotlap: Any) -> None:
    lines, pins, out = exported(RUN, tmp_path, hotlap)
    assert pins == ["--extra-index-url https://download.pytorch.org/whl/cu130", "torch==2.11.0+cu130", "numpy==2.4.6"]
    assert "FROM python:3.12.1-slim" in lines and 'ENV OMP_NUM_THREADS="4"' in lines
    assert lines[-1] == 'CMD ["python", "train.py", "--lr", "3e-4"]'
    (check,) = [json.loads(line[4:]) for line in lines if line.startswith('RUN ["python"')]
    assert "'torch': '2.11.0+cu130', 'CUDA': '13.0'" in check[2] and compile(check[2], "check", "exec")
    assert not any("g++" in line for line in lines)
    comments = "\n".join(line for line in lines if line.startswith("#"))
    for said in (
        "1 × NVIDIA H100, driver 550.54",
        "AMD EPYC, 16 cores",
        "git commit 0123456789abcdef,",
        "not imported",
    ):
        assert said in comments
    assert 'docker run --rm --gpus all --ipc=host -v "$PWD":/work hotlap-run' in out
    assert "docker build -t hotlap-run" in out


def test_the_command_is_what_docker_runs(tmp_path: Path, hotlap: Any) -> None:
    words = ("torchrun", "--nproc-per-node", "2", 'my "train".py', "$HOME", "\\")
    lines, _, _ = exported(other(command=words), tmp_path, hotlap)
    assert json.loads(lines[-1].removeprefix("CMD ")) == list(words)


@pytest.mark.parametrize(
    ("run", "facts"),
    [
        (other(levers=(Lever(name="compile", settings={"mode": "default"}),)), {}),
        (RUN, {"compiled": (CompiledFunction(file="t.py", function="f"),)}),
    ],
)
def test_a_compiler_is_there_where_something_compiles(
    run: Run, facts: dict[str, Any], tmp_path: Path, hotlap: Any
) -> None:
    lines, _, _ = exported(run, tmp_path, hotlap, **facts)
    assert any("install -y --no-install-recommends g++" in line for line in lines)


def test_what_can_not_be_pinned_is_said(tmp_path: Path, hotlap: Any) -> None:
    versions = Versions(python="3.14.0rc1", torch="2.14.0a0+gitabc", packages={"own": "1.0+local", "bad name": "1"})
    variables = {"LD_PRELOAD": "/usr/lib/x.so", "TORCH_LOGS": "x" * 200, "CUDA_HOME": "/usr/local/cuda"}
    run = other(environment=machine(variables=variables, git_commit=None), versions=versions)
    lines, pins, _ = exported(run, tmp_path, hotlap)
    comments = "\n".join(line for line in lines if line.startswith("#"))
    assert pins == [] and not any(line.startswith("ENV") for line in lines) and "FROM python:3-slim" in lines
    for said in (
        "Python 3.14.0rc1: no release", "torch 2.14.0a0+gitabc: not a release", "own 1.0+local", "bad name 1",
        "LD_PRELOAD=/usr/lib/x.so: a path on that machine", "TORCH_LOGS: the record has only its beginning",
        "not in a git commit",
    ):  # fmt: skip
        assert said in comments


def test_nothing_untrusted_is_written_as_it_is(tmp_path: Path, hotlap: Any) -> None:
    """Every line is one of ours: a comment, or an instruction whose texts are quoted."""
    versions = Versions(
        python=HOSTILE, torch=HOSTILE, cuda=HOSTILE, packages={HOSTILE: HOSTILE, "-r": "1", "a": "1\nb"}
    )
    variables = {"TORCH_X": HOSTILE, "PATH": "x", "OMP_Y\nRUN id": "1", "NCCL_Z": '"; $A \\', "TORCH_KEY": "s3cret"}
    bad = machine(variables=variables, cpu=HOSTILE, driver=HOSTILE, git_commit=HOSTILE, os=HOSTILE)
    run = other(environment=bad, versions=versions, command=("python", HOSTILE), cwd=HOSTILE)
    lines, pins, _ = exported(run, tmp_path, hotlap)
    assert pins == []
    ours = (
        r'#.*|FROM python:3-slim|COPY requirements.txt \S+|RUN pip install [^"$]*|RUN \[.*\]|WORKDIR /work|CMD \[.*\]|'
    )
    rest = [line for line in lines if not re.fullmatch(ours, line)]
    assert rest == ['ENV NCCL_Z="\\"; \\$A \\\\"']
    assert json.loads(lines[-1][4:]) == ["python", HOSTILE]
    assert all(line.isprintable() for line in lines) and "s3cret" not in "".join(lines)


@pytest.mark.parametrize("value", ["4", "a b", 'say "no"', "$HOME", "back\\slash", "`id`"])
def test_values_are_read_back_as_they_were(value: str) -> None:
    written = _quoted(value).replace("\\$", "$")  # a shell reads the rest as a Containerfile does
    assert shlex.split(written) == [value]
    assert not re.search(r"(?<!\\)\$", _quoted(value))


def test_builds_of_torch_s_own_index_come_from_there() -> None:
    packages = {"torchvision": "0.26.0+cu130", "torchaudio": "2.11.0+cu128", "nvidia-ml-py": "13.1"}
    pins, left_out = requirements(Versions(python="3.12.1", torch="2.11.0+cu130", packages=packages))
    assert pins[1:] == ["torch==2.11.0+cu130", "torchvision==0.26.0+cu130", "nvidia-ml-py==13.1"]
    assert left_out == ["torchaudio 2.11.0+cu128: this version is in no package index"]


def test_torch_of_the_usual_index_needs_no_other() -> None:
    assert requirements(Versions(python="3.12.1", torch="2.13.0")) == (["torch==2.13.0"], [])


def test_a_run_of_which_nothing_is_known_is_refused(tmp_path: Path, hotlap: Any) -> None:
    code, _, err = hotlap("export", recorded(tmp_path / "r", other(versions=None)), "--to", "container")
    assert code == 125 and "has no versions" in err and "Run the command again" in err
    code, _, err = hotlap("export", tmp_path / "r", "--to", "container", "--replace")
    assert code == 125 and "--replace goes with" in err
