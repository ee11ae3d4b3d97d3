"""What devices can do at most, from NVIDIA's public data, for comparing with what was achieved.

Dense rates with fp32 accumulation, as torch computes; none with sparsity: where a sheet gives a rate only so, half of
it. Boost clock, full power. fp64: without tensor cores; fp64_tensor: with. A measured record is nearer the truth:
clocks under load, power limits and copies stay 10 to 20% below the sheets.

memory_gib: the least that torch said of a card of this name, as drivers and ECC keep some of it.

Where each number was checked, and which could not be, is in `benchmarks/results/peaks.md`.
"""

import re
from pathlib import Path
from typing import Final

import msgspec

from hotlap.records.errors import UsageError, unable
from hotlap.records.files import cache_folder, write_record
from hotlap.records.peaks import Peaks

LARGEST: Final = 1 << 16
SIZE: Final = re.compile(r"(\d{1,5}(?:\.\d{1,3})?)gi?b")
LEAST_OF_SOLD: Final = 0.9
"""Of the memory that a card is sold with, torch sees at least so much."""
SAME_MEMORY: Final = 1.02


def _as(one: Peaks, name: str, memory_gbs: float, memory_gib: float) -> Peaks:
    """The same chip with other memory."""
    return msgspec.structs.replace(one, name=name, memory_gbs=memory_gbs, memory_gib=memory_gib)


_H100: Final = Peaks(
    name="H100 SXM",
    bf16=989.4,
    fp16=989.4,
    tf32=494.7,
    fp32=66.9,
    fp64=33.5,
    fp64_tensor=66.9,
    fp8=1978.9,
    memory_gbs=3350,
    memory_gib=79.1,
)
_H100_PCIE: Final = Peaks(
    name="H100 PCIe",
    bf16=756.5,
    fp16=756.5,
    tf32=378,
    fp32=51.2,
    fp64=25.6,
    fp64_tensor=51.2,
    fp8=1513,
    memory_gbs=2000,
    memory_gib=79.1,
)
_H100_NVL: Final = Peaks(
    name="H100 NVL",
    bf16=835.5,
    fp16=835.5,
    tf32=417.5,
    fp32=60,
    fp64=30,
    fp64_tensor=60,
    fp8=1670.5,
    memory_gbs=3900,
    memory_gib=93.0,
)
_A100: Final = Peaks(
    name="A100 40GB",
    bf16=312,
    fp16=312,
    tf32=156,
    fp32=19.5,
    fp64=9.7,
    fp64_tensor=19.5,
    memory_gbs=1555,
    memory_gib=39.3,
)
_B200: Final = Peaks(
    name="B200",
    bf16=2250,
    fp16=2250,
    tf32=1125,
    fp32=75,
    fp64=37,
    fp64_tensor=37,
    fp8=4500,
    memory_gbs=7700,
    memory_gib=178.3,
)
_L4: Final = Peaks(
    name="L4", bf16=121, fp16=121, tf32=60, fp32=30.3, fp64=0.47, fp8=242.5, memory_gbs=300, memory_gib=21.9
)
_L40S: Final = Peaks(
    name="L40S", bf16=362, fp16=362, tf32=183, fp32=91.6, fp64=1.43, fp8=733, memory_gbs=864, memory_gib=44.3
)
_A10G: Final = Peaks(name="A10G", bf16=70, fp16=70, tf32=35, fp32=31.5, fp64=0.49, memory_gbs=600, memory_gib=21.9)
_RTX_3090: Final = Peaks(
    name="RTX 3090", bf16=71, fp16=71, tf32=35.6, fp32=35.6, fp64=0.56, memory_gbs=936, memory_gib=23.5
)
_RTX_4090: Final = Peaks(
    name="RTX 4090",
    bf16=165.2,
    fp16=165.2,
    tf32=82.6,
    fp32=82.6,
    fp64=1.29,
    fp8=330.3,
    memory_gbs=1008,
    memory_gib=23.5,
)
_V100: Final = Peaks(name="V100 16GB SXM2", fp16=125, fp32=15.7, fp64=7.8, memory_gbs=900, memory_gib=15.7)
_V100_PCIE: Final = Peaks(name="V100 16GB PCIe", fp16=112, fp32=14, fp64=7, memory_gbs=900, memory_gib=15.7)

DEVICES: Final = (
    (r"H100( 80GB)? HBM3|H100 SXM.*", _H100),
    (r"H100 PCIe|H100( 80GB)? HBM2e", _H100_PCIE),
    (r"H100 NVL", _H100_NVL),
    (r"H200( SXM.*)?", _as(_H100, "H200 SXM", 4800, 139.7)),
    (r"H200 NVL", _as(_H100_NVL, "H200 NVL", 4800, 139.7)),
    (r"A100-(SXM4|PCIE)-40GB", _A100),
    (r"A100-SXM4-80GB", _as(_A100, "A100 80GB SXM", 2039, 79.1)),
    (r"A100 80GB PCIe", _as(_A100, "A100 80GB PCIe", 1935, 79.1)),
    (r"B200", _B200),
    (r"L4", _L4),
    (r"L40S", _L40S),
    (r"A10G", _A10G),
    (r"T4", Peaks(name="T4", fp16=65, fp32=8.1, fp64=0.25, memory_gbs=320, memory_gib=14.5)),
    (r"V100-SXM[23]-16GB(-LS)?", _V100),
    (r"V100-SXM[23]-32GB(-LS)?", _as(_V100, "V100 32GB SXM2", 900, 31.7)),
    (r"V100-PCIE-16GB", _V100_PCIE),
    (r"V100-PCIE-32GB", _as(_V100_PCIE, "V100 32GB PCIe", 900, 31.7)),
    (r"GeForce RTX 3090", _RTX_3090),
    (r"GeForce RTX 4090", _RTX_4090),
)
"""By what follows `NVIDIA ` or `Tesla ` in the name that CUDA gives, whole: a laptop's 4090 or a MIG slice is another
device."""


def peaks_of(device_name: str) -> Peaks | None:
    """Of a device by the name in the trace (`NVIDIA H100 80GB HBM3`), None where it is not known."""
    name = re.sub(r"^(NVIDIA|Tesla) ", "", device_name.strip())
    return next((peaks for pattern, peaks in DEVICES if re.fullmatch(pattern, name)), None)


def card_of(words: str) -> tuple[str, int]:
    """The card that somebody means, and its bytes: `H100-80GB`, `a100 40gb`, `H200`, or a size alone, `24GiB`.

    Of several with about the same memory it is the one with the least. Raises UsageError where it is none of the table,
    or may be one of several."""
    wanted = re.findall(r"[a-z0-9.]+", words.lower())
    sizes = [float(one[1]) for word in wanted if (one := SIZE.fullmatch(word))]
    named = {word for word in wanted if not SIZE.fullmatch(word)} - {"nvidia", "geforce", "tesla"}
    if not named and len(sizes) == 1:
        return words.strip(), int(sizes[0] * 2**30)
    known = {peaks.name: peaks.memory_gib for _, peaks in DEVICES if peaks.memory_gib is not None}
    found = {
        name: gib
        for name, gib in known.items()
        if named <= set(name.lower().split()) and all(LEAST_OF_SOLD * size <= gib <= size for size in sizes)
    }
    if not found or not named or max(found.values()) > SAME_MEMORY * min(found.values()):
        told = f"may be {', '.join(found)}" if found else f"is none of {', '.join(known)}"
        raise UsageError(f"--card {words!r} {told}; the memory of another can be given, as 24GiB")
    name = min(found, key=lambda one: found[one])
    return name, int(found[name] * 2**30)


def known_peaks(device_name: str) -> Peaks | None:
    """What `hotlap calibrate` measured on a device of this name, else the data sheet's, else None."""
    try:
        return msgspec.json.decode(_file(device_name).read_bytes()[:LARGEST], type=Peaks)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return peaks_of(device_name)


def keep(measured: Peaks) -> Path:
    """Keep a measurement for `known_peaks`; returns where. Raises RecordError."""
    file = _file(measured.name)
    with unable(f"write {file}"):
        file.parent.mkdir(parents=True, exist_ok=True)
    write_record(file, measured)
    return file


def _file(device_name: str) -> Path:
    words = re.sub(r"[^A-Za-z0-9]+", "-", device_name)[:80].strip("-") or "device"
    return cache_folder("peaks") / f"{words}.json"
