"""What may stand in `provider_options`: the options of each execution provider, and what they take.

onnxruntime takes every option as text and finds faults, if at all, when a model is loaded, in a log
or by running it elsewhere. So they are checked here, where the file has a line for them. A provider
that is named has its options in the table itself; for "auto" there is a table for each provider.
Options that cannot work in this program are known too, and say why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from homespecd.config.sections import nearest
from homespecd.config.units import SIZE_FORM, parse_size

Written = Mapping[str, Any]


@dataclass(frozen=True)
class Option:
    """takes: the values in words. spell: a value as onnxruntime takes it; ValueError for others."""

    takes: str
    spell: Callable[[Any], str]


def _flag(yes: str, no: str) -> Option:
    def spell(value: Any) -> str:
        if not isinstance(value, bool):
            raise ValueError
        return yes if value else no

    return Option("true or false", spell)


# The providers read whole numbers into 32 bits.
_MOST = 2**31 - 1


def _whole(least: int) -> Option:
    def spell(value: Any) -> str:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            raise ValueError
        return str(value)

    return Option(f"a whole number from {least} to {_MOST}", spell)


def _one_of(*words: str) -> Option:
    def spell(value: Any) -> str:
        if value not in words:
            raise ValueError
        return str(value)

    return Option("one of " + ", ".join(words), spell)


def _size() -> Option:
    def spell(value: Any) -> str:
        if not isinstance(value, str) or not parse_size(value):
            raise ValueError
        return str(parse_size(value))

    return Option(SIZE_FORM, spell)


def _path() -> Option:
    def spell(value: Any) -> str:
        if not isinstance(value, str) or not PurePath(value).is_absolute():
            raise ValueError
        return value

    return Option("an absolute path", spell)


def _json_object() -> Option:
    def spell(value: Any) -> str:
        if not isinstance(value, str) or not isinstance(json.loads(value), dict):
            raise ValueError
        return value

    return Option("a JSON object in quotes, by device", spell)


def _openvino_device() -> Option:
    device = r"(?:CPU|GPU(?:\.\d+)?|NPU(?:\.\d+)?)"
    form = re.compile(rf"{device}|(?:AUTO|HETERO|MULTI):{device}(?:,{device})*")

    def spell(value: Any) -> str:
        if not isinstance(value, str) or form.fullmatch(value) is None:
            raise ValueError
        return value

    # A bare "AUTO" was seen to take no node of any graph.
    return Option("CPU, GPU, GPU.1, NPU, or a choice like AUTO:GPU,CPU", spell)


_C_FLAG = _flag("1", "0")
_FLAG = _flag("true", "false")

OPTIONS: Mapping[str, Mapping[str, Option]] = {
    "cpu": {},
    "cuda": {
        "device_id": _whole(0),
        "gpu_mem_limit": _size(),
        "arena_extend_strategy": _one_of("kSameAsRequested", "kNextPowerOfTwo"),
        "cudnn_conv_algo_search": _one_of("EXHAUSTIVE", "HEURISTIC", "DEFAULT"),
        "cudnn_conv_use_max_workspace": _C_FLAG,
        "cudnn_conv1d_pad_to_nc1d": _C_FLAG,
        "do_copy_in_default_stream": _C_FLAG,
        "enable_skip_layer_norm_strict_mode": _C_FLAG,
        "fuse_conv_bias": _C_FLAG,
        "prefer_nhwc": _C_FLAG,
        "sdpa_kernel": _whole(0),
        "tunable_op_enable": _C_FLAG,
        "tunable_op_tuning_enable": _C_FLAG,
        "tunable_op_max_tuning_duration_ms": _whole(0),
        "use_ep_level_unified_stream": _C_FLAG,
        "use_tf32": _C_FLAG,
    },
    "openvino": {
        "device_type": _openvino_device(),
        "precision": _one_of("ACCURACY", "FP32", "FP16"),
        "cache_dir": _path(),
        "load_config": _json_object(),
        "num_of_threads": _whole(1),
        "num_streams": _whole(1),
        "model_priority": _one_of("LOW", "MEDIUM", "HIGH", "DEFAULT"),
        "enable_opencl_throttling": _FLAG,
        "enable_qdq_optimizer": _FLAG,
    },
    "directml": {
        "device_id": _whole(0),
        "performance_preference": _one_of("default", "high_performance", "minimum_power"),
        "device_filter": _one_of("gpu", "npu", "any"),
        "disable_metacommands": _FLAG,
    },
}

_VARYING = "rows and lengths are others in every step, and this needs them fixed"
_POINTER = "it is an address in a program's own memory"
REFUSED: Mapping[str, Mapping[str, str]] = {
    "cuda": {
        "enable_cuda_graph": _VARYING,
        "user_compute_stream": _POINTER,
        "has_user_compute_stream": _POINTER,
        "gpu_external_alloc": _POINTER,
        "gpu_external_free": _POINTER,
        "gpu_external_empty_cache": _POINTER,
    },
    "openvino": {
        "disable_dynamic_shapes": _VARYING,
        "reshape_input": _VARYING,
        "layout": _VARYING,
        "enable_causallm": "the keys and values would be kept where they cannot be rewound",
        "context": _POINTER,
        "device_id": "device_type says which",
    },
    "directml": {"enable_graph_capture": _VARYING},
}


@dataclass(frozen=True)
class OptionFault:
    """One fault. key: its place below `provider_options`."""

    key: tuple[str, ...]
    message: str
    hint: str = ""


def faults(provider: str, options: Written) -> Iterator[OptionFault]:
    """Everything wrong with the options given for `provider` (or "auto")."""
    if provider != "auto":
        yield from _faults(provider, options)
        return
    for name, table in options.items():
        if name in OPTIONS and isinstance(table, Mapping):
            yield from _faults(name, table, name)
        elif name in OPTIONS:
            yield OptionFault((name,), "must be a table", f"the options for when {name} is chosen")
        else:
            homes = [one for one, known in OPTIONS.items() if name in known]
            guess = homes[0] if homes else nearest(name, OPTIONS) or "openvino"
            yield OptionFault(
                (name,),
                "unknown key",
                'with provider = "auto" each provider has its own table, like '
                f"provider_options.{guess} = {{ … }}",
            )


def _faults(provider: str, options: Written, *above: str) -> Iterator[OptionFault]:
    known, refused = OPTIONS[provider], REFUSED.get(provider, {})
    for name, value in options.items():
        key = (*above, name)
        if name in known:
            try:
                known[name].spell(value)
            except ValueError:
                yield OptionFault(key, f"{_show(value)} will not do", f"it is {known[name].takes}")
        elif name in refused:
            yield OptionFault(key, "cannot be used here", refused[name])
        elif name in OPTIONS and isinstance(value, Mapping):
            yield OptionFault(
                key,
                "unknown key",
                f'with provider = "{provider}" its options stand in provider_options itself',
            )
        else:
            yield OptionFault(key, "unknown key", _hint(provider, name))


def _hint(provider: str, name: str) -> str:
    known = OPTIONS[provider]
    if not known:
        return f"the {provider} provider has no options; its threads are set by threads"
    homes = [one for one, options in OPTIONS.items() if name in options]
    if homes:
        return f"it is an option of {homes[0]}"
    guess = nearest(name, known)
    if guess:
        return f'did you mean "{guess}"?'
    return f"{provider} has {', '.join(known)}"


def _show(value: Any) -> str:
    if isinstance(value, Mapping):
        return "a table"
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)


def spelled(provider: str, options: Written) -> dict[str, Any]:
    """Options without faults as onnxruntime takes them; for "auto", a table for each provider."""
    if provider == "auto":
        return {name: spelled(name, table) for name, table in options.items()}
    return {name: OPTIONS[provider][name].spell(value) for name, value in options.items()}
