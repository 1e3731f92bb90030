"""Opening models: providers told truthfully, broken files named, limits checked."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from homespecd.bundle.manifest import KernelReport, Manifest, PartPrecision
from homespecd.errors import BundleError, ModelError
from homespecd.runtime.open import open_model
from homespecd.runtime.providers import ProviderRequest
from homespecd.runtime.session import load_error, load_onnxruntime, open_session, run_error
from homespecd.runtime.step import Rows
from tests import tiny_lanes
from tests.oracle import Oracle, Toy, encode
from tests.tiny_onnx import make_toy

ROOT = Path(__file__).parents[2]
THREADS = Path("/proc/self/task")


def opened(folder: Path, context: int = 64, lanes: int = 1) -> None:
    open_model(folder, threads=1, context=context, lanes=lanes).close()


# --- providers (what is decided is in test_providers) ---


def test_a_provider_that_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy")
    cuda = ProviderRequest("cuda")
    model = open_model(folder, provider=cuda, threads=1, context=64, lanes=1)
    assert model.spec.requested_provider == "cuda"
    assert model.spec.provider == "cpu"
    assert "CUDAExecutionProvider is not in the installed" in model.spec.provider_reason
    model.close()


def test_a_required_provider_that_is_not_there_fails(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy")
    cuda = ProviderRequest("cuda", required=True)
    with pytest.raises(ModelError, match="provider cuda is required, but CUDA"):
        open_model(folder, provider=cuda, threads=1, context=64, lanes=1)


# --- files ---


def test_a_truncated_model_fails_alone_and_recovers(tmp_path: Path) -> None:
    graph = make_toy(tmp_path / "toy") / "model.onnx"
    whole = graph.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"not a graph" * 99):
        graph.write_bytes(broken)
        with pytest.raises(ModelError, match="not an ONNX model, or one that was cut off"):
            opened(graph.parent)
    graph.write_bytes(whole)
    opened(graph.parent)


def test_external_data_missing_or_short_is_named(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy", Toy(external_data=True, ballast_bytes=4096))
    data = folder / "model.onnx_data"
    whole = data.read_bytes()
    data.write_bytes(whole[:200])
    with pytest.raises(ModelError, match="the external data file is too short"):
        opened(folder)
    data.unlink()
    with pytest.raises(ModelError, match=r"the external data file model\.onnx_data is missing"):
        opened(folder)
    data.write_bytes(whole)
    opened(folder)


@pytest.mark.parametrize("layout", ["single", "lanes"])
def test_external_data_is_beside_the_graph_whatever_the_working_directory(
    tmp_path: Path, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = Toy(external_data=True, layout=layout)
    make_toy(tmp_path / "toy", toy)
    monkeypatch.chdir(tmp_path)
    model = open_model(Path("toy"), threads=1, context=64, lanes=1)
    monkeypatch.chdir("/")
    (logits,) = model.step([Rows(model.new_cache(), encode("ab"), 1)])
    assert logits.tolist() == [Oracle(toy).logits(encode("ab"))]
    model.close()


def test_errors_of_the_library_become_sentences(tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    for text in ("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc", ""):
        error = RuntimeError(text) if text else MemoryError()
        assert load_error(error, graph).out_of_memory
        assert run_error(error, graph).out_of_memory
    for text in (
        "[ONNXRuntimeError] : 1 : FAIL : odd op.\nTrace",
        "/src/state.cc:1053 std::shared_ptr<Factory> Create(const Options&, const Map&) odd op",
    ):
        other = load_error(RuntimeError(text), graph)
        assert str(other) == f"{graph}: onnxruntime cannot load it: odd op"
        assert not other.out_of_memory


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (
            "CUDA failure 999: unknown error ; GPU=0 ; hostname=nas ; expr=cudaDeviceSynchronize()",
            1,
        ),
        ("CUDA failure 719: unspecified launch failure ; GPU=0", 1),
        ("CUDA failure 2: out of memory ; GPU=0", 0),
        ("Non-zero status code. 887A0005 The GPU device instance has been suspended.", 1),
        ("Exception from graph.cpp: clFlush, error code: -2 CL_DEVICE_NOT_AVAILABLE", 1),
        ("ZE_RESULT_ERROR_DEVICE_LOST, code 0x70000001 - device hung, reset", 1),
        ("Got invalid dimensions for input: past_lengths", 0),
    ],
)
def test_a_lost_device_is_told_from_a_failed_step(text: str, lost: int) -> None:
    assert run_error(RuntimeError(text), Path("model.onnx")).device_lost == bool(lost)


def test_a_missing_file_and_a_foreign_graph(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="there is no such file"):
        open_session(tmp_path / "gone.onnx", provider=ProviderRequest(), threads=1)
    folder = make_toy(tmp_path / "toy", Toy(layout="two_file"))
    (folder / "decoder_with_past_model.onnx").unlink()
    with pytest.raises(BundleError, match=r"decoder_model\.onnx: a graph of an unknown layout"):
        opened(folder)


# --- limits ---


@pytest.mark.parametrize("layout", ["single", "lanes"])
def test_a_context_past_the_model_is_refused_with_both_numbers(tmp_path: Path, layout: str) -> None:
    folder = make_toy(tmp_path / "toy", Toy(layout=layout, context=128))
    with pytest.raises(ModelError, match=r"context of 129 was asked for.*positions for 128"):
        opened(folder, context=129)
    for wanted in (128, None):
        model = open_model(folder, threads=1, context=wanted, lanes=1)
        assert model.spec.context == 128
        model.close()


def test_a_lanes_graph_under_a_wrong_name_is_refused(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy", Toy(layout="lanes"))
    (folder / "model.lanes2.onnx").replace(folder / "model.lanes1.onnx")
    with pytest.raises(BundleError, match=r"lanes1\.onnx: not a graph of 1 lanes"):
        opened(folder)


def test_what_is_reported(tmp_path: Path) -> None:
    toy = Toy(layout="lanes", external_data=True, ballast_bytes=8000)
    folder = make_toy(tmp_path / "toy", toy)
    model = open_model(folder, threads=1, context=64, lanes=2)
    spec = model.spec
    assert spec.versions == {"onnxruntime": load_onnxruntime().__version__}
    assert (spec.lanes, spec.vocab_size, spec.width_invariant) == (2, toy.width, True)
    loaded = [file for n in (1, 2) for file in folder.glob(f"model.lanes{n}.onnx*")]
    assert spec.weights_bytes == sum(file.stat().st_size for file in loaded)
    assert spec.kv_bytes_per_token == 2 * toy.layers * toy.heads * toy.head_dim * 4
    model.close()


def test_a_lanes_graph_that_is_not_causal_is_not_width_invariant(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy", Toy(layout="lanes", not_causal=True))
    model = open_model(folder, threads=1, context=64, lanes=1)
    assert not model.spec.width_invariant
    model.close()


# --- bundles ---


def make_bundle(folder: Path, *, width_invariant: bool = True) -> Path:
    """The tiny lanes graphs with the manifest that an import would have written."""
    tiny_lanes.make_lanes(folder)
    Manifest(
        name="tiny",
        architecture="llama",
        precision="int4",
        layers=tiny_lanes.LAYERS,
        heads=tiny_lanes.HEADS,
        kv_heads=tiny_lanes.KV_HEADS,
        head_dim=tiny_lanes.HEAD_DIM,
        hidden=tiny_lanes.HIDDEN,
        feed_forward=tiny_lanes.HIDDEN,
        vocab=tiny_lanes.VOCAB,
        tokenizer_vocab=tiny_lanes.VOCAB,
        context=tiny_lanes.POSITIONS,
        lanes=(1, 2, 4),
        bos_id=None,
        add_bos=False,
        eos_ids=(0,),
        parts=(PartPrecision("mlp.down", "int4", tiny_lanes.BLOCK, "Q4_0", kept=True, layers=2),),
        kernels=KernelReport(cpu="", blocks={}, invariant={}),
        width_invariant=width_invariant,
        source_file="",
        source_sha256="",
        licence="",
        files={},
        digest="tiny",
        weights_bytes=1,
    ).write(folder)
    return folder


def answers(folder: Path) -> list[list[float]]:
    model = open_model(folder, threads=1, context=64, lanes=2)
    one, other = model.new_cache(), model.new_cache()
    results = model.step([Rows(one, [5, 6, 7], 0), Rows(other, [8, 9], 0)])
    found = [row for logits in results for row in logits.tolist()]
    model.close()
    return found


def test_a_bundle_is_packed_once_and_says_the_same(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    plain = answers(tiny_lanes.make_lanes(tmp_path / "plain"))
    assert answers(bundle) == plain
    made = {file.name: file.stat().st_mtime_ns for file in (bundle / "packed").iterdir()}
    assert "model.lanes1.onnx" in made
    assert answers(bundle) == plain
    again = {file.name: file.stat().st_mtime_ns for file in (bundle / "packed").iterdir()}
    assert again == made


def test_a_bundle_that_cannot_be_packed_is_served_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise BundleError("no space left")

    monkeypatch.setattr("homespecd.runtime.prepack.pack_bundle", full)
    bundle = make_bundle(tmp_path / "bundle")
    assert answers(bundle) == answers(tiny_lanes.make_lanes(tmp_path / "plain"))
    assert "weights are not shared or mapped: no space left" in caplog.text


@pytest.mark.parametrize(("promised", "kept"), [(True, True), (True, False), (False, True)])
def test_a_bundle_is_width_invariant_if_promised_and_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, promised: bool, kept: bool
) -> None:
    monkeypatch.setattr("homespecd.runtime.open.kernels_invariant", lambda *_, **__: kept)
    folder = make_bundle(tmp_path / "bundle", width_invariant=promised)
    model = open_model(folder, threads=1, context=64, lanes=1)
    assert model.spec.width_invariant == (promised and kept)
    model.close()


def test_a_bundle_with_a_broken_manifest_is_refused(tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path / "bundle")
    (bundle / "homespec.json").write_text('{"format": 99}')
    with pytest.raises(BundleError, match="the manifest's format is 99"):
        opened(bundle)


# --- being a good neighbour ---


@pytest.mark.parametrize("layout", ["single", "lanes"])
def test_closing_gives_the_memory_back_at_once(tmp_path: Path, layout: str) -> None:
    """Without waiting for a garbage collection: a draft is closed because memory is short."""
    ballast_bytes = 48 * 1024 * 1024
    folder = make_toy(tmp_path / "toy", Toy(layout=layout, ballast_bytes=ballast_bytes))
    # In a process of its own: here, what earlier tests freed would be filled first, unseen.
    program = (
        "import gc, psutil\n"
        "from pathlib import Path\n"
        "from homespecd.runtime.open import open_model\n"
        "from homespecd.runtime.step import Rows\n"
        "resident = lambda: psutil.Process().memory_info().rss\n"
        "gc.disable()\n"
        "before = resident()\n"
        f"model = open_model(Path({str(folder)!r}), threads=1, context=64, lanes=1)\n"
        "cache = model.new_cache()\n"
        "model.step([Rows(cache, [65, 66], 0)])\n"
        "loaded = resident()\n"
        "model.close()\n"
        "print(loaded - before, loaded - resident())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True
    )
    taken, given_back = map(int, done.stdout.split())
    assert taken > 0.9 * ballast_bytes
    assert given_back > 0.7 * ballast_bytes


def test_the_pool_does_not_spin_between_steps(tmp_path: Path) -> None:
    """Between steps, an idle model leaves the cores to others."""
    folder = tiny_lanes.make_lanes(tmp_path, counts=(1,))
    others = set(THREADS.iterdir())
    model = open_model(folder, threads=2, context=tiny_lanes.POSITIONS, lanes=1)
    cache = model.new_cache()
    idle_ns = 0
    pool: set[Path] = set()
    for _ in range(15):
        cache.rewind_to(0)
        model.step([Rows(cache, [1] * 256, 0)])
        pool = set(THREADS.iterdir()) - others
        before_ns = ran_ns(pool)
        time.sleep(0.02)
        idle_ns += ran_ns(pool) - before_ns
    model.close()
    assert pool
    # Of the processor, not of the clock: one that spins has all it can get.
    assert idle_ns < 15 * 2_000_000


def ran_ns(threads: set[Path]) -> int:
    """Time on a processor; the kernel's own count, which knows nanoseconds."""
    return sum(int((one / "schedstat").read_text().split()[0]) for one in threads)


def test_loading_and_stepping_write_nothing_and_telemetry_is_off(tmp_path: Path) -> None:
    folder = make_toy(tmp_path / "toy", Toy(fail_at=3))
    program = (
        "import sys, os\n"
        "from pathlib import Path\n"
        "from homespecd.errors import ModelError\n"
        "from homespecd.runtime.open import open_model\n"
        "from homespecd.runtime.step import Rows\n"
        "assert 'onnxruntime' not in sys.modules\n"
        f"model = open_model(Path({str(folder)!r}), threads=2, context=64, lanes=1)\n"
        "cache = model.new_cache()\n"
        "model.step([Rows(cache, [1, 2, 3], 0)])\n"
        "try:\n    model.step([Rows(cache, [1], 0)])\n"
        "except ModelError: print('failed as it should')\n"
        "assert os.environ['ORT_DISABLE_TELEMETRY'] == '1'\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("ORT_")}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "failed as it should\n", "")
