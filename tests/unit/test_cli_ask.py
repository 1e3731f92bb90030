"""`homespecctl ask`: what streams, what it took, and how it ends."""

from __future__ import annotations

import io

import pytest

from homespecd.cli.main import main
from tests.unit.cli_service import answer_events, error_line, path, service
from tests.unit.fake_service import Events, FakeService

__all__ = ["path", "service"]  # the fixtures


def test_ask_streams_and_says_what_it_took(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    service.answers["POST /v1/chat/completions"] = Events(answer_events("Blue", " 🌊", "."))
    options = ["--max-tokens", "9", "--temperature", "0", "--seed", "7", "--system", "Be brief."]
    assert main(["ask", "smollm2", "Why?", *options, "--drafter", "ngram"]) == 0
    captured = capsys.readouterr()
    assert captured.out == "Blue 🌊.\n"
    assert captured.err == (
        "speculative (ngram) · 181.0 tok/s · 2.40 tokens a round · ngram measures 1.93× plain · "
        "first token after 42 ms · 9 tokens\n"
    )
    assert service.asked == [
        (
            "POST /v1/chat/completions",
            {
                "model": "smollm2",
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Why?"},
                ],
                "max_tokens": 9,
                "temperature": 0.0,
                "seed": 7,
                "homespec": {"speculation": "auto", "drafter": "ngram"},
                "stream": True,
                "stream_options": {"include_usage": True},
            },
        )
    ]


def test_ask_reads_standard_input(
    service: FakeService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answers["POST /v1/chat/completions"] = Events(answer_events("Yes\n"))
    monkeypatch.setattr("sys.stdin", io.StringIO("Is it?\n"))
    assert main(["ask", "smollm2"]) == 0
    assert capsys.readouterr().out == "Yes\n"
    assert service.asked[0][1]["messages"] == [{"role": "user", "content": "Is it?\n"}]
    monkeypatch.setattr("sys.stdin", io.StringIO(" \n"))
    assert main(["ask", "smollm2"]) == 1
    assert "the prompt is empty" in error_line(capsys)


def test_ask_plain_says_why(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    plain = {"mode": "plain", "drafter": None, "reason": "slower_than_plain", "decode_tok_s": 9.0}
    service.answers["POST /v1/chat/completions"] = Events([{"choices": [], "homespec": plain}])
    assert main(["ask", "smollm2", "x"]) == 0
    assert capsys.readouterr().err == (
        "plain (slower than plain) · 9.0 tok/s · first token after – ms\n"
    )


def test_ask_an_error_in_the_stream(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    """D8: what has come stays, and the end is an error."""
    events = [*answer_events("Bl")[:1], {"error": {"message": "the model's process ended"}}]
    service.answers["POST /v1/chat/completions"] = Events(events)
    assert main(["ask", "smollm2", "x"]) == 1
    captured = capsys.readouterr()
    assert captured.out == "Bl\n"
    assert captured.err == "homespecctl: the model's process ended\n"


def test_ask_a_stream_that_is_cut(service: FakeService, capsys: pytest.CaptureFixture[str]) -> None:
    service.answers["POST /v1/chat/completions"] = Events(answer_events("Bl")[:1], cut=True)
    assert main(["ask", "smollm2", "x"]) == 1
    assert "before the answer was complete" in capsys.readouterr().err


def test_an_error_answer_is_its_message(
    service: FakeService, capsys: pytest.CaptureFixture[str]
) -> None:
    error = (404, {"error": {"message": 'there is no model "x" (models: smollm2)'}})
    service.answers["POST /v1/chat/completions"] = error
    assert main(["ask", "x", "y"]) == 1
    assert error_line(capsys) == 'homespecctl: there is no model "x" (models: smollm2)\n'
    refused = (403, {"error": {"message": "user 33 may not use smollm2"}})
    service.answers["POST /homespec/models/smollm2/load"] = refused
    assert main(["load", "smollm2"]) == 4
    assert error_line(capsys) == "homespecctl: user 33 may not use smollm2\n"


def test_ctrl_c_during_an_answer(
    service: FakeService, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    service.answers["POST /v1/chat/completions"] = Events(answer_events("Blue", "never seen"))
    written: list[str] = []

    def write(_self: object, text: str) -> None:
        written.append(text)
        if text == "Blue":
            raise KeyboardInterrupt

    monkeypatch.setattr("homespecd.cli.terminal.Terminal.write", write)
    assert main(["ask", "smollm2", "x"]) == 130
    assert written[0] == "Blue"
    assert "never seen" not in written
    assert capsys.readouterr().err == ""
