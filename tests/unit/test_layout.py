"""Which file is the model, and what its inputs and outputs say it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from homespecd.bundle.external_data import external_files, stored_bytes
from homespecd.bundle.layout import (
    CacheTensors,
    DecoderFiles,
    LanesFiles,
    Layout,
    TensorSpec,
    declared_context,
    find_graphs,
    recognise,
)
from homespecd.errors import BundleError
from tests.oracle import Toy
from tests.tiny_onnx import make_toy


def folder_with(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


PAIR = ("decoder_model.onnx", "decoder_with_past_model.onnx")
COMMUNITY = ("onnx/model.onnx", "onnx/model_fp16.onnx", "onnx/model_q4.onnx", "config.json")


@pytest.mark.parametrize(
    ("names", "variant", "graph", "first"),
    [
        (("model.onnx", "config.json"), "", "model.onnx", None),
        (("gpt2.onnx",), "", "gpt2.onnx", None),
        (("gpt2.onnx",), "gpt2", "gpt2.onnx", None),
        (("onnx/model_q4.onnx",), "", "onnx/model_q4.onnx", None),
        (COMMUNITY, "q4", "onnx/model_q4.onnx", None),
        (COMMUNITY, "fp32", "onnx/model.onnx", None),
        (COMMUNITY, "model.onnx", "onnx/model.onnx", None),
        (COMMUNITY, "onnx/model_fp16.onnx", "onnx/model_fp16.onnx", None),
        (PAIR, "", PAIR[1], PAIR[0]),
        ((*PAIR, "decoder_model_merged.onnx"), "", "decoder_model_merged.onnx", None),
        ((*PAIR, "decoder_model_merged.onnx"), PAIR[0], PAIR[1], PAIR[0]),
        (("decoder_model_merged_q4.onnx",), "q4", "decoder_model_merged_q4.onnx", None),
        (("decoder_model.onnx",), "", "decoder_model.onnx", None),
    ],
)
def test_the_graph_is_found(
    tmp_path: Path, names: tuple[str, ...], variant: str, graph: str, first: str | None
) -> None:
    folder = folder_with(tmp_path, *names)
    expected = DecoderFiles(folder / graph, folder / first if first else None)
    assert find_graphs(folder, variant) == expected


def test_a_graph_file_itself(tmp_path: Path) -> None:
    file = folder_with(tmp_path, "a.onnx", "b.onnx") / "a.onnx"
    assert find_graphs(file) == DecoderFiles(file)


def test_lanes_graphs(tmp_path: Path) -> None:
    folder = folder_with(
        tmp_path, "model.lanes4.onnx", "model.lanes1.onnx", "weights.bin", "homespec.json"
    )
    files = find_graphs(folder)
    assert files == LanesFiles({1: folder / "model.lanes1.onnx", 4: folder / "model.lanes4.onnx"})
    with pytest.raises(BundleError, match="variant 'q4' asked for, but this bundle holds one"):
        find_graphs(folder, "q4")


def test_genai_folder(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, "text.onnx", "other.onnx")
    config = {
        "model": {"decoder": {"filename": "text.onnx"}, "context_length": 2048},
        "search": {"past_present_share_buffer": True},
    }
    (folder / "genai_config.json").write_text(json.dumps(config))
    assert find_graphs(folder) == DecoderFiles(folder / "text.onnx", shared_buffer=True)
    assert declared_context(folder) == 2048
    config["model"] = {"decoder": {"filename": "gone.onnx"}}
    (folder / "genai_config.json").write_text(json.dumps(config))
    with pytest.raises(BundleError, match=r"does not name a file in the folder: 'gone\.onnx'"):
        find_graphs(folder)


@pytest.mark.parametrize(
    ("names", "variant", "message"),
    [
        (("readme.md", "config.json"), "", r"holds: config\.json, readme\.md"),
        ((), "", "holds: no files"),
        (("homespec.json",), "", "lost its graphs"),
        (COMMUNITY, "", r"several .*: fp32 \(model\.onnx\), fp16 \(model_fp16\.onnx\), q4 "),
        (COMMUNITY, "q8", r"no variant 'q8' here, only: fp32 \(model\.onnx\)"),
        ((PAIR[1],), "", r"needs decoder_model\.onnx beside it"),
    ],
)
def test_what_is_wrong_with_a_folder_is_said(
    tmp_path: Path, names: tuple[str, ...], variant: str, message: str
) -> None:
    with pytest.raises(BundleError, match=message):
        find_graphs(folder_with(tmp_path, *names), variant)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="there is no such folder or file"):
        find_graphs(tmp_path / "gone")


def cache(template: str, dtype: str = "float32", layers: int = 2) -> list[TensorSpec]:
    return [
        TensorSpec(template.format(f"{layer}.{word}"), dtype, ("batch", 3, "past", 8))
        for layer in range(layers)
        for word in ("key", "value")
    ]


IDS = TensorSpec("input_ids", "int64", ("batch", "rows"))
LOGITS = TensorSpec("logits", "float32", ("batch", "rows", 100))


def test_concatenated_layout() -> None:
    inputs = [IDS, *reversed(cache("past_key_values.{}", "float16"))]
    found = recognise(inputs, [LOGITS, *cache("present.{}", "float16")])
    names = ("0.key", "0.value", "1.key", "1.value")
    assert found == CacheTensors(
        layout=Layout.CONCATENATED,
        pasts=tuple(f"past_key_values.{name}" for name in names),
        presents=tuple(f"present.{name}" for name in names),
        dtype="float16",
        kv_heads=3,
        head_dim=8,
    )
    assert found.bytes_per_token == 4 * 3 * 8 * 2


def test_layers_are_in_numeric_order() -> None:
    found = recognise(
        [IDS, *cache("past_key_values.{}", layers=11)], [LOGITS, *cache("present.{}", layers=11)]
    )
    assert [int(name.split(".")[1]) for name in found.pasts[::2]] == list(range(11))


def test_lanes_layout() -> None:
    steering = [TensorSpec(n, "int64", ()) for n in ("lane_rows", "past_lengths", "logit_rows")]
    pasts = cache("past_key_values.{}.0") + cache("past_key_values.{}.1")
    presents = cache("present.{}.0") + cache("present.{}.1")
    found = recognise([IDS, *steering, *pasts], [LOGITS, *presents])
    assert (found.layout, found.lanes) == (Layout.LANES, 2)
    assert found.pasts[0] == "past_key_values.0.key"
    with pytest.raises(BundleError, match="unknown layout"):
        recognise([IDS, *pasts], [LOGITS, *presents])
    with pytest.raises(BundleError, match="unknown layout"):
        recognise([IDS, *steering, *pasts], [LOGITS, *presents[:-1]])


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ([IDS], [LOGITS]),
        (cache("past_key_values.{}"), [LOGITS, *cache("present.{}")]),
        ([IDS, *cache("past_key_values.{}")], cache("present.{}")),
        ([IDS, *cache("past_key_values.{}")], [LOGITS]),
        ([IDS, *cache("past_key_values.{}.decoder")], [LOGITS, *cache("present.{}.decoder")]),
    ],
)
def test_an_unknown_layout_names_what_the_graph_has(
    inputs: list[TensorSpec], outputs: list[TensorSpec]
) -> None:
    with pytest.raises(BundleError, match="unknown layout") as caught:
        recognise(inputs, outputs)
    assert all(spec.name in str(caught.value) for spec in (*inputs, *outputs))


def test_a_cache_without_fixed_heads_is_refused() -> None:
    loose = [
        TensorSpec(f"past_key_values.0.{word}", "float32", ("batch", "heads", "past", 8))
        for word in ("key", "value")
    ]
    with pytest.raises(BundleError, match="no fixed heads"):
        recognise([IDS, *loose], [LOGITS, *cache("present.{}", layers=1)])


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("config.json", {"max_position_embeddings": 512}, 512),
        ("config.json", {"n_positions": 1024}, 1024),
        ("config.json", {"text_config": {"max_position_embeddings": 256}}, 256),
        ("config.json", {}, None),
        ("homespec.json", {"context": 8192}, 8192),
    ],
)
def test_declared_context(
    tmp_path: Path, name: str, content: dict[str, object], expected: int | None
) -> None:
    (tmp_path / name).write_text(json.dumps(content))
    assert declared_context(tmp_path) == expected


def test_no_files_declare_no_context_and_broken_ones_are_named(tmp_path: Path) -> None:
    assert declared_context(tmp_path) is None
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BundleError, match=r"config\.json: cannot be read as JSON"):
        declared_context(tmp_path)


def test_external_data_is_found_without_parsing(tmp_path: Path) -> None:
    plain = make_toy(tmp_path / "plain", Toy()) / "model.onnx"
    assert external_files(plain) == ()
    assert stored_bytes(plain) == plain.stat().st_size
    toy = Toy(external_data=True, ballast_bytes=4096, layout="two_file")
    folder = make_toy(tmp_path / "external", toy)
    graphs = [folder / name for name in PAIR]
    datas = [folder / f"{name}_data" for name in PAIR]
    assert [external_files(graph) for graph in graphs] == [(data,) for data in datas]
    assert stored_bytes(*graphs) == sum(file.stat().st_size for file in (*graphs, *datas))
    assert stored_bytes(graphs[0], graphs[0]) == stored_bytes(graphs[0])
    datas[1].unlink()
    datas[1].hardlink_to(datas[0])
    assert stored_bytes(*graphs) == sum(file.stat().st_size for file in (*graphs, datas[0]))
