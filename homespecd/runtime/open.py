"""One call that turns a folder into a loaded model, whatever its layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from homespecd.bundle.external_data import stored_bytes
from homespecd.bundle.layout import (
    CacheTensors,
    DecoderFiles,
    LanesFiles,
    Layout,
    declared_context,
    find_graphs,
    recognise,
)
from homespecd.bundle.manifest import is_bundle, read_manifest
from homespecd.errors import BundleError, ModelError
from homespecd.runtime.concatenated import ConcatenatedModel
from homespecd.runtime.lanes import LanesModel
from homespecd.runtime.session import ProviderRequest, Session, load_onnxruntime, open_session
from homespecd.runtime.shared_buffer import SharedBufferModel
from homespecd.runtime.splits import is_width_invariant
from homespecd.runtime.step import Model, ModelSpec
from homespecd.runtime.threads import usable_threads

# For a graph whose files do not say how far its positions go.
_UNDECLARED_CONTEXT = 1 << 20


def open_model(
    path: Path,
    *,
    variant: str = "",
    provider: str = "auto",
    provider_options: Mapping[str, Any] | None = None,
    provider_required: bool = False,
    threads: int = 0,
    context: int | None,
    lanes: int,
) -> Model:
    """Load the model at `path`, a folder or one .onnx file.

    Args:
        variant: which graph, where a folder holds several.
        threads: 0 = what this process may use.
        context: positions a cache may hold; None = all that the model declares.
        lanes: sequences that one step should be able to carry; a layout without lanes has one.

    Raises:
        BundleError: nothing usable there. ValueError: `threads` is out of bounds.
        ModelError: it cannot be loaded, or not with this provider or this context.
    """
    files = find_graphs(path, variant)
    request = ProviderRequest(provider, dict(provider_options or {}), provider_required)
    spec = ModelSpec(
        vocab_size=0,
        context=_context(path, context),
        lanes=lanes,
        width_invariant=False,
        logits_last_only=False,
        requested_provider=provider,
        provider="",
        threads=usable_threads(threads),
        weights_bytes=0,
        kv_bytes_per_token=0,
    )
    if isinstance(files, LanesFiles):
        return _open_lanes(path, files, spec, request)
    return _open_decoder(files, spec, request)


def _context(path: Path, wanted: int | None) -> int:
    declared = (declared_context(path) if path.is_dir() else None) or _UNDECLARED_CONTEXT
    if wanted is not None and wanted > declared:
        raise ModelError(
            f"a context of {wanted} was asked for, and the model has positions for {declared}",
            where=str(path),
            hint=f"set context to {declared} or less",
        )
    return wanted or declared


def _open_lanes(
    path: Path, files: LanesFiles, spec: ModelSpec, request: ProviderRequest
) -> LanesModel:
    # The smallest graph that serves all lanes asked for, and the ones below it for quieter times.
    largest = next((n for n in files.graphs if n >= spec.lanes), max(files.graphs))
    graphs: dict[int, tuple[Session, CacheTensors]] = {}
    for count in (n for n in files.graphs if n <= largest):
        session = open_session(files.graphs[count], provider=request, threads=spec.threads)
        graphs[count] = (session, _recognise(session))
        if graphs[count][1].lanes != count or graphs[count][1].layout is not Layout.LANES:
            raise BundleError(
                f"not a graph of {count} lanes, as its name says", where=str(session.graph)
            )
    session, tensors = graphs[largest]
    width = next(one.shape[-1] for one in session.outputs if one.name == "logits")
    if not isinstance(width, int):
        raise BundleError("the width of the logits is not fixed", where=str(session.graph))
    spec = replace(
        _placed(spec, session, tensors),
        vocab_size=width,
        lanes=min(spec.lanes, largest),
        weights_bytes=stored_bytes(*(files.graphs[count] for count in graphs)),
    )
    if is_bundle(path):
        invariant = read_manifest(path).width_invariant
    else:
        invariant = is_width_invariant(LanesModel(graphs, spec))
    return LanesModel(graphs, replace(spec, width_invariant=invariant))


def _open_decoder(
    files: DecoderFiles, spec: ModelSpec, request: ProviderRequest
) -> ConcatenatedModel:
    session = open_session(files.graph, provider=request, threads=spec.threads)
    first = None
    graphs = [files.graph]
    if files.first:
        first = open_session(files.first, provider=request, threads=spec.threads)
        graphs.append(files.first)
    tensors = _recognise(session)
    if tensors.layout is not Layout.CONCATENATED:
        raise BundleError("a graph with lanes outside a bundle", where=str(files.graph))
    spec = replace(_placed(spec, session, tensors), weights_bytes=stored_bytes(*graphs))
    if files.shared_buffer:
        return SharedBufferModel(session, tensors, spec)
    return ConcatenatedModel(session, tensors, spec, first=first)


def _recognise(session: Session) -> CacheTensors:
    try:
        return recognise(session.inputs, session.outputs)
    except BundleError as error:
        raise BundleError(error.message, where=str(session.graph), hint=error.hint) from error


def _placed(spec: ModelSpec, session: Session, tensors: CacheTensors) -> ModelSpec:
    return replace(
        spec,
        provider=session.placement.provider,
        provider_reason=session.placement.reason,
        kv_bytes_per_token=tensors.bytes_per_token,
        versions={"onnxruntime": load_onnxruntime().__version__},
    )
