"""Which findings of a run name the command that may have a diff for their line."""

from pathlib import Path

import msgspec
import pytest
from test_diagnose import FACTS, phases, steps

from hotlap.diagnose.patchable import by_hand, with_patch
from hotlap.diagnose.verdict import verdict
from hotlap.records.diagnosis import WAITS, Finding, Place
from hotlap.records.files import write_record
from hotlap.records.trace import Breakdown, RankTrace, TraceReport, Window
from made_runs import RUN, folder_of

MS = 1_000_000


def waits(line: int, file: str = "train.py") -> Finding:
    where = Place(file=file, line=line)
    return Finding(id="sync", bound="sync", share=0.5, title=f"{WAITS}`.item()`", where=where, instead="read it less")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("total += loss.item()", True),
        ("print(loss)", True),
        ("torch.cuda.synchronize()", True),
        ("bar.set_postfix(loss=float(loss))", True),
        ("if loss.item() > 1:", False),
        ("return loss.item()", False),
        ("y = x[mask]", False),
    ],
)
def test_lines_that_may_be_rewritten_name_the_patch(tmp_path: Path, text: str, told: bool) -> None:
    (tmp_path / "train.py").write_text(f"import torch\n    {text}\n", encoding="utf-8")
    found = with_patch(waits(2), Path("runs/a b"), tmp_path)
    assert (found.instead != "read it less") == told
    assert not told or found.instead == "read it less; hotlap patch 'runs/a b' shows the diff, or why there is none"
    assert by_hand(found) == "read it less"


def test_other_findings_and_files_do_not(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("torch.cuda.empty_cache()\nx = loss.item()\n", encoding="utf-8")
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "l.py").write_text("x = loss.item()\n", encoding="utf-8")
    other = msgspec.structs.replace(waits(2), title="other", id="host-code")
    allocator = msgspec.structs.replace(other, id="allocator")
    for finding in (other, allocator, waits(1, "site-packages/l.py"), waits(9), waits(2, "gone.py"), waits(2, "run")):
        assert with_patch(finding, Path("run"), tmp_path) == finding
    given_back = msgspec.structs.replace(allocator, where=Place(file="train.py", line=1))
    assert "hotlap patch run shows" in with_patch(given_back, Path("run"), tmp_path).instead


def test_the_verdict_of_a_run_names_it(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("total += loss.item()\n", encoding="utf-8")
    folder = folder_of(tmp_path / "run", (steps(20, host=phases(forward=4.0, backward=6.0)), FACTS))
    write_record(folder / "run.json", msgspec.structs.replace(RUN, cwd=str(tmp_path)))
    (folder / "rank-0" / "trace.json.gz").touch()
    device = Breakdown(
        device=0, span_ns=10 * MS, compute_ns=MS, exposed_communication_ns=0, exposed_copy_ns=0, idle_ns=9 * MS,
        communication_ns=0, copy_ns=0, kernel_ns=MS, streams=1, kernels=9,
    )  # fmt: skip
    window = Window(start_ns=0, end_ns=10 * MS, found_by="ProfilerStep", steps=((0, 10 * MS),))
    rank = RankTrace(source="t", rank=0, device_name="GPU", events=1, window=window, step_ms=10.0, breakdown=(device,))
    found = verdict(folder, TraceReport(ranks=(rank,), findings=(waits(1),)))
    assert found.findings[0].instead.endswith(f"hotlap patch {folder} shows the diff, or why there is none")
