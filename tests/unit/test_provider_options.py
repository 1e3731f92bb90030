"""The options of execution providers in the file: what is known, what is refused, what is sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from homespecd.config import load
from homespecd.config.provider_options import OPTIONS, REFUSED, faults, spelled
from homespecd.daemon.settings import needs_new_worker, worker_settings
from homespecd.errors import ConfigError

MODEL = "[models.a]\npath = 'a'\n"


def problems(folder: Path, text: str) -> list[str]:
    """Without the name of the file."""
    file = folder / "homespecd.toml"
    file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        load(file)
    return [str(one).removeprefix(f"{file}:") for one in refused.value.problems]


@pytest.mark.parametrize(
    ("provider", "option", "said"),
    [
        ("cuda", 'gpu_mem_limt = "1GiB"', ': unknown key (did you mean "gpu_mem_limit"?)'),
        ("cuda", "frobnicate = 1", ": unknown key (cuda has device_id, gpu_mem_limit, "),
        ("cuda", 'device_type = "GPU"', ": unknown key (it is an option of openvino)"),
        ("cuda", "enable_cuda_graph = true", ": cannot be used here (rows and lengths are others"),
        ("cuda", "use_tf32 = 1", ": 1 will not do (it is true or false)"),
        ("cuda", "device_id = -1", ": -1 will not do (it is a whole number from 0 to 2147483647)"),
        ("cuda", "device_id = 2147483648", ": 2147483648 will not do"),
        ("cuda", "device_id = true", ": true will not do (it is a whole number"),
        ("cuda", 'gpu_mem_limit = "2 apples"', ': "2 apples" will not do (it is a'),
        ("cuda", 'arena_extend_strategy = "big"', ': "big" will not do (it is one of kSame'),
        ("cuda", "cuda = { device_id = 1 }", ': unknown key (with provider = "cuda" its options'),
        ("openvino", 'device_type = "AUTO"', ': "AUTO" will not do (it is CPU, GPU, GPU.1, NPU'),
        ("openvino", 'device_type = "XPU"', ': "XPU" will not do'),
        ("openvino", 'device_type = "AUTO:"', ': "AUTO:" will not do'),
        ("openvino", 'cache_dir = "here"', ': "here" will not do (it is an absolute path)'),
        ("openvino", 'load_config = "/etc/x"', ': "/etc/x" will not do (it is a JSON object'),
        ("openvino", "device_id = 0", ": cannot be used here (device_type says which)"),
        ("openvino", "precision = { x = 1 }", ": a table will not do (it is one of ACC"),
        ("directml", 'device_filter = "tpu"', ': "tpu" will not do (it is one of gpu, npu, any)'),
        ("cpu", "threads = 3", ": unknown key (the cpu provider has no options; its threads are"),
        ("auto", 'openvno = { device_type = "GPU" }', ": unknown key (with provider = "),
        ("auto", 'device_type = "GPU"', "table, like provider_options.openvino = { … })"),
        ("auto", "cuda = 3", ": must be a table (the options for when cuda is chosen)"),
    ],
)
@pytest.mark.parametrize("section", [MODEL, '[drafters.a]\nkind = "model"\npath = "a"\n'])
def test_a_wrong_option_is_named_with_its_line(
    tmp_path: Path, section: str, provider: str, option: str, said: str
) -> None:
    place = section.partition("]")[0].removeprefix("[")
    text = f'{section}provider = "{provider}"\n[{place}.provider_options]\n{option}\n'
    [problem] = problems(tmp_path, text)
    line = len(text.splitlines())
    name = option.partition(" ")[0]
    assert problem.startswith(f"{line}: {place}.provider_options.{name}: ")
    assert said in problem


def test_options_inside_a_table_of_auto_are_named_too(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, f"{MODEL}provider_options.cuda.device_idd = 0\n")
    assert problem == (
        '3: models.a.provider_options.cuda.device_idd: unknown key (did you mean "device_id"?)'
    )


def test_auto_cannot_be_required(tmp_path: Path) -> None:
    [problem] = problems(tmp_path, f"{MODEL}provider_required = true\n")
    assert problem.startswith('3: models.a.provider_required: says nothing with provider = "auto"')


def test_what_a_worker_is_sent(tmp_path: Path) -> None:
    """As onnxruntime takes it: sizes in bytes, booleans in each provider's own words."""
    file = tmp_path / "homespecd.toml"
    text = (
        MODEL + 'memory_cap = "3GiB"\ndrafters = ["d"]\n'
        '[models.a.provider_options]\ncuda = { gpu_mem_limit = "2GiB", use_tf32 = true }\n'
        "openvino = { device_type = 'AUTO:GPU.1,CPU', enable_qdq_optimizer = false }\n"
        '[drafters.d]\nkind = "model"\npath = "d"\nprovider = "cuda"\n'
        "provider_options = { device_id = 1 }\n"
    )
    file.write_text(text)
    settings = worker_settings(load(file), "a")
    assert settings.provider_options == {
        "cuda": {"gpu_mem_limit": str(2 << 30), "use_tf32": "1"},
        "openvino": {"device_type": "AUTO:GPU.1,CPU", "enable_qdq_optimizer": "false"},
    }
    assert settings.drafters[0].provider_options == {"device_id": "1"}
    assert settings.device_memory_bytes == 3 << 30
    # The cap of a model is watched while it serves; it is no reason to load it again.
    file.write_text(text.replace("3GiB", "4GiB"))
    assert not needs_new_worker(settings, worker_settings(load(file), "a"))
    file.write_text(text.replace("2GiB", "1GiB"))
    assert needs_new_worker(settings, worker_settings(load(file), "a"))


def test_every_option_takes_something_and_is_in_one_list() -> None:
    words = (
        "1GiB",
        "{}",
        "/x",
        "CPU",
        "kSameAsRequested",
        "HEURISTIC",
        "FP32",
        "HIGH",
        "default",
        "gpu",
    )
    tried = (True, 1, *words)
    for provider, options in OPTIONS.items():
        for name in options:
            fitting = [one for one in tried if not list(faults(provider, {name: one}))]
            assert fitting, f"{provider}.{name}"
            assert all(spelled(provider, {name: one})[name] for one in fitting)
        assert not set(options) & set(REFUSED.get(provider, {}))
