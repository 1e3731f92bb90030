"""The type of CPU, as far as onnxruntime's choice of kernels goes."""

from __future__ import annotations

import platform
from pathlib import Path

# What the kernels of onnxruntime ask for (MLAS, x86-64 and Arm). Anything else that a CPU can do
# does not change a result or a packed layout.
_KERNEL_FLAGS = (
    *("sse4_1", "avx", "avx2", "fma", "f16c", "avx_vnni", "avx_vnni_int8", "avx_ne_convert"),
    *("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx512_bf16"),
    *("avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
    *("asimd", "asimddp", "asimdhp", "fphp", "i8mm", "bf16", "sve", "sve2", "sme", "sme2"),
)
_CPUINFO = Path("/proc/cpuinfo")


def cpu_type(cpuinfo: Path = _CPUINFO) -> str:
    """One line that two machines share when they run the same kernels.

    Machine name, the flags that select kernels, and the model too where flags do not tell all (Arm,
    or no /proc/cpuinfo).
    """
    machine = platform.machine()
    try:
        text = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{machine} {platform.processor()}".strip()
    stated: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            stated.setdefault(key.strip(), value.strip())
    flags = set((stated.get("flags") or stated.get("Features") or "").split())
    parts = [machine, *(flag for flag in _KERNEL_FLAGS if flag in flags)]
    if "CPU part" in stated:
        parts.append(f"part={stated.get('CPU implementer', '')}/{stated['CPU part']}")
    return " ".join(parts)
