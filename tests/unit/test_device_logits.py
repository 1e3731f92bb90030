"""Logits that stay on a device: what is asked of them there is what numpy says of them here, and
they come over whole only for requests that need them whole. The device is pretended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from homespecd.decoding.params import SamplingParams
from homespecd.decoding.sampling import Sampler
from homespecd.drafters.model import ModelDrafter
from homespecd.errors import ModelError
from homespecd.runtime.device_logits import (
    MOST_WANTED,
    DeviceLogits,
    DeviceRow,
    Found,
    Reducer,
    StepLogits,
)
from homespecd.runtime.open import open_model
from homespecd.runtime.placement import Placement
from homespecd.runtime.session import load_onnxruntime
from homespecd.runtime.session_settings import SessionSettings
from homespecd.runtime.step import Logits, Model, Rows, whole
from tests import tiny_lanes
from tests.conversations import GREEDY, Result, Table
from tests.oracle import Toy
from tests.pretended import pretend
from tests.tiny_onnx import make_toy

VOCAB, WIDTH = 96, 80  # of the logits, and of the tokenizer


def reducer(dtype: str = "float32", vocab: int = VOCAB) -> Reducer:
    beside: Any = SimpleNamespace(
        graph=Path("model.onnx"),
        placement=Placement("auto", "cpu"),
        settings=SessionSettings(threads=1),
    )
    return Reducer(beside, vocab=vocab, dtype=dtype)


def rows_of(array: np.ndarray, own: Reducer, *, skipped: int = 0) -> DeviceLogits:
    value = load_onnxruntime().OrtValue.ortvalue_from_numpy(array)
    count = array.reshape(-1, own.vocab).shape[0] - skipped
    return DeviceLogits(StepLogits(value, own, skipped=skipped), 0, count)


def awkward(dtype: str) -> np.ndarray:
    """[rows, VOCAB]: plain, ties first and last, what padding wins, extremes, and NaN."""
    rows = np.random.default_rng(3).standard_normal((12, VOCAB)).astype(dtype)
    rows[1] = 0
    rows[2, [5, 40, WIDTH - 1]] = 9
    rows[3, [0, WIDTH - 1]] = 9
    rows[4, WIDTH:] = 50
    rows[5] = -np.inf
    rows[6] = -np.inf
    rows[6, 7] = -3
    rows[7, 11] = np.inf
    rows[8, 30] = np.nan
    rows[9, WIDTH] = np.nan  # of an id that does not exist
    rows[10, :3] = [-0.0, 0.0, -0.0]
    rows[10, 3:] = -1
    rows[11] = np.finfo(dtype).smallest_subnormal
    rows[11, 20:] *= 2
    return rows


@pytest.fixture
def crossed(monkeypatch: pytest.MonkeyPatch) -> Crossed:
    return Crossed.watching(monkeypatch)


@dataclass
class Crossed:
    """What came over: bytes of answers, and bytes of whole rows."""

    answers: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)

    @classmethod
    def watching(cls, monkeypatch: pytest.MonkeyPatch) -> Crossed:
        seen = cls()
        found, rows = Reducer.found, Reducer.rows

        def watched_found(self: Reducer, *given: Any, **named: Any) -> Found | None:
            answer = found(self, *given, **named)
            assert answer is not None
            assert answer.values.base is not None
            seen.answers.append(answer.values.base.nbytes)
            return answer

        def watched_rows(self: Reducer, *given: Any, **named: Any) -> Logits:
            whole_rows = rows(self, *given, **named)
            seen.rows.append(whole_rows.nbytes)
            return whole_rows

        monkeypatch.setattr(Reducer, "found", watched_found)
        monkeypatch.setattr(Reducer, "rows", watched_rows)
        return seen


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("skipped", [0, 2])
def test_the_highest_is_numpys(dtype: str, skipped: int) -> None:
    rows = awkward(dtype)
    own = reducer(dtype)
    device = rows_of(rows[np.newaxis], own, skipped=skipped)
    assert len(device) == len(rows) - skipped
    for i, row in enumerate(rows[skipped:]):
        top = device[i].top(WIDTH, 1)
        if np.isnan(row[:WIDTH]).any():
            assert top is None
        else:
            assert top is not None
            ids, values = top
            assert ids.tolist() == [row[:WIDTH].argmax()]
            assert values.tolist() == [row[:WIDTH].max()]
    assert device.whole().dtype == np.float32
    assert np.array_equal(device.whole(), rows[skipped:].astype(np.float32), equal_nan=True)
    own.close()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("count", [2, 5, 19])
def test_the_highest_few_are_numpys_or_not_said(dtype: str, count: int) -> None:
    rows, own, said = awkward(dtype), reducer(dtype), 0
    device = rows_of(rows, own)
    for i, row in enumerate(rows[:, :WIDTH].astype(np.float32)):
        top = device[i].top(WIDTH, count)
        order = np.argsort(-row, kind="stable")
        tie = row[order[count - 1]] == row[order[count]]
        if np.isnan(row).any() or tie:
            assert top is None
            continue
        assert top is not None
        ids, values = top
        assert ids.tolist() == sorted(order[:count].tolist())
        assert values.tolist() == row[ids].tolist()
        said += 1
    assert said >= 4
    own.close()


def test_more_than_pays_is_not_asked_for(crossed: Crossed) -> None:
    row = rows_of(np.zeros((1, VOCAB), dtype=np.float32), reducer())[0]
    assert row.top(WIDTH, WIDTH // 4) is None
    wide = reducer(vocab=8 * MOST_WANTED)
    row = rows_of(np.arange(wide.vocab, dtype=np.float32)[np.newaxis], wide)[-1]
    assert row.top(wide.vocab, MOST_WANTED + 1) is None
    assert crossed == Crossed()
    assert row.top(wide.vocab, MOST_WANTED) is not None


def test_a_provider_without_the_operators_gives_rows_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def none(*_: object) -> None:
        raise RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : no such kernel")

    monkeypatch.setattr("homespecd.runtime.device_logits.OnnxRuntime.load", none)
    rows = awkward("float32")
    device = rows_of(rows, reducer(), skipped=1)
    assert [device[i].top(WIDTH, 1) for i in range(3)] == [None] * 3
    assert np.array_equal(device.whole(), rows[1:], equal_nan=True)
    warnings = [one.getMessage() for one in caplog.records]
    assert warnings[0] == "model.onnx: logits come over whole: no such kernel"
    assert len(warnings) == 2  # once for a graph, not for a row


PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "seeded": SamplingParams(seed=5),
    "few": SamplingParams(seed=5, top_k=6, temperature=0.7),
    "few of a nucleus": SamplingParams(seed=5, top_k=12, top_p=0.6, min_p=0.1),
    "one": SamplingParams(seed=5, top_k=1),
    "most": SamplingParams(seed=5, top_k=60),
    "penalties": SamplingParams(temperature=0, presence_penalty=1.0),
    "bias": SamplingParams(temperature=0, logit_bias={3: 9.0}),
}


def said_of(sampler: Sampler, row: Any, tokens: Sequence[int]) -> list[Any]:
    """The token, and the distribution, or why there is none."""
    said: list[Any] = []
    for ask in (sampler.draw, sampler.probabilities):
        try:
            said.append(np.asarray(ask(row, tokens)).tobytes())
        except ModelError as error:
            said.append(error.message)
    return said


@pytest.mark.parametrize("name", PARAMS)
@pytest.mark.parametrize("banned", [(), (7, 40, 79)], ids=["", "banned"])
def test_a_sampler_draws_from_a_distant_row_as_from_the_row(
    name: str, banned: Sequence[int]
) -> None:
    """Tokens, distributions and what it says of rows that allow none; bit for bit."""
    own, rows, tokens = reducer(), awkward("float32"), [1, 2, 3, 4, 3]
    device = rows_of(rows, own)
    for vocab in (WIDTH, VOCAB, VOCAB + 20):
        sampler = Sampler(
            PARAMS[name],
            vocab_size=vocab,
            prompt_length=2,
            banned=banned[:1],
            end_ids=banned[1:],
            min_tokens=4,
        )
        for i, row in enumerate(rows):
            assert said_of(sampler, device[i], tokens) == said_of(sampler, row, tokens), i
    own.close()


def lanes(folder: Path) -> Model:
    tiny_lanes.make_lanes(folder, (1, 2))
    return open_model(folder, threads=1, context=tiny_lanes.POSITIONS, lanes=2)


def shared_buffer(folder: Path) -> Model:
    tiny_lanes.make_shared_buffer(folder)
    return open_model(folder, threads=1, context=tiny_lanes.POSITIONS, lanes=1)


def two_files(folder: Path) -> Model:
    make_toy(folder, Toy(layout="two_file", dtype="float16"))
    return open_model(folder, threads=1, context=96, lanes=1)


def last_only(folder: Path) -> Model:
    make_toy(folder, Toy(last_only=True))
    return open_model(folder, threads=1, context=96, lanes=1)


@pytest.mark.parametrize("opened", [lanes, shared_buffer, two_files, last_only])
def test_a_step_on_a_device_moves_what_is_wanted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    opened: Callable[[Path], Model],
    crossed: Crossed,
) -> None:
    tokens = [(7 + 31 * i) % VOCAB for i in range(24)]
    cuts = [(0, 10, 10), (10, 14, 2), (14, 15, 0), (15, 24, 8)]

    def stepped(model: Model, *, anywhere: bool) -> list[Any]:
        cache, found = model.new_cache(), []
        for start, end, first in cuts:
            [logits] = model.step([Rows(cache, tokens[start:end], first, anywhere=anywhere)])
            found.append(logits.copy() if isinstance(logits, np.ndarray) else logits)
        return found

    here = opened(tmp_path / "model")
    expected = stepped(here, anywhere=True)
    assert all(isinstance(one, np.ndarray) for one in expected)
    here.close()
    pretend(monkeypatch)
    there = opened(tmp_path / "model")
    wide = there.spec.vocab_size
    crossed.rows.clear()
    whole_rows = stepped(there, anywhere=False)
    assert [one.tobytes() for one in whole_rows] == [one.tobytes() for one in expected]
    # A graph that has its logits bound to host memory moves them itself, and none but the wanted.
    assert sum(crossed.rows) == (0 if opened is lanes else (0 + 2 + 1 + 1) * wide * 4)
    crossed.rows.clear()
    found = stepped(there, anywhere=True)
    for one, right in zip(found, expected, strict=True):
        if isinstance(one, np.ndarray):  # by several passes
            assert opened is last_only
        for i, row in enumerate(right):
            top = None if isinstance(one, np.ndarray) else one[i].top(wide, 1)
            assert top is None or top[0].tolist() == [row.argmax()]
    if opened is not last_only:
        assert (crossed.answers, crossed.rows) == ([2 * 12, 12, 12], [])
    assert [whole(one).tobytes() for one in found] == [one.tobytes() for one in expected]
    there.close()


class Even:
    """A constraint: no odd id."""

    def impossible(self, tokens: Sequence[int]) -> np.ndarray:  # noqa: ARG002 (the protocol's)
        return np.arange(1, WIDTH, 2)

    def possible_run(self, tokens: Sequence[int], proposal: Sequence[int]) -> int:  # noqa: ARG002
        return next((i for i, token in enumerate(proposal) if token % 2), len(proposal))


class Notes:
    """Log-probabilities, noted as the rows they would be made of."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []

    def add(self, logits: Logits, tokens: Sequence[int], *, shown: int) -> None:  # noqa: ARG002
        self.rows += [row.tobytes() for row in logits[: len(tokens)]]


REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"sampling": GREEDY},
    "seeded, few": {"sampling": SamplingParams(seed=4, top_k=8)},
    "few": {"sampling": SamplingParams(top_k=8)},
    "seeded": {"sampling": SamplingParams(seed=4)},
    "sampled": {"sampling": SamplingParams()},
    "penalties": {"sampling": SamplingParams(temperature=0, frequency_penalty=0.5)},
    "bias": {"sampling": SamplingParams(temperature=0, logit_bias={5: 1.0})},
    "constraint": {"sampling": GREEDY, "constraint": Even()},
    "logprobs": {"sampling": GREEDY},
}
REDUCED = ("greedy", "seeded, few", "few")
PROMPT = [3, 14, 15, 92, 6, 53]


def answers(folder: Path, crossed: Crossed) -> dict[tuple[str, bool], tuple[Any, ...]]:
    """Every request, plain and with a draft: text, rounds, and what crossed for it."""
    target = lanes(folder)
    draft = shared_buffer(folder / "draft")
    said = {}
    for speculative in (False, True):
        makers = {"d": lambda: ModelDrafter("d", draft)} if speculative else {}
        for name, request in REQUESTS.items():
            table, notes = Table(target, drafters=makers, k=3), Notes()
            crossed.answers.clear()
            crossed.rows.clear()
            result: Result = table.ask(
                PROMPT,
                max_tokens=24,
                vocab_size=WIDTH,
                logprobs=notes if name == "logprobs" else None,
                **request,
            )
            assert result.account is not None
            assert (result.account.accepted > 0) == speculative
            said[name, speculative] = (
                (result.tokens, result.account.rounds, notes.rows),
                tuple(crossed.answers),
                tuple(crossed.rows),
            )
    draft.close()
    target.close()
    return said


def test_texts_are_the_same_and_only_who_needs_rows_whole_fetches_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crossed: Crossed
) -> None:
    here = answers(tmp_path, crossed)
    assert all(moved == ((), ()) for _, *both in here.values() for moved in [tuple(both)])
    pretend(monkeypatch)
    there = answers(tmp_path, crossed)
    for (name, speculative), (said, found, rows) in there.items():
        assert said == here[name, speculative][0], (name, speculative)
        assert len(said[0]) == 24
        assert all(token < WIDTH for token in said[0])
        if name in REDUCED:
            assert rows == (), (name, speculative)
            # Of 4 · VOCAB bytes a row 12 are moved, or those of nine ids and values.
            row_bytes = 12 if name == "greedy" else 4 * (2 * 9 + 1)
            assert all(one in (row_bytes, 4 * row_bytes) for one in found), found
        else:
            assert rows, (name, speculative)
            assert bool(found) == (name == "logprobs")


def test_company_that_only_reads_its_prompt_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crossed: Crossed
) -> None:
    pretend(monkeypatch)
    model = lanes(tmp_path)
    crossed.rows.clear()
    one, other = model.new_cache(), model.new_cache()
    read, asked = model.step([Rows(one, PROMPT, 6), Rows(other, PROMPT, 5, anywhere=True)])
    assert isinstance(read, np.ndarray)
    assert (read.shape, len(asked)) == ((0, VOCAB), 1)
    assert isinstance(asked, DeviceLogits)
    assert asked[-1].top(WIDTH, 1) is not None
    assert (crossed.answers, crossed.rows) == ([12], [])
    model.close()


def test_conversations_in_one_step_each_ask_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, crossed: Crossed
) -> None:
    def both(model: Model) -> list[tuple[int, ...]]:
        table = Table(model)
        results = [
            table.submit(PROMPT, max_tokens=12, **REQUESTS[name])[1]
            for name in ("greedy", "penalties")
        ]
        table.run()
        return [one.tokens for one in results]

    here = lanes(tmp_path)
    expected = both(here)
    here.close()
    pretend(monkeypatch)
    there = lanes(tmp_path)
    assert both(there) == expected
    assert len(crossed.rows) == len(crossed.answers) == 12
    there.close()


def test_a_device_that_fails_when_asked_fails_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    own = reducer()
    row = rows_of(np.zeros((1, VOCAB), dtype=np.float32), own)[0]
    assert isinstance(row, DeviceRow)

    def lost(*_: object) -> None:
        raise ModelError("the device is lost", device_lost=True)

    monkeypatch.setattr("homespecd.runtime.device_logits.Session.run", lost)
    with pytest.raises(ModelError, match="lost") as caught:
        Sampler(GREEDY, vocab_size=WIDTH, prompt_length=0).draw(row, [1])
    assert caught.value.device_lost


def test_a_device_on_which_nothing_equals_the_maximum_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that rounds the smallest numbers to zero, say, in one operator and not in another."""
    rows = np.full((2, VOCAB), np.finfo(np.float32).smallest_subnormal)

    def none_equal(*_: object) -> np.ndarray:
        return np.array([[0, 1 << 24, 0]] * len(rows), dtype=np.float32)

    monkeypatch.setattr(Reducer, "_run", none_equal)
    device = rows_of(rows, reducer())
    assert device[1].top(WIDTH, 1) is None
    assert Sampler(GREEDY, vocab_size=WIDTH, prompt_length=0).draw(device[1], [1]) == 0
