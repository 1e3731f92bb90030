"""`python -m bench`: what the service costs over a bare loop, and how it stands beside genai.

Ways of decoding the same graph with the same threads, in turns within one run: a bare onnxruntime
loop, onnxruntime-genai where it is installed (`pip install 'homespecd[bench-genai]'`), and
homespecd over its socket, streamed: plain, and as it serves apps. Each turn runs every arm once on
each of the shipped prompts. Ratios are taken within a turn: a machine that drifts drifts for all.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.arms import Arm, ChildArm, SocketArm
from homespecd.bundle.chat import ChatTemplate
from homespecd.bundle.chat_encoding import encode_chat
from homespecd.bundle.manifest import read_manifest
from homespecd.bundle.tokenizer import Tokenizer
from homespecd.cli.demo import model_file
from homespecd.cli.service import one_model, private_folder, running
from homespecd.runtime.importing import import_model
from homespecd.runtime.prepack import best_graphs
from homespecd.runtime.threads import usable_threads
from homespecd.worker.machine import describe_machine
from homespecd.worker.prompt_set import shipped_prompts

Times = dict[str, dict[str, list[float]]]

CONTEXT = 1024
CACHE = Path(__file__).resolve().parent.parent / ".cache" / "bench"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--bundle", type=Path, help="an imported model (default: SmolLM2 at int4)")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: what this process may use")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    bundle = (arguments.bundle or smollm2()).resolve()
    threads = usable_threads(arguments.threads)
    tokenizer = Tokenizer.load(bundle)
    template = ChatTemplate.load(bundle, tokenizer)
    prompts = {
        one.category: encode_chat(tokenizer, template, one.messages) for one in shipped_prompts()
    }
    with _arms(bundle, threads) as arms:
        times = _measure(arms, prompts, arguments.tokens, arguments.repeats)
    result = _result(times, bundle=bundle, threads=threads, tokens=arguments.tokens)
    if arguments.json:
        print(json.dumps(result))
    else:
        _show(result)
    return 0


def smollm2() -> Path:
    folder = CACHE / "smollm2-int4"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        import_model(model_file(), name=folder.name, into=CACHE, precision="int4")
    return folder


@contextmanager
def _arms(bundle: Path, threads: int) -> Iterator[list[Arm]]:
    """All arms, warm and idle."""
    graph = best_graphs(bundle, read_manifest(bundle)).files[1]
    arms: list[Arm] = [ChildArm("bare", str(graph), str(threads), str(CONTEXT))]
    with private_folder() as folder, tempfile.TemporaryDirectory(dir=bundle.parent) as scratch:
        if importlib.util.find_spec("onnxruntime_genai"):
            # Onnx is needed to write genai's model, and only for that.
            from bench.genai_model import write_genai_model

            model = write_genai_model(
                bundle / "model.lanes1.onnx",
                Path(scratch) / "genai",
                read_manifest(bundle),
                threads=threads,
                context=CONTEXT,
            )
            arms.append(ChildArm("genai", str(model), str(CONTEXT)))
        else:
            print("onnxruntime-genai is not installed: that arm is left out", file=sys.stderr)
        config = one_model(bundle, name="bench", context=CONTEXT, threads=threads, cap="16GiB")
        with running(config, folder) as service:
            path = service.client.path
            arms.append(SocketArm("socket", path, model="bench", speculation="off"))
            arms.append(SocketArm("served", path, model="bench", speculation="auto"))
            try:
                yield arms
            finally:
                for arm in arms:
                    arm.close()


def _measure(arms: list[Arm], prompts: dict[str, list[int]], tokens: int, repeats: int) -> Times:
    """Milliseconds per token by arm and category, one for each turn."""
    times: Times = {arm.name: {category: [] for category in prompts} for arm in arms}
    for repeat in range(-1, repeats):  # the first turn warms up and is not counted
        for category, prompt in prompts.items():
            answers = set()
            for arm in arms if repeat % 2 == 0 else reversed(arms):
                answer, ms_per_token = arm.decode(prompt, tokens)
                answers |= {tuple(answer)} if answer else set()
                if repeat >= 0:
                    times[arm.name][category].append(ms_per_token)
            if len(answers) > 1:
                print(f"note: the arms' greedy tokens differ ({category})", file=sys.stderr)
    return times


def _result(times: Times, *, bundle: Path, threads: int, tokens: int) -> dict[str, object]:
    bare = times["bare"]

    def summary(own: dict[str, list[float]]) -> dict[str, object]:
        every = [ms for category in own for ms in own[category]]
        ratios = [
            a / b for category in own for a, b in zip(own[category], bare[category], strict=True)
        ]
        medians = {category: statistics.median(own[category]) for category in own}
        return {
            "ms_per_token": round(statistics.geometric_mean(medians.values()), 3),
            "ms_per_token_min": round(min(every), 3),
            "ms_per_token_max": round(max(every), 3),
            "over_bare": round(statistics.median(ratios), 4),
            "categories": {category: round(ms, 3) for category, ms in medians.items()},
        }

    return {
        "model": bundle.name,
        "machine": describe_machine(),
        "threads": threads,
        "tokens": tokens,
        "repeats": len(next(iter(bare.values()))),
        "versions": {name: _version(name) for name in ("onnxruntime", "onnxruntime-genai")},
        "arms": {name: summary(own) for name, own in times.items()},
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _show(result: dict[str, object]) -> None:
    arms = result["arms"]
    assert isinstance(arms, dict)
    table = Table(title=f"ms per token · {result['model']} · {result['threads']} threads")
    table.add_column("")
    for name in arms:
        table.add_column(name, justify="right")
    for category in next(iter(arms.values()))["categories"]:
        table.add_row(category, *(f"{own['categories'][category]:.2f}" for own in arms.values()))
    table.add_section()
    for label, key, digits in (
        ("mean", "ms_per_token", 2),
        ("least", "ms_per_token_min", 2),
        ("most", "ms_per_token_max", 2),
        ("÷ bare, paired", "over_bare", 3),
    ):
        table.add_row(label, *(f"{own[key]:.{digits}f}" for own in arms.values()))
    console = Console()
    console.print(table)
    console.print(f"{result['tokens']} tokens × {result['repeats']} turns; medians, geometric mean")
    console.print(f"{result['machine']} · {result['versions']}")


if __name__ == "__main__":
    sys.exit(main())
