"""Loading: every problem of a bad file, with its line."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from homespecd.config import Config, load
from homespecd.errors import ConfigError, Problem
from tests.unit.config_files import GOOD, problems, write

SIZE_HINT = '(a number and a unit, like "512MiB" or "6GiB" (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB))'
DURATION_HINT = '(a number and a unit, like "30s", "15m" or "1h30m" (ms, s, m, h, d))'
MODEL = '[models.a]\npath = "a"\n'

BAD = {
    "misspelt key": (
        f'{MODEL}draft_modl = "x"\nresidancy = "pinned"',
        [
            "3: models.a.draft_modl: unknown key (known keys are path, variant, provider, "
            "provider_options, provider_required, threads, context, slots, residency, "
            "idle_unload, memory_cap, drafters)",
            '4: models.a.residancy: unknown key (did you mean "residency"?)',
        ],
    ),
    "misspelt section": (
        '[modls.a]\npath = "x"\n[sever]\n[zzz]',
        [
            "1: modls: unknown section (did you mean [models]?)",
            "3: sever: unknown section (did you mean [server]?)",
            "4: zzz: unknown section (known sections are server, paths, memory, speculation, "
            "models, drafters, clients)",
        ],
    ),
    "key in the wrong section": (
        'socket = "x"\n[server]\ncap = "1GiB"\n[memory]\nslots = 1',
        [
            "1: socket: unknown section (it belongs in [server])",
            "3: server.cap: unknown key (it belongs in [memory])",
            "5: memory.slots: unknown key (it belongs in [models.NAME])",
        ],
    ),
    "attribute names are not keys": (
        '[memory]\ncap_bytes = "1GiB"',
        ["2: memory.cap_bytes: unknown key (known keys are cap, reserve, pressure)"],
    ),
    "units": (
        '[server]\nmax_body = 4\n[memory]\ncap = "6G"\nreserve = ""\n'
        f'{MODEL}idle_unload = "15"\nmemory_cap = "0B"',
        [
            f"2: server.max_body: a size is a string with a unit {SIZE_HINT}",
            f'4: memory.cap: "6G" is not a size {SIZE_HINT}',
            f'5: memory.reserve: "" is not a size {SIZE_HINT}',
            f'8: models.a.idle_unload: "15" is not a duration {DURATION_HINT}',
            f"9: models.a.memory_cap: must be more than nothing {SIZE_HINT}",
        ],
    ),
    "types": (
        "[server]\nsocket = 1\nlisten = 'x'\nmax_queue = '3'\n[speculation]\nenabled = 1\n"
        "min_speedup = true\nprobe_budget = nan\n[models]\na = 'x'\n[models.b]\npath = ''\n"
        "threads = 1.0\nslots = true\ncontext = 1979-05-27\nprovider_options = []\n"
        "provider_required = 'yes'\ndrafters = ['x', 3]",
        [
            "2: server.socket: must be a path in quotes",
            '3: server.listen: must be a list, like ["a", "b"], not "x"',
            '4: server.max_queue: must be a whole number, not "3"',
            "6: speculation.enabled: must be true or false, not 1",
            "7: speculation.min_speedup: must be a number, not true",
            "8: speculation.probe_budget: nan is not a number to work with",
            "10: models.a: must be a table: [models.NAME]",
            "12: models.b.path: must not be empty",
            "13: models.b.threads: must be a whole number, not 1.0",
            "14: models.b.slots: must be a whole number, not true",
            "15: models.b.context: must be a whole number, not 1979-05-27",
            "16: models.b.provider_options: must be a table "
            '(like provider_options = { device_type = "GPU" })',
            '17: models.b.provider_required: must be true or false, not "yes"',
            "18: models.b.drafters[1]: must be text in quotes, not 3",
        ],
    ),
    "ranges": (
        "[server]\nmax_queue = -1\n[memory]\npressure = 0\n[speculation]\nmax_draft_tokens = 65\n"
        f"{MODEL}threads = -1\ncontext = 1\nslots = 65",
        [
            "2: server.max_queue: -1 is too small: at least 0",
            "4: memory.pressure: 0 is too small: more than 0.0",
            "6: speculation.max_draft_tokens: 65 is too large: at most 64",
            "9: models.a.threads: -1 is too small: at least 0",
            "10: models.a.context: 1 is too small: at least 2",
            "11: models.a.slots: 65 is too large: at most 64",
        ],
    ),
    "words": (
        f'{MODEL}provider = "CUDA"\nresidency = "always"\n[drafters.x]\nkind = "modle"',
        [
            '3: models.a.provider: "CUDA" is not one of auto, cpu, cuda, openvino, directml '
            '(did you mean "cuda"?)',
            '4: models.a.residency: "always" is not one of pinned, on-demand',
            '6: drafters.x.kind: "modle" is not one of ngram, model (did you mean "model"?)',
        ],
    ),
    "kinds to come": (
        '[drafters.a]\nkind = "layers"\nlayers = 4\n[drafters.b]\nkind = "heads"',
        [
            '2: drafters.a.kind: kind "layers" is not available yet (use "ngram" or "model")',
            "3: drafters.a.layers: unknown key (known keys are kind, path, variant, provider, "
            "provider_options, max_draft_tokens)",
            '5: drafters.b.kind: kind "heads" is not available yet (use "ngram" or "model")',
        ],
    ),
    "what is missing": (
        "\n[models.a]\nslots = 1\n[drafters.b]\n[drafters.c]\nkind = 'model'\n",
        [
            "2: models.a.path: is missing (it has no default)",
            "4: drafters.b.kind: is missing (it has no default)",
            '5: drafters.c.path: is missing (kind = "model" needs the folder of the draft model)',
        ],
    ),
    "drafters that are not there": (
        f'{MODEL}drafters = [\n  "ngram",\n  "smal",\n  "other",\n]\n'
        '[drafters.small]\nkind = "model"\npath = "x"',
        [
            '4: models.a.drafters[0]: there is no drafter "ngram" '
            '(add [drafters.ngram] with kind = "ngram")',
            '5: models.a.drafters[1]: there is no drafter "smal" (did you mean "small"?)',
            '6: models.a.drafters[2]: there is no drafter "other" '
            '(add [drafters.other] with kind = "model")',
        ],
    ),
    "drafters named twice": (
        f'{MODEL}drafters = ["n", "n"]\n[drafters.n]\nkind = "ngram"\npath = "x"\n'
        'provider = "cuda"\nprovider_options = { device_id = 1 }\nvariant = "q4"',
        [
            '3: models.a.drafters: names "n" twice',
            '6: drafters.n.path: kind = "ngram" has no model (remove path, or use kind = "model")',
            '7: drafters.n.provider: kind = "ngram" has no model '
            '(remove provider, or use kind = "model")',
            '8: drafters.n.provider_options: kind = "ngram" has no model '
            '(remove provider_options, or use kind = "model")',
            '9: drafters.n.variant: kind = "ngram" has no model '
            '(remove variant, or use kind = "model")',
        ],
    ),
    "caps": (
        '[memory]\ncap = "2GiB"\n[models.a]\npath = "a"\nmemory_cap = "3GiB"\n'
        '[models.b]\npath = "b"\nmemory_cap = "1.5GiB"\nresidency = "pinned"\n'
        '[models.c]\npath = "c"\nmemory_cap = "1GiB"\nresidency = "pinned"\n',
        [
            "5: models.a.memory_cap: 3.00 GiB is more than memory.cap, 2.00 GiB "
            "(raise memory.cap or lower this)",
            "12: models.c.memory_cap: the pinned models up to this one may hold 2.50 GiB, "
            "and memory.cap is 2.00 GiB "
            '(make one of them residency = "on-demand", or raise memory.cap)',
        ],
    ),
    "listening": (
        '[server]\nlisten = ["127.0.0.1:80", "0.0.0.0:80",\n"[::]:1", "nas:2",\n'
        '"127.0.0.1", "127.0.0.1:0", "::1:80", "[1.2]:3"]',
        [
            "2: server.listen[1]: 0.0.0.0:80 can be reached from other machines, so it needs "
            "api_keys_file (set server.api_keys_file, or listen on 127.0.0.1)",
            "3: server.listen[2]: [::]:1 can be reached from other machines, so it needs "
            "api_keys_file (set server.api_keys_file, or listen on 127.0.0.1)",
            "3: server.listen[3]: nas:2 can be reached from other machines, so it needs "
            "api_keys_file (set server.api_keys_file, or listen on 127.0.0.1)",
            *(
                f"4: server.listen[{index}]: '{address}' is not an address "
                '("HOST:PORT", like "127.0.0.1:8435" or "[::1]:8435")'
                for index, address in enumerate(
                    ["127.0.0.1", "127.0.0.1:0", "::1:80", "[1.2]:3"], start=4
                )
            ),
        ],
    ),
    "modes": (
        '[server]\nsocket_mode = 0o660\n[paths]\n"models" = "a\\u0000b"',
        [
            "2: server.socket_mode: 432 is not a file mode (four octal digits in quotes, "
            'like "0660")',
            "4: paths.models: must not hold a NUL character",
        ],
    ),
    "a socket path that no kernel takes": (
        f'[server]\nsocket = "/run/{"x" * 120}"',
        [
            "2: server.socket: is 125 bytes long, and a Unix socket's path may have 107 "
            "(use a shorter folder)"
        ],
    ),
    "names": (
        "[models.'a/b']\npath = 'a'\n[drafters.'']\nkind = 'ngram'\n",
        [
            '1: models."a/b": a name is letters, digits and . _ : @ + - (it is part of a URL)',
            '3: drafters."": a name is letters, digits and . _ : @ + - (it is part of a URL)',
        ],
    ),
    "text that would break the line": (
        '[memory]\ncap = "6\\n\\u001bG"\n"a\\nb" = 1',
        [
            f'2: memory.cap: "6\\n\\x1bG" is not a size {SIZE_HINT}',
            '3: memory."a\\nb": unknown key (known keys are cap, reserve, pressure)',
        ],
    ),
    "clients": (
        f'{MODEL}[clients.x]\nallow_models = ["a", "b*", "aa", "zz"]\nmax_active = 0',
        [
            '4: clients.x.allow_models[2]: there is no model "aa" (did you mean "a"?)',
            '4: clients.x.allow_models[3]: there is no model "zz" (add [models.zz])',
            "5: clients.x.max_active: 0 is too small: at least 1",
        ],
    ),
    "values where tables belong": (
        "server = 1\nmodels = []\n[[drafters]]\nkind = 'ngram'",
        [
            "1: server: must be a table: [server]",
            "2: models: must be tables: [models.NAME]",
            "3: drafters: must be tables: [drafters.NAME]",
        ],
    ),
    "dotted and inline": (
        'models.a = { path = "a", threds = 1 }\nmodels.b.path = "b"\nmodels.b.slots = 0',
        [
            '1: models.a.threds: unknown key (did you mean "threads"?)',
            "3: models.b.slots: 0 is too small: at least 1",
        ],
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_every_problem_with_its_line(name: str, tmp_path: Path) -> None:
    text, expected = BAD[name]
    assert problems(write(tmp_path, text)) == expected


SYNTAX = {
    "no value": ("a = 1\nb =\n", 2),
    "no quote": ('[server]\n\nsocket = "x\n', 3),
    "twice": ("[a]\nx = 1\nx = 2", 3),
    "table twice": ("[a]\n[b]\n[a]", 3),
    "at the end": ("a = 1\nb = [1,\n2", 3),
    "bare word": ("a = yes", 1),
}


@pytest.mark.parametrize("name", SYNTAX)
def test_syntax_errors_have_their_line(name: str, tmp_path: Path) -> None:
    text, line = SYNTAX[name]
    (problem,) = problems(write(tmp_path, text))
    assert problem.startswith(f"{line}: not valid TOML: ")
    assert problem.endswith("leave one of the two out)") == ("twice" in name)


def test_deep_nesting_and_huge_numbers_are_syntax_errors_too(tmp_path: Path) -> None:
    (problem,) = problems(write(tmp_path, "a = " + "[" * 5000 + "]" * 5000))
    assert problem == "is nested too deeply"
    (problem,) = problems(write(tmp_path, "a = " + "9" * 5000))
    assert problem.startswith("not valid TOML: ")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert problems(tmp_path / "none.toml") == ["there is no such file"]
    assert problems(tmp_path) == ["is a folder, not a file"]
    assert problems(write(tmp_path, b"a = 1\nb = '\xff'\n")) == [
        "2: byte 0xff is not UTF-8 (save the file as UTF-8)"
    ]
    (problem,) = problems(Path("/dev/zero"))
    assert "larger than" in problem
    loop = tmp_path / "loop.toml"
    loop.symlink_to(loop)
    (problem,) = problems(loop)
    assert problem.startswith("cannot be read: ")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, GOOD)

    def refuse(file: Path) -> None:
        raise PermissionError(13, "Permission denied", str(file))

    monkeypatch.setattr("homespecd.config.source.opened", refuse)
    assert problems(path) == [
        "cannot be read: permission denied (see its owner and mode with ls -l)"
    ]


def test_problems_name_the_drop_in_they_are_in(tmp_path: Path) -> None:
    main = write(tmp_path, '[models.a]\npath = "a"\nslots = 1\ndrafters = [\n"x",\n"y"]\n')
    one = write(tmp_path, "\n[models.a]\nslots = 0\n", "conf.d/1.toml")
    two = write(tmp_path, '[models]\na.drafters = ["z"]\n[models.a.path]\n', "conf.d/2.toml")
    with pytest.raises(ConfigError) as caught:
        load(main)
    assert [str(problem) for problem in caught.value.problems] == [
        f"{one}:3: models.a.slots: 0 is too small: at least 1",
        f'{two}:2: models.a.drafters[0]: there is no drafter "z" '
        '(add [drafters.z] with kind = "model")',
        f"{two}:3: models.a.path: is a value in {main}:2 and cannot be replaced",
    ]


def test_a_broken_drop_in_makes_no_false_accusations(tmp_path: Path) -> None:
    """The drafter that seems to be missing may stand in the file that could not be read."""
    main = write(tmp_path, '[models.a]\npath = "a"\ndrafters = ["n"]\nslots = 0\n')
    one = write(tmp_path, "[drafters.n\nkind = 'ngram'", "conf.d/1.toml")
    with pytest.raises(ConfigError) as caught:
        load(main)
    found = [(problem.file, problem.line) for problem in caught.value.problems]
    assert found == [(str(main), 4), (str(one), 1)]


def test_paths_are_checked_when_asked(tmp_path: Path) -> None:
    text = (
        "[server]\napi_keys_file = 'keys'\n[paths]\nmodels = 'm'\n[models.here]\npath = 'here'\n"
        "[models.gone]\npath = 'gone'\n[models.file]\npath = 'f.gguf'\n"
        "[models.bad]\nslots = 1\n[drafters.d]\nkind = 'model'\npath = 'draft'\n"
    )
    main = write(tmp_path, text)
    (tmp_path / "m" / "here").mkdir(parents=True)
    (tmp_path / "m" / "f.gguf").touch()
    missing_path = "11: models.bad.path: is missing (it has no default)"
    assert problems(main) == [missing_path]
    assert problems(main, check_paths=True) == [
        f"2: server.api_keys_file: {tmp_path}/keys cannot be found (one key a line, mode 0640)",
        f"8: models.gone.path: there is no folder {tmp_path}/m/gone (homespecctl import makes one)",
        f"10: models.file.path: {tmp_path}/m/f.gguf is a file, not a model folder "
        "(homespecctl import makes one from it)",
        missing_path,
        f"15: drafters.d.path: there is no folder {tmp_path}/m/draft "
        "(homespecctl import makes one)",
    ]


def test_a_keys_file_must_not_be_open_to_others(tmp_path: Path) -> None:
    main = write(tmp_path, "[server]\nlisten = ['0.0.0.0:1']\napi_keys_file = 'keys'\n")
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    for mode in (0o600, 0o640):
        keys.chmod(mode)
        assert load(main, check_paths=True).server.api_keys_file == keys
    keys.chmod(0o644)
    assert problems(main, check_paths=True) == [
        f"3: server.api_keys_file: {keys} has mode 0644, so others can read the keys "
        f"(chmod 0640 {keys})"
    ]
    keys.unlink()
    keys.mkdir()
    assert problems(main, check_paths=True) == [
        f"3: server.api_keys_file: {keys} is not a file (one key a line, mode 0640)"
    ]


VALUES = (
    *("1", "-1", "true", '""', '"x"', "[]", '["x", 1]', "{}", "{ a = 1 }", "1.5", "nan"),
    *("'6GiB'", "1979-05-27", '"""\n"""', "[[]]", "0xff", '"4096"', "9" * 30, r'"a\n\u009b"'),
)


def outcome(path: Path, *, check_paths: bool) -> Config | tuple[Problem, ...]:
    try:
        return load(path, check_paths=check_paths)
    except ConfigError as error:
        return error.problems


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_file_makes_it_stumble(tmp_path: Path, data: st.DataObject) -> None:
    """A good file with lines replaced, doubled and cut is a configuration or has problems."""
    lines = GOOD.splitlines()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(lines) - 1))
        old = lines[at]
        key = old.partition("=")[0]
        broken = ["", f"x{old}", old * 2, old[:-2], "[a]", "[[b]]"]
        valued = [f"{key}={value}" for value in VALUES]
        lines[at] = data.draw(st.one_of(st.sampled_from(broken + valued), st.text(max_size=12)))
    text = "\n".join(lines)
    path = write(tmp_path, text)
    found = outcome(path, check_paths=data.draw(st.booleans()))
    if not isinstance(found, Config):
        assert found
        for problem in found:
            assert problem.file == str(path)
            assert 0 <= problem.line <= text.count("\n") + 2
            assert problem.message
            assert "\n" not in str(problem)
