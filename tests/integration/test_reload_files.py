"""The configuration is edited while the service runs: every way to save, and every mistake."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from homespecd.config import watch
from tests.integration.running_service import MODEL, PATIENCE_S, RunningService, chat, wait_for

pytestmark = pytest.mark.integration


def made(folder: Path) -> RunningService:
    """Not started; its configuration has a folder to itself, as /etc/homespecd is."""
    service = RunningService(folder)
    (folder / "etc").mkdir()
    service.config = folder / "etc" / "homespecd.toml"
    service.write_config()
    return service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[RunningService]:
    """One of its own, not started."""
    service = made(tmp_path)
    yield service
    if service.process is not None:
        service.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """One for all tests that leave it as they found it: running, its model loaded."""
    service = made(tmp_path_factory.mktemp("shared"))
    service.start()
    assert ask(service).status_code == 200
    yield service
    service.stop(signal.SIGKILL)


def get(service: RunningService, path: str) -> Any:
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(service.socket)), timeout=PATIENCE_S
    ) as http:
        return http.get(f"http://h{path}").json()


def ask(service: RunningService, model: str = "m") -> httpx.Response:
    with httpx.Client(
        transport=httpx.HTTPTransport(uds=str(service.socket)), timeout=PATIENCE_S
    ) as http:
        return http.post("http://h/v1/chat/completions", json=chat(model=model))


def config(service: RunningService) -> dict[str, Any]:
    found: dict[str, Any] = get(service, "/homespec/status")["config"]
    return found


def context(service: RunningService) -> int:
    [model] = get(service, "/homespec/status")["models"]
    return int(model["context"])


def text_with(service: RunningService, context: int) -> str:
    """The configuration, with this context. Leaves the file as it was."""
    before = service.config.read_text()
    service.write_config(models=f"{MODEL}context = {context}\n")
    text = service.config.read_text()
    service.config.write_text(before)
    return text


# -- ways to save (L1) ---------------------------------------------------------------------------


def by_rename(file: Path, text: str) -> None:
    beside = file.with_name(".homespecd.toml.swp")
    beside.write_text(text)
    beside.rename(file)


def as_vim_does(file: Path, text: str) -> None:
    backup = file.with_name("homespecd.toml~")
    file.rename(backup)
    file.write_text(text)
    backup.unlink()


def in_place(file: Path, text: str) -> None:
    file.write_text(text)


def by_cp(file: Path, text: str) -> None:
    other = file.parents[1] / "new.toml"
    other.write_text(text)
    subprocess.run(["cp", "-p", other, file], check=True)


def by_sed(file: Path, text: str) -> None:
    [line] = [one for one in text.splitlines() if one.startswith("context")]
    script = f"s/^context.*$/{line}/"
    subprocess.run(["sed", "-i", script, file], check=True)


def by_link(file: Path, text: str) -> None:
    """As a volume of Kubernetes: the file is a link through a folder that is a link."""
    data, fresh = file.with_name("..data"), file.with_name(f"..{time.monotonic_ns()}")
    fresh.mkdir()
    (fresh / file.name).write_text(text)
    link = file.with_name("..link")
    link.symlink_to(fresh.name)
    link.rename(data)
    if not file.is_symlink():
        link.symlink_to(f"..data/{file.name}")
        link.rename(file)


# What one way leaves behind must not make the service deaf for the next.
SAVES = (by_rename, as_vim_does, in_place, by_rename, by_cp, by_sed, in_place, by_link, by_link)


def test_every_way_to_save_is_noticed(service: RunningService) -> None:
    service.config.write_text(text_with(service, 100))
    service.start()
    for number, save in enumerate(SAVES, start=101):
        text = text_with(service, number) if not service.config.is_symlink() else ""
        if not text:
            text = service.config.read_text().replace(f"context = {number - 1}", "context = X")
            text = "\n".join(
                f"context = {number}" if line.startswith("context") else line
                for line in text.splitlines()
            )
        save(service.config, text)
        wait_for(lambda n=number: context(service) == n, what=service.log)
    assert config(service)["last_error"] is None


def test_drop_ins_are_noticed_as_they_come_change_and_go(service: RunningService) -> None:
    service.start()
    folder = service.config.parent / "conf.d"
    folder.mkdir()
    (folder / "one.toml").write_text("[models.m]\ncontext = 111\n")
    wait_for(lambda: context(service) == 111, what=service.log)
    (folder / "one.toml").write_text("[models.m]\ncontext = 112\n")
    wait_for(lambda: context(service) == 112, what=service.log)
    (folder / "editor.swp").write_text("nonsense")
    shutil.rmtree(folder)
    wait_for(lambda: context(service) == 4096, what=service.log)


def test_the_whole_folder_may_be_replaced(service: RunningService) -> None:
    service.start()
    folder = service.config.parent
    text = text_with(service, 77)
    folder.rename(folder.with_name("old"))
    folder.mkdir()
    service.config.write_text(text)
    wait_for(lambda: context(service) == 77, what=service.log)


# -- bursts (L6) ---------------------------------------------------------------------------------


def test_of_a_burst_of_edits_the_last_one_wins(service: RunningService) -> None:
    service.start()
    texts = [text_with(service, number) for number in range(201, 211)]
    for text in texts:
        by_rename(service.config, text)
        time.sleep(0.02)
    wait_for(lambda: context(service) == 210, what=service.log)
    assert ask(service).status_code == 200
    assert len(service.events("load")) == 1


def test_what_changes_during_a_reload_is_not_lost(service: RunningService) -> None:
    service.start()
    for number in range(300, 310):
        by_rename(service.config, text_with(service, number))
        service.signal(signal.SIGHUP)
        time.sleep(0.01)
    wait_for(lambda: context(service) == 309, what=service.log)


# -- mistakes (L5, L9, L10) ------------------------------------------------------------------------

GOOD = "context = 500\n"


@pytest.mark.parametrize(
    ("models", "at", "said"),
    [
        (MODEL + "context = = 5\n", "context = = 5", "not valid TOML"),
        (MODEL + 'context = "many"\n', 'context = "many"', "models.m.context"),
        (MODEL + '[models.new]\npath = "nowhere"\n', 'path = "nowhere"', "models.new.path"),
        ('[models.m]\npath = "gone"\n', 'path = "gone"', "models.m.path"),
        (MODEL + 'draft_modl = "x"\n', 'draft_modl = "x"', "models.m.draft_modl"),
        (
            MODEL + '[models.big]\npath = "big"\nresidency = "pinned"\n',
            'residency = "pinned"',
            "models.big.residency",
        ),
    ],
)
def test_a_bad_edit_keeps_what_works(
    shared: RunningService, models: str, at: str, said: str
) -> None:
    before, was = shared.config.read_text(), config(shared)
    shared.write_config(models=models)
    for name in ("nowhere", "gone"):
        shutil.rmtree(shared.folder / name, ignore_errors=True)
    if "big" in models:
        with (shared.folder / "big" / "model.onnx").open("wb") as file:
            file.truncate(1 << 40)  # holes only
    line = shared.config.read_text().splitlines().index(at) + 1
    wait_for(lambda: config(shared)["last_error"], what=shared.log)
    error = config(shared)["last_error"]
    assert said in error
    assert f"{shared.config}:{line}:" in error
    assert said in shared.log()
    assert ask(shared).status_code == 200
    assert config(shared) == {**was, "last_error": error}
    assert len(shared.events("load")) == 1
    in_place(shared.config, before)
    wait_for(lambda: config(shared) == was, what=shared.log)


def test_a_byte_order_mark_and_windows_lines_are_fine(service: RunningService) -> None:
    def windows(text: str) -> bytes:
        return b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode()

    service.config.write_bytes(windows(text_with(service, 600)))
    service.start()
    assert context(service) == 600
    service.config.write_bytes(windows(text_with(service, 601)))
    wait_for(lambda: context(service) == 601, what=service.log)


def test_an_empty_file_takes_nothing_away(shared: RunningService) -> None:
    service = shared
    text = service.config.read_text()
    service.config.write_text("")
    wait_for(lambda: config(service)["last_error"], what=service.log)
    assert "is empty" in config(service)["last_error"]
    service.signal(signal.SIGHUP)
    assert ask(service).status_code == 200
    service.config.unlink()
    wait_for(lambda: "no such file" in (config(service)["last_error"] or ""), what=service.log)
    assert ask(service).status_code == 200
    service.config.write_text(text)
    wait_for(lambda: config(service)["last_error"] is None, what=service.log)
    assert len(service.events("load")) == 1


def test_half_a_file_is_waited_for(service: RunningService) -> None:
    """Cut where it is still valid, with fewer models, by a writer that takes its time."""
    service.write_config(models=MODEL + '[models.second]\npath = "s"\n')
    service.start()
    assert ask(service, "second").status_code == 200
    text = service.config.read_text() + GOOD
    cut = text.index("[models.second]")
    with service.config.open("w") as file:
        file.write(text[:cut])
        file.flush()
        os.fsync(file.fileno())
        time.sleep(0.5)  # five times what an edit needs to be taken up
        assert ask(service, "second").status_code == 200
        file.write(text[cut:])

    def taken_up() -> bool:
        models = get(service, "/homespec/status")["models"]
        return [one["context"] for one in models] == [4096, 500]

    wait_for(taken_up, what=service.log)
    assert "models.second removed" not in service.log()


# -- what must not notice (L7) -------------------------------------------------------------------


async def test_an_unrelated_change_leaves_a_stream_alone(service: RunningService) -> None:
    other = '[models.other]\npath = "o"\n'
    service.write_config(models=MODEL + other)
    service.knobs(gate=True)
    service.start()
    async with service.client() as client:
        streaming = asyncio.create_task(client.post("/v1/chat/completions", json=chat(stream=True)))
        await asyncio.to_thread(wait_for, lambda: service.events("generate"))
        changed = "reload: models.other changed (idle_unload)"
        for number, how in enumerate(("edit", "hangup"), start=1):
            service.write_config(models=MODEL + other + f'idle_unload = "{number}m"\n')
            if how == "hangup":
                service.signal(signal.SIGHUP)
            await asyncio.to_thread(
                wait_for, lambda n=number: service.log().count(changed) == n, what=service.log
            )
        (service.folder / "gate").touch()
        response = await streaming
        assert response.text.endswith("data: [DONE]\n\n")
        [model] = [
            one
            for one in (await client.get("/homespec/status")).json()["models"]
            if one["name"] == "m"
        ]
    assert model["loads"] == 1
    assert model["pid"] == service.events("load")[0]["pid"]
    assert service.process is not None
    assert service.process.poll() is None


async def test_drafters_change_without_a_new_worker(service: RunningService) -> None:
    def drafting(*names: str) -> str:
        listed = ", ".join(f'"{name}"' for name in names)
        sections = "".join(
            f'[drafters.{name}]\nkind = "model"\npath = "{name}"\n'
            if name.startswith("d")
            else f'[drafters.{name}]\nkind = "ngram"\n'
            for name in ("d1", "d2", "n")
        )
        return f"{MODEL}drafters = [{listed}]\n{sections}"

    service.write_config(models=drafting("d1"))
    service.start()
    assert (await asyncio.to_thread(ask, service)).status_code == 200

    def drafters() -> list[tuple[list[str], bool]]:
        return [(one["names"], bool(one["withheld"])) for one in service.events("drafters")]

    service.write_config(models=drafting("d2", "n"))
    # The old one goes first, then the new one is loaded.
    wanted = [(["d2", "n"], True), (["d2", "n"], False)]
    await asyncio.to_thread(wait_for, lambda: drafters() == wanted, what=service.log)
    service.write_config(models=drafting("d2"))
    wanted.append((["d2"], False))
    await asyncio.to_thread(wait_for, lambda: drafters() == wanted, what=service.log)
    assert (await asyncio.to_thread(ask, service)).status_code == 200
    assert len(service.events("load")) == 1


# -- the watcher by itself -----------------------------------------------------------------------


class Deaf(watch.Watcher):
    """One that is never told of anything, as on network mounts; it notes what it finds.

    looks: how often it has looked at the file. edit: called before each of them.
    """

    def __init__(self, file: Path, edit: Callable[[int], None]) -> None:
        super().__init__(
            file,
            known=lambda: self.known,
            doubtful=self._no,
            on_change=self._changed,
            quiet_s=0.05,
            poll_s=0.01,
        )
        self.file, self.edit = file, edit
        self.known = watch.signature(file)
        self.looks = 0
        self.changes: list[str] = []

    def noticed(self, event: object) -> None:
        pass

    async def _look(self) -> str:
        self.looks += 1
        self.edit(self.looks)
        return await super()._look()

    async def _no(self) -> bool:
        return False

    async def _changed(self) -> None:
        self.known = watch.signature(self.file)
        self.changes.append(self.file.read_text())

    async def until(self, looks: int) -> None:
        """Run until it has looked so often."""
        task = asyncio.create_task(self.run())
        while self.looks < looks and not task.done():
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("edits", [1, 10])
async def test_edits_close_together_are_one_change_that_a_poll_finds(
    tmp_path: Path, edits: int
) -> None:
    """Another edit at each of its looks: it waits for the last one, and for some quiet after it."""
    file = tmp_path / "c.toml"
    file.write_text("a = 0")
    found_at: list[int] = []

    def edit(looks: int) -> None:
        number = looks - 5  # it has polled in vain before
        if 0 < number <= edits:
            by_rename(file, f"a = {number}")
        if watcher.changes and not found_at:
            found_at.append(looks)

    watcher = Deaf(file, edit)
    await watcher.until(5 + edits + 20)

    assert watcher.changes == [f"a = {edits}"]
    assert found_at[0] > 5 + edits + 4  # five looks are a time of quiet
