"""One call that turns a folder into a loaded model, whatever its layout."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

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
from homespecd.bundle.manifest import (
    PORTABLE_FILE,
    Manifest,
    graph_file,
    is_bundle,
    read_manifest,
)
from homespecd.errors import BundleError, ModelError
from homespecd.runtime.concatenated import ConcatenatedModel
from homespecd.runtime.kernels import kernels_invariant
from homespecd.runtime.lanes import LanesModel
from homespecd.runtime.layouts import layout_elsewhere
from homespecd.runtime.prepack import best_graphs, check_weights
from homespecd.runtime.providers import ProviderRequest
from homespecd.runtime.session import Session, load_onnxruntime, open_session
from homespecd.runtime.shared_buffer import SharedBufferModel
from homespecd.runtime.splits import is_width_invariant
from homespecd.runtime.step import Model, ModelSpec
from homespecd.runtime.threads import usable_threads
from homespecd.runtime.together import open_together

LanesGraphs = dict[int, tuple[Session, CacheTensors]]

_log = logging.getLogger(__name__)

# For a graph whose files do not say how far its positions go.
_UNDECLARED_CONTEXT = 1 << 20


def open_model(
    path: Path,
    *,
    variant: str = "",
    provider: ProviderRequest | None = None,
    threads: int = 0,
    context: int | None,
    lanes: int,
) -> Model:
    """Load the model at `path`, a folder or one .onnx file.

    Args:
        variant: which graph, where a folder holds several.
        provider: where it is asked to run; None = wherever is best.
        threads: 0 = what this process may use.
        context: positions a cache may hold; None = all that the model declares.
        lanes: sequences that one step should be able to carry; a layout without lanes has one.

    Raises:
        BundleError: nothing usable there. ValueError: `threads` is out of bounds.
        ModelError: it cannot be loaded, or not with this provider or this context.
    """
    files = find_graphs(path, variant)
    request = provider or ProviderRequest()
    spec = ModelSpec(
        vocab_size=0,
        context=_context(path, context),
        lanes=lanes,
        width_invariant=False,
        logits_last_only=False,
        requested_provider=request.name,
        provider="",
        threads=usable_threads(threads),
        weights_bytes=0,
        kv_bytes_per_token=0,
    )
    if isinstance(files, LanesFiles):
        if is_bundle(path):
            return _open_bundle(path, spec, request)
        return _open_lanes(files, spec, request)
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


def _open_bundle(path: Path, spec: ModelSpec, request: ProviderRequest) -> Model:
    """A bundle has graphs for more than one kind of provider; the CPU has the last word."""
    manifest = read_manifest(path)
    choice = layout_elsewhere(request, head_dim=manifest.head_dim)
    if choice is None:
        return _open_packed(path, manifest, spec, request)
    check_weights(path, manifest)
    spec = replace(spec, layout_reason=choice.reason)
    portable = path / PORTABLE_FILE
    here = ProviderRequest("cpu")
    if choice.layout is Layout.CONCATENATED:
        if not portable.is_file():
            problem = f"{choice.reason}, and this bundle has no graph without it"
            if request.strict:
                raise ModelError(problem, where=str(path), hint="import the model again")
            return _open_packed(
                path, manifest, spec, here, reason=f"{problem}: import the model again"
            )
        session = open_session(portable, provider=request, threads=spec.threads)
        placement = session.placement
        if placement.provider != "cpu":
            described = replace(_placed(spec, session), weights_bytes=stored_bytes(portable))
            return ConcatenatedModel(session, _recognise(session), described)
        session.close()
    else:
        plain = {count: path / graph_file(count) for count in manifest.lanes}
        graphs = _lanes_graphs(plain, spec, request, optimised=False)
        placement = graphs[min(graphs)][0].placement
        if placement.provider != "cpu":
            return _measured(graphs, _described(spec, graphs))
        for session, _ in graphs.values():
            session.close()
    return _open_packed(path, manifest, spec, here, reason=placement.reason)


def _open_packed(
    path: Path, manifest: Manifest, spec: ModelSpec, request: ProviderRequest, *, reason: str = ""
) -> LanesModel:
    """A bundle on the CPU: its packed weights if they can be had, its promise of invariance if this
    machine's kernels keep it (disks move between machines)."""
    best = best_graphs(path, manifest)
    if not best.packed:
        _log.warning("%s: weights are not shared or mapped: %s", path, best.reason)
    graphs = _lanes_graphs(best.files, spec, request, optimised=best.packed)
    invariant = manifest.width_invariant and kernels_invariant(manifest, threads=spec.threads)
    described = replace(_described(spec, graphs), width_invariant=invariant, layout_reason="")
    return LanesModel(
        graphs, replace(described, provider_reason=reason or described.provider_reason)
    )


def _open_lanes(files: LanesFiles, spec: ModelSpec, request: ProviderRequest) -> LanesModel:
    """Lanes graphs without a manifest: nothing is promised."""
    graphs = _lanes_graphs(files.graphs, spec, request, optimised=False)
    return _measured(graphs, _described(spec, graphs))


def _measured(graphs: LanesGraphs, spec: ModelSpec) -> LanesModel:
    invariant = is_width_invariant(LanesModel(graphs, spec))
    return LanesModel(graphs, replace(spec, width_invariant=invariant))


def _lanes_graphs(
    files: Mapping[int, Path], spec: ModelSpec, request: ProviderRequest, *, optimised: bool
) -> LanesGraphs:
    # The smallest graph that serves all lanes asked for, and the ones below it for quieter times.
    largest = min((n for n in files if n >= spec.lanes), default=max(files))
    counts = sorted(n for n in files if n <= largest)
    sessions = open_together(
        [files[count] for count in counts],
        provider=request,
        threads=spec.threads,
        optimised=optimised,
    )
    graphs: LanesGraphs = {}
    for count, session in zip(counts, sessions, strict=True):
        tensors = _recognise(session)
        if tensors.lanes != count or tensors.layout is not Layout.LANES:
            raise BundleError(
                f"not a graph of {count} lanes, as its name says", where=str(session.graph)
            )
        graphs[count] = (session, tensors)
    return graphs


def _described(spec: ModelSpec, graphs: LanesGraphs) -> ModelSpec:
    largest = max(graphs)
    session, _ = graphs[largest]
    width = next(one.shape[-1] for one in session.outputs if one.name == "logits")
    if not isinstance(width, int):
        raise BundleError("the width of the logits is not fixed", where=str(session.graph))
    return replace(
        _placed(spec, session),
        vocab_size=width,
        lanes=min(spec.lanes, largest),
        weights_bytes=stored_bytes(*(one.graph for one, _ in graphs.values())),
    )


def _open_decoder(
    files: DecoderFiles, spec: ModelSpec, request: ProviderRequest
) -> ConcatenatedModel:
    graphs = [files.graph, *([files.first] if files.first else ())]
    session, *others = open_together(graphs, provider=request, threads=spec.threads)
    first = others[0] if others else None
    tensors = _recognise(session)
    if tensors.layout is not Layout.CONCATENATED:
        raise BundleError("a graph with lanes outside a bundle", where=str(files.graph))
    spec = replace(_placed(spec, session), weights_bytes=stored_bytes(*graphs))
    if files.shared_buffer:
        return SharedBufferModel(session, tensors, spec)
    return ConcatenatedModel(session, tensors, spec, first=first)


def _recognise(session: Session) -> CacheTensors:
    try:
        return recognise(session.inputs, session.outputs)
    except BundleError as error:
        raise BundleError(error.message, where=str(session.graph), hint=error.hint) from error


def _placed(spec: ModelSpec, session: Session) -> ModelSpec:
    placement, tensors = session.placement, _recognise(session)
    return replace(
        spec,
        provider=placement.provider,
        provider_reason=placement.reason,
        device=placement.device,
        share_elsewhere=placement.share_elsewhere,
        operators_elsewhere=placement.operators_elsewhere,
        layout=tensors.layout.value,
        kv_bytes_per_token=tensors.bytes_per_token,
        versions={"onnxruntime": load_onnxruntime().__version__},
    )
