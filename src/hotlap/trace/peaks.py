"""What devices can do at most, from NVIDIA's public data, for comparing with what was achieved.

Dense rates with fp32 accumulation, as torch computes; none with sparsity: where a sheet gives a rate only so, half of
it. Boost clock, full power. fp64: without tensor cores; fp64_tensor: with. A measured record is nearer the truth:
clocks under load, power limits and copies stay 10 to 20% below the sheets.

Where each number was checked, and which could not be, is in `benchmarks/results/peaks.md`.
"""

import re
from pathlib import Path
from typing import Final

import msgspec

from hotlap.records.errors import unable
from hotlap.records.files import cache_folder, write_record
from hotlap.records.peaks import Peaks

LARGEST: Final = 1 << 16


def _as(one: Peaks, name: str, memory_gbs: float) -> Peaks:
    """The same chip with other memory."""
    return msgspec.structs.replace(one, name=name, memory_gbs=memory_gbs)


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
)
_H100_NVL: Final = Peaks(
    name="H100 NVL", bf16=835.5, fp16=835.5, tf32=417.5, fp32=60, fp64=30, fp64_tensor=60, fp8=1670.5, memory_gbs=3900
)
_A100: Final = Peaks(
    name="A100 40GB", bf16=312, fp16=312, tf32=156, fp32=19.5, fp64=9.7, fp64_tensor=19.5, memory_gbs=1555
)
_B200: Final = Peaks(
    name="B200", bf16=2250, fp16=2250, tf32=1125, fp32=75, fp64=37, fp64_tensor=37, fp8=4500, memory_gbs=7700
)
_L4: Final = Peaks(name="L4", bf16=121, fp16=121, tf32=60, fp32=30.3, fp64=0.47, fp8=242.5, memory_gbs=300)
_L40S: Final = Peaks(name="L40S", bf16=362, fp16=362, tf32=183, fp32=91.6, fp64=1.43, fp8=733, memory_gbs=864)
_A10G: Final = Peaks(name="A10G", bf16=70, fp16=70, tf32=35, fp32=31.5, fp64=0.49, memory_gbs=600)
_RTX_3090: Final = Peaks(name="RTX 3090", bf16=71, fp16=71, tf32=35.6, fp32=35.6, fp64=0.56, memory_gbs=936)
_RTX_4090: Final = Peaks(
    name="RTX 4090", bf16=165.2, fp16=165.2, tf32=82.6, fp32=82.6, fp64=1.29, fp8=330.3, memory_gbs=1008
)

DEVICES: Final = (
    (r"H100( 80GB)? HBM3|H100 SXM.*", _H100),
    (r"H100 PCIe|H100( 80GB)? HBM2e", _H100_PCIE),
    (r"H100 NVL", _H100_NVL),
    (r"H200( SXM.*)?", _as(_H100, "H200 SXM", 4800)),
    (r"H200 NVL", _as(_H100_NVL, "H200 NVL", 4800)),
    (r"A100-(SXM4|PCIE)-40GB", _A100),
    (r"A100-SXM4-80GB", _as(_A100, "A100 80GB SXM", 2039)),
    (r"A100 80GB PCIe", _as(_A100, "A100 80GB PCIe", 1935)),
    (r"B200", _B200),
    (r"L4", _L4),
    (r"L40S", _L40S),
    (r"A10G", _A10G),
    (r"T4", Peaks(name="T4", fp16=65, fp32=8.1, fp64=0.25, memory_gbs=320)),
    (r"V100-SXM[23]-\d+GB(-LS)?", Peaks(name="V100 SXM2", fp16=125, fp32=15.7, fp64=7.8, memory_gbs=900)),
    (r"V100-PCIE-\d+GB", Peaks(name="V100 PCIe", fp16=112, fp32=14, fp64=7, memory_gbs=900)),
    (r"GeForce RTX 3090", _RTX_3090),
    (r"GeForce RTX 4090", _RTX_4090),
)
"""By what follows `NVIDIA ` or `Tesla ` in the name that CUDA gives, whole: a laptop's 4090 or a MIG slice is another
device."""


def peaks_of(device_name: str) -> Peaks | None:
    """Of a device by the name in the trace (`NVIDIA H100 80GB HBM3`), None where it is not known."""
    name = re.sub(r"^(NVIDIA|Tesla) ", "", device_name.strip())
    return next((peaks for pattern, peaks in DEVICES if re.fullmatch(pattern, name)), None)


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
