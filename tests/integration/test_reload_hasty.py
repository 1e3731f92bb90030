"""Edits that come while the last one is still being carried out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.integration.running_service import MODEL, RunningService, chat, sse_events, wait_for

pytestmark = pytest.mark.integration

OTHER = '[models.other]\npath = "other"\n'


async def test_a_model_that_comes_back_before_it_is_gone_stays(tmp_path: Path) -> None:
    """Taken out while it answers, and put in again: what did not change in the end is not loaded
    again, and whoever asks meanwhile is answered."""
    service = RunningService(tmp_path, models=MODEL + OTHER)
    service.knobs(gate=True)
    service.start()
    try:
        async with service.client() as http:
            running = asyncio.create_task(http.post("/v1/chat/completions", json=chat(stream=True)))
            await asyncio.to_thread(wait_for, lambda: service.events("generate"), what=service.log)
            whole = service.config.read_text()  # writing models anew would change their files
            edits = ((whole.replace(MODEL, ""), ["other"]), (whole, ["m", "other"]))
            for text, names in edits:
                service.config.write_text(text)
                assert (await http.post("/homespec/reload")).status_code == 200
                listed = (await http.get("/v1/models")).json()["data"]
                assert sorted(one["id"] for one in listed) == names
            (tmp_path / "gate").touch()
            assert sse_events((await running).text)[-1][1] == "[DONE]"
            assert (await http.post("/v1/chat/completions", json=chat())).status_code == 200
            status = (await http.get("/homespec/status")).json()
        [model] = [one for one in status["models"] if one["name"] == "m"]
        assert (model["state"], model["loads"], model["totals"]["failures"]) == ("ready", 1, 0)
        assert len(service.events("load")) == 1
    finally:
        service.stop()
