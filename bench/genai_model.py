"""The same graph and weights in the form that onnxruntime-genai loads.

The one-lane graph wants row counts and lengths as inputs; genai gives an attention mask. A few
nodes in front derive the former from the latter; the body and the weights file are untouched, so
what is compared is the loop around them.
"""

from __future__ import annotations

import json
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from homespecd.bundle.manifest import Manifest


def write_genai_model(
    graph: Path, folder: Path, manifest: Manifest, *, threads: int, context: int
) -> Path:
    """Write `model.onnx` and `genai_config.json` into `folder`, which is returned."""
    model = onnx.load(str(graph), load_external_data=False)
    body = model.graph
    folder.mkdir(parents=True)
    _link_weights(body, graph.parent, folder)
    _rename_caches(body)
    nodes = [
        helper.make_node("Shape", ["input_ids"], ["genai.rows"], start=1, end=2),
        helper.make_node("Shape", ["attention_mask"], ["genai.total"], start=1, end=2),
        helper.make_node("Identity", ["genai.rows"], ["lane_rows"]),
        helper.make_node("Sub", ["genai.total", "genai.rows"], ["genai.past"]),
        helper.make_node("Cast", ["genai.past"], ["past_lengths"], to=TensorProto.INT32),
        helper.make_node("Squeeze", ["genai.rows"], ["genai.count"]),
        helper.make_node("Range", ["genai.zero", "genai.count", "genai.one"], ["logit_rows"]),
    ]
    for name, value in (("genai.zero", 0), ("genai.one", 1)):
        body.initializer.append(helper.make_tensor(name, TensorProto.INT64, [], [value]))
    body.initializer.append(helper.make_tensor("genai.axis", TensorProto.INT64, [1], [0]))
    for node in body.node:
        for i, output in enumerate(node.output):
            if output == "logits":
                node.output[i] = "genai.logits"
    last = helper.make_node("Unsqueeze", ["genai.logits", "genai.axis"], ["logits"])
    body_nodes = list(body.node)
    del body.node[:]
    body.node.extend([*nodes, *body_nodes, last])
    kept = [i for i in body.input if i.name == "input_ids" or i.name.startswith("past")]
    caches = [i for i in kept if i.name.startswith("past_key_values")]
    mask = helper.make_tensor_value_info("attention_mask", TensorProto.INT64, [1, "total"])
    del body.input[:]
    body.input.extend([kept[0], mask, *caches])
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, "rows", manifest.vocab])
    presents = [o for o in body.output if o.name != "logits"]
    del body.output[:]
    body.output.extend([logits, *presents])
    onnx.save(model, str(folder / "model.onnx"))
    config = _config(manifest, threads=threads, context=context)
    (folder / "genai_config.json").write_text(json.dumps(config, indent=1))
    return folder


def _link_weights(body: onnx.GraphProto, source: Path, folder: Path) -> None:
    """External data must lie beside the graph: links to the bundle's files do."""
    names = {
        entry.value
        for tensor in body.initializer
        for entry in tensor.external_data
        if entry.key == "location"
    }
    for name in names:
        (folder / name).hardlink_to((source / name).resolve())


def _rename_caches(body: onnx.GraphProto) -> None:
    """`past_key_values.3.key.0` → `past_key_values.3.key`, and so on."""

    def plain(name: str) -> str:
        cache = name.startswith(("past_key_values.", "present."))
        return name.rsplit(".", 1)[0] if cache else name

    for info in (*body.input, *body.output):
        info.name = plain(info.name)
    for node in body.node:
        node.input[:] = [plain(name) for name in node.input]
        node.output[:] = [plain(name) for name in node.output]


def _config(manifest: Manifest, *, threads: int, context: int) -> dict[str, object]:
    return {
        "model": {
            "type": "llama",
            "vocab_size": manifest.vocab,
            "context_length": context,
            # An id that no text ends with: the comparison is of equal lengths.
            "eos_token_id": manifest.vocab - 1,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "decoder": {
                "filename": "model.onnx",
                "head_size": manifest.head_dim,
                "hidden_size": manifest.hidden,
                "num_attention_heads": manifest.heads,
                "num_key_value_heads": manifest.kv_heads,
                "num_hidden_layers": manifest.layers,
                # Its default is one thread, which would make the comparison unfair to it.
                "session_options": {"intra_op_num_threads": threads, "provider_options": []},
                "inputs": {
                    "input_ids": "input_ids",
                    "attention_mask": "attention_mask",
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": "logits",
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
            },
        },
        "search": {"past_present_share_buffer": True, "max_length": context, "do_sample": False},
    }
