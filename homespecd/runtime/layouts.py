"""Which of a bundle's graphs a provider gets: the lanes graph where it has their attention.

The lanes graph stands on GroupQueryAttention over float32 buffers shared by past and present. A
provider without it would hand every layer to the CPU and wait for it, so it gets the portable graph
instead, which has one lane. Whether a provider has it is tried, on one operator, in milliseconds:
loading a whole model only to see it refused takes seconds.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from homespecd.bundle.layout import Layout
from homespecd.runtime.backend import Backend, OnnxRuntime
from homespecd.runtime.kernels import attention_graph
from homespecd.runtime.providers import ProviderRequest, choose
from homespecd.runtime.session import load_onnxruntime, open_session


@dataclass(frozen=True)
class LayoutChoice:
    """The layout to load for providers other than the CPU, and why, "" for the usual one."""

    layout: Layout
    reason: str = ""


def layout_elsewhere(
    request: ProviderRequest, *, head_dim: int, backend: Backend | None = None
) -> LayoutChoice | None:
    """The layout for the provider of this request; None = only the CPU is in question.

    Args:
        backend: where sessions come from; None = onnxruntime.

    Raises:
        ModelError: no such provider, or options that it does not have.
    """
    backend = backend or OnnxRuntime(load_onnxruntime())
    choice = choose(request, backend.listed(), openvino_devices=backend.openvino_devices())
    elsewhere = [one.provider for one in choice.attempts if one.provider != "cpu"]
    if not elsewhere:
        return None
    # What is required of the model is not required of the trial, and it is not worth a cache.
    trial = replace(request, required=False, cache_dir="")
    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(attention_graph(head_dim=head_dim))
        file.flush()
        session = open_session(Path(file.name), provider=trial, threads=1, backend=backend)
    placement = session.placement
    session.close()
    if placement.provider != "cpu":
        return LayoutChoice(Layout.LANES)
    names = " and ".join(elsewhere)
    return LayoutChoice(
        Layout.CONCATENATED, f"{names} cannot run GroupQueryAttention, which lanes need"
    )
