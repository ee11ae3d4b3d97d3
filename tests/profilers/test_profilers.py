"""What ncu and perf write."""

from pathlib import Path

import pytest

from hotlap.profilers.ncu import read_ncu, same_name, with_rooflines
from hotlap.profilers.perf import read_perf
from hotlap.records.errors import RecordError
from hotlap.records.profilers import KernelCounters
from hotlap.records.trace import OpRoofline, RankTrace, Window

HEADER = '"ID","Process ID","Kernel Name","Device","CC"'
PEAK = ".avg.pct_of_peak_sustained_elapsed"
RAW = f"""==PROF== Connected to process 1234 (/usr/bin/python3)
step 0
{HEADER},"dram__throughput{PEAK}","gpu__time_duration.sum","sm__throughput{PEAK}"
"","","","","","%","usecond","%"
"0","1","gemm","0","9.0","20","3,000.5","80.5"
"1","1","gemm","0","9.0","60","1,000.5","40.5"
"2","1","copy","0","9.0","n/a","2","1.0"
==PROF== Disconnected from process 1234
"""
PERF = """# started on Sat Nov 21 22:16:10 2026

324.80,msec,task-clock,324799024,100.00,0.324,CPUs utilized
105,,context-switches,324799024,100.00,323.277,/sec
12563,,page-faults:u,324799024,100.00,38.679,K/sec
1000,,cpu_core/cycles/,20,60.00,,
500,,cpu_atom/cycles/u,20,55.50,,
3000,,instructions,20,100.00,2.00,insn per cycle
<not supported>,,branches,0,100.00,,
<not counted>,,branch-misses,0,0.00,,
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "counters.csv"
    path.write_text(text)
    return path


def test_kernels_of_ncu_are_means_by_time(tmp_path: Path) -> None:
    gemm, copy = read_ncu(write(tmp_path, RAW))
    assert (gemm.name, gemm.calls, gemm.ns) == ("gemm", 2, pytest.approx(4_001_000))
    assert gemm.sm == pytest.approx((3000.5 * 80.5 + 1000.5 * 40.5) / 4001)
    assert gemm.dram == pytest.approx((3000.5 * 20 + 1000.5 * 60) / 4001)
    assert (copy.ns, copy.sm, copy.dram) == (pytest.approx(2000), 1.0, None)


def test_older_names_and_no_times(tmp_path: Path) -> None:
    rows = '"","","","","","%"\n"0","1","k","0","9.0","30"\n"1","1","k","0","9.0","50"\n'
    text = f'{HEADER},"gpu__dram_throughput{PEAK}"\n{rows}'
    (kernel,) = read_ncu(write(tmp_path, text))
    assert (kernel.ns, kernel.sm, kernel.dram) == (None, None, 40.0)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no csv",
        f'{HEADER},"Section Name","Metric Name","Metric Unit","Metric Value"\n',
        f'{HEADER},"dram__bytes.sum"\n',
    ],
)
def test_what_is_not_ncus_raw_page_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"counters\.csv"):
        read_ncu(write(tmp_path, text))


@pytest.mark.parametrize(
    ("sm", "memory", "limit"),
    [("80", "30", "compute"), ("30", "80", "memory"), ("59", "50", "latency"), ("80", "n/a", "")],
)
def test_what_limits_a_kernel(sm: str, memory: str, limit: str, tmp_path: Path) -> None:
    names = f'"sm__throughput{PEAK}","gpu__compute_memory_throughput{PEAK}"'
    (kernel,) = read_ncu(
        write(tmp_path, f'{HEADER},{names}\n"","","","","","%","%"\n"0","1","k","0","9.0","{sm}","{memory}"\n')
    )
    assert (kernel.limit, kernel.memory) == (limit, None if memory == "n/a" else float(memory))


ELEMENTWISE = "vectorized_elementwise_kernel<4,FillFunctor<float>,array<char*,1>>"


@pytest.mark.parametrize(
    ("ncus", "cuptis", "both"),
    [
        (
            "void at::native::vectorized_elementwise_kernel<(int)4, at::native::FillFunctor<float>, "
            "std::array<char *, (unsigned long)1>>(int, T2, T3)",
            "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1ul> >"
            "(int, at::native::FillFunctor<float>, std::array<char*, 1ul>)",
            ELEMENTWISE,
        ),
        (
            "void (anonymous namespace)::k<(bool)1>(T1)",
            "void (anonymous namespace)::k<1>(int)",
            "k<1>",
        ),
        ("triton_poi_fused_0", "triton_poi_fused_0", "triton_poi_fused_0"),
        ("f<int (*)(int)>(int)", "f<int (*)(int)>(int)", "f<int(*)(int)>"),
    ],
)
def test_one_kernel_under_both_spellings(ncus: str, cuptis: str, both: str) -> None:
    assert same_name(ncus) == same_name(cuptis) == both


def test_rooflines_of_the_ops_beside_ncus_counters() -> None:
    def op(name: str, ns: int, of_peak: float | None, *kernels: str) -> OpRoofline:
        numbers = {"ns": ns, "count": 1, "flops": 1, "bytes": 1}
        return OpRoofline(op=name, shape="", dtype="", limit="bandwidth", of_peak=of_peak, kernels=kernels, **numbers)

    rows = (op("mul", 300, 0.5, "k<4>(int)"), op("add", 100, 0.1, "k<4>(int)"), op("mm", 9, None, "gemm"))
    rank = RankTrace(
        source="", rank=0, device_name="", events=0, step_ms=1.0, roofline=rows,
        window=Window(start_ns=0, end_ns=1, found_by="none"),
    )  # fmt: skip
    kernels = [KernelCounters(name=name, calls=1) for name in ("void k<(int)4>(T1)", "gemm")]
    k, gemm = with_rooflines(kernels, [rank])
    assert (k.op, k.of_peak) == ("mul", pytest.approx(0.4))
    assert (gemm.op, gemm.of_peak) == ("", None)


def test_perf_counters(tmp_path: Path) -> None:
    stat = read_perf(write(tmp_path, PERF))
    assert stat.counters["cycles"] == 1500 and stat.counters["page-faults"] == 12563
    assert stat.instructions_per_cycle == 2.0
    assert (stat.cpus, stat.running, stat.unknown) == (0.324, 55.5, ("branches", "branch-misses"))


@pytest.mark.parametrize(
    "text",
    ["", "a,b\n", "nan,,cycles,1,100.00,,\n", '{"event": 5}\n', "\0,,\0,,,,\n", "<not supported>,,cycles,0,100,,\n"],
)
def test_what_has_no_counters_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"counters\.csv"):
        read_perf(write(tmp_path, text))
