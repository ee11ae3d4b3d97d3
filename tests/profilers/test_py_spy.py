"""What `py-spy record --format raw` writes, and what it is taken for."""

from pathlib import Path

import pytest

from hotlap.profilers import py_spy
from hotlap.profilers.py_spy import HOTLAP, read_py_spy
from hotlap.records.errors import RecordError

PYTHON = "/usr/lib/python3.11"
TORCH = "/src/pytorch/torch"
TRAIN = 'process 5:"python train.py";thread (5): MainThread;<module> (/w/train.py:9)'
MODULE = f"Module._call_impl ({TORCH}/nn/modules/module.py:1789)"
WORKER = f"_worker_loop ({TORCH}/utils/data/_utils/worker.py:300)"


def write(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "py-spy.raw"
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_lines_are_the_users_innermost_and_sum_to_the_samples(tmp_path: Path) -> None:
    seen = read_py_spy(
        write(
            tmp_path,
            f"{TRAIN};Net.forward (/w/net.py:3);{MODULE};relu ({TORCH}/nn/functional.py:7) 30",
            f"{TRAIN};Net.forward (/w/net.py:3) 10",
            f"{TRAIN};Random.gauss ({PYTHON}/random.py:5) 20",
            f"{TRAIN};Random.gauss ({PYTHON}/random.py:6) 5",
            f"{TRAIN};_find_and_load (<frozen importlib._bootstrap>:1176) 3",
            f"{TRAIN};Block.forward (/v/site-packages/timm/x.py:1) 2",
            f"{TRAIN};seen ({HOTLAP}agent/core.py:7);dumps ({PYTHON}/json/__init__.py:2) 4",
            f"{TRAIN};step ({HOTLAP}agent/hooks/optimizer.py:7);step ({TORCH}/optim/optimizer.py:2) 6",
            'process 5:"python train.py";thread (5): MainThread 8',
        )
    )
    assert (seen.pids, seen.samples, seen.own, seen.unread) == ((5,), 88, 4, 0)
    assert sum(line.samples for line in seen.lines) + seen.own == seen.samples
    told = {line.where and (line.where.file, line.where.line): line for line in seen.lines}
    forward, main = told["/w/net.py", 3], told["/w/train.py", 9]
    assert (forward.samples, forward.inner, forward.inner_samples) == (40, "relu (functional.py)", 30)
    assert (main.samples, main.inner, main.inner_samples) == (36, "Random.gauss (random.py)", 25)
    assert told[None].samples == 8


@pytest.mark.parametrize(
    ("frame", "told"),
    [("load (<frozen importlib._bootstrap>:11)", "load (importlib._bootstrap)"), ("f (<string>:1)", "f (<string>)")],
)
def test_names_of_frames_without_a_file(frame: str, told: str, tmp_path: Path) -> None:
    (line,) = read_py_spy(write(tmp_path, f"{TRAIN};{frame} 3")).lines
    assert line.inner == told


def test_a_command_that_is_installed_is_the_users(tmp_path: Path) -> None:
    timm = "/v/site-packages/timm"
    run = f"_run_code (<frozen runpy>:88);<module> ({timm}/train.py:3);create ({timm}/models/make.py:4)"
    stack = f'process 5:"python -m timm.train";thread (5): MainThread;{run};f (/v/site-packages/other/a.py:1) 1'
    (line,) = read_py_spy(write(tmp_path, stack)).lines
    assert line.where is not None and (line.where.file, line.where.line) == (f"{timm}/models/make.py", 4)


def test_what_runs_beside_the_main_thread(tmp_path: Path) -> None:
    shell = 'process 4:"torchrun train.py"'
    path = write(
        tmp_path,
        f'{shell};process 5:"python train.py";thread (5): MainThread;<module> (/w/train.py:9) 10',
        f"{shell};thread (4): MainThread;<module> (/v/bin/torchrun:3);poll ({PYTHON}/select.py:3) 90",
        f'{shell};process 5:"python train.py";thread (8): Thread-3 (_pin);loop ({TORCH}/_utils.py:3) 4',
        f'{shell};process 5:"python train.py";thread (9): Thread-4 (_pin);loop ({TORCH}/_utils.py:3) 3',
        f'{shell};process 5:"x";thread (10): samples;run ({PYTHON}/threading.py:3);_look ({HOTLAP}agent/a.py:1) 2',
        *(
            f'{shell};process 5:"python train.py";process {pid}:"python train.py";thread ({pid}): MainThread;'
            f"<module> (/w/train.py:9);{WORKER};__getitem__ (/w/data.py:4) 20"
            for pid in (6, 7)
        ),
    )
    seen = read_py_spy(path, pids=(5,))
    assert (seen.pids, seen.samples) == ((5,), 10)
    found = {group.name: (group.threads, group.processes, group.samples) for group in seen.beside}
    assert found == {
        "torchrun train.py": (1, 1, 90),
        "loader workers": (2, 2, 40),
        "Thread-N (_pin)": (2, 1, 7),
        "hotlap's own": (1, 1, 2),
    }
    where = seen.beside[1].line.where
    assert where is not None and (where.file, where.line) == ("/w/data.py", 4)


def test_the_process_that_trains_is_the_one_seen_in_the_most_places(tmp_path: Path) -> None:
    """Of a launcher that waits, one that works and its busier worker."""
    works = (f'process 4:"a";process 5:"b";thread (5);f (/w/a.py:{line}) 1' for line in range(3))
    worker = (f'process 4:"a";process 6:"b";thread (6);{WORKER};f (/w/a.py:{line}) 1' for line in range(9))
    path = write(tmp_path, 'process 4:"a";thread (4);wait (/w/l.py:1) 900', *works, *worker)
    assert read_py_spy(path).pids == (5,)
    assert read_py_spy(path, pids=(999,)).pids == (5,)


def test_commands_and_names_with_line_ends_and_semicolons(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "process 5:\"python -c \nimport time; x = 1\ny = 2 7\nprint('a;b')\";thread (5);f (/w/a b (1).py:3) 7",
        'process 5:"c";thread (6): my;thread\nx 12;g (/w/a.py:1) 2',
    )
    seen = read_py_spy(path)
    assert (seen.samples, seen.unread) == (7, 0)
    where = seen.lines[0].where
    assert where is not None and (where.file, where.line) == ("/w/a b (1).py", 3)
    assert [group.samples for group in seen.beside] == [2]


def test_what_py_spy_complained_of(tmp_path: Path) -> None:
    said = tmp_path / "py-spy.txt"
    late = "py-spy> 1.52s behind in sampling, results may be inaccurate. Try reducing the sampling rate\n"
    said.write_text(f"{late}{late.replace('1.52', '2.5')}Samples: 9 Errors: 3\nSamples: 9 Errors: 4\n")
    seen = read_py_spy(write(tmp_path, f"{TRAIN} 1"), said)
    assert (seen.errors, seen.late, seen.late_s) == (7, 2, 2.5)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\xff" * 1000,
        b"a;b;c 12\n",
        b'process 5:"x";thread (5): MainThread;f (a.py:1) -3\n',
        b'process 5:"x";thread (5): MainThread;f (a.py:1) 9999999999999999999\n',
        'process 5:"x";thread (5): MainThread;f (a.py:1) ²\n'.encode(),
        b'process 5:"x";thread (5',
        b'process 5:"' + b";thread (" * 20_000 + b" 1\n",
    ],
)
def test_what_is_not_of_py_spy_is_refused(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "py-spy.raw"
    path.write_bytes(data)
    with pytest.raises(RecordError, match=r"py-spy\.raw is not what"):
        read_py_spy(path)


def test_what_can_not_be_read_is_counted(tmp_path: Path) -> None:
    huge = f"{TRAIN};{'f (a.py:1);' * 40_000}f (a.py:1) 1"
    path = write(tmp_path, "rubbish", f"{TRAIN} 2", huge, f"{TRAIN} 3", 'process 5:"torn')
    seen = read_py_spy(path)
    assert seen.samples == 5 and seen.unread >= 3


def test_a_missing_or_very_large_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecordError, match="No such file"):
        read_py_spy(tmp_path / "py-spy.raw")
    monkeypatch.setattr(py_spy, "MOST_BYTES", 10)
    with pytest.raises(RecordError, match=r"py-spy\.raw is larger"):
        read_py_spy(write(tmp_path, f"{TRAIN} 2"))


def test_too_many_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(py_spy, "MOST_STACKS", 6)
    stacks = [f'process 5:"x";thread (5);f (/w/a.py:{line}) 1' for line in range(7)]
    assert read_py_spy(write(tmp_path, *stacks[:6])).samples == 6
    with pytest.raises(RecordError, match=r"py-spy\.raw has more than 6 different stacks"):
        read_py_spy(write(tmp_path, *stacks))
