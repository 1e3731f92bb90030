"""The locator knows the line of every key that tomllib reads."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from homespecd.config.lines import KeyPath, locate, nearest_line

CASES = {
    "plain": ('a = 1\nb = "x" # c = 2\n\n  c = 3', {("a",): 1, ("b",): 2, ("c",): 4}),
    "tables": (
        "# top\n[a]\nx = 1\n[a.b]\nx = 2\n[ c . d ] # e\ny = 1",
        {
            ("a",): 2,
            ("a", "x"): 3,
            ("a", "b"): 4,
            ("a", "b", "x"): 5,
            ("c",): 6,
            ("c", "d"): 6,
            ("c", "d", "y"): 7,
        },
    ),
    "dotted": (
        "[m]\na.b.c = 1\na.d = 2\n",
        {("m",): 1, ("m", "a"): 2, ("m", "a", "b"): 2, ("m", "a", "b", "c"): 2, ("m", "a", "d"): 3},
    ),
    "quoted keys": (
        '"a.b" = 1\n\'c d\'."e\\u0041" = 2\n[models."x]y"]\npath = \'z\'\n"" = 1',
        {
            ("a.b",): 1,
            ("c d",): 2,
            ("c d", "eA"): 2,
            ("models",): 3,
            ("models", "x]y"): 3,
            ("models", "x]y", "path"): 4,
            ("models", "x]y", ""): 5,
        },
    ),
    "arrays over lines": (
        'a = [ # first\n  "x", # ]\n\n  "y,]",\n]\nb = [[1, 2],\n[3]]\nc = []',
        {
            ("a",): 1,
            ("a", 0): 2,
            ("a", 1): 4,
            ("b",): 6,
            ("b", 0): 6,
            ("b", 0, 0): 6,
            ("b", 0, 1): 6,
            ("b", 1): 7,
            ("b", 1, 0): 7,
            ("c",): 8,
        },
    ),
    "inline tables": (
        'a = { b = "}", c.d = [\n1,\n{ e = 2 }] }\nf = {}\ng = 1',
        {
            ("a",): 1,
            ("a", "b"): 1,
            ("a", "c"): 1,
            ("a", "c", "d"): 1,
            ("a", "c", "d", 0): 2,
            ("a", "c", "d", 1): 3,
            ("a", "c", "d", 1, "e"): 3,
            ("f",): 4,
            ("g",): 5,
        },
    ),
    "strings over lines": (
        'a = """\n[not.a.table]\nx = 1 \\"""\n"""""\n'
        "b = '''\ny = 2\n'''''\nc = \"\"\"\"q\"\"\"\"\nd = 1",
        {("a",): 1, ("b",): 5, ("c",): 8, ("d",): 9},
    ),
    "escapes": (
        'a = "\\"\\\\" # "\nb = \'c:\\\'\nc = """\\\\"""\nd = ""\nf = \'\'\ne = 1',
        {("a",): 1, ("b",): 2, ("c",): 3, ("d",): 4, ("f",): 5, ("e",): 6},
    ),
    "arrays of tables": (
        "[[a]]\nx = 1\n[[a]]\nx = 2\n[a.b]\ny = 1\n[[a.c]]\n[[a.c]]\nz=1\n[[a]]\n[[a.c]]\n",
        {
            ("a",): 1,
            ("a", 0): 1,
            ("a", 0, "x"): 2,
            ("a", 1): 3,
            ("a", 1, "x"): 4,
            ("a", 1, "b"): 5,
            ("a", 1, "b", "y"): 6,
            ("a", 1, "c"): 7,
            ("a", 1, "c", 0): 7,
            ("a", 1, "c", 1): 8,
            ("a", 1, "c", 1, "z"): 9,
            ("a", 2): 10,
            ("a", 2, "c"): 11,
            ("a", 2, "c", 0): 11,
        },
    ),
    "times and numbers": (
        "a = 1979-05-27 07:32:00Z # t\nb = 1.5e-3\nc=inf\n1.2 = true\n-_x = 1",
        {("a",): 1, ("b",): 2, ("c",): 3, ("1",): 4, ("1", "2"): 4, ("-_x",): 5},
    ),
    "windows line ends": (
        'a = 1\r\n[b]\r\nc = """\r\nx\r\n"""\r\nd = [\r\n1]\r\n',
        {("a",): 1, ("b",): 2, ("b", "c"): 3, ("b", "d"): 6, ("b", "d", 0): 7},
    ),
    "empty": ("", {}),
    "only comments": ("# x\n\n#y", {}),
}


def flatten(value: Any, path: KeyPath = ()) -> set[KeyPath]:
    """Every key path of what tomllib read."""
    children: list[tuple[str | int, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value))
    here = {path} if path else set()
    return here.union(*(flatten(child, (*path, key)) for key, child in children))


@pytest.mark.parametrize("name", CASES)
def test_line_of_every_key(name: str) -> None:
    text, expected = CASES[name]
    read = tomllib.loads(text)
    assert flatten(read) == set(expected)
    assert locate(text) == expected


def test_nearest_line_falls_back_to_the_table_around() -> None:
    lines = locate("\n[models.a]\npath = 'x'\n")
    assert nearest_line(lines, ("models", "a", "path")) == 3
    assert nearest_line(lines, ("models", "a", "context")) == 2
    assert nearest_line(lines, ("models", "b")) == 2
    assert nearest_line(lines, ("server", "socket")) == 0


TRICKY = st.text(alphabet="ab\"'\\#[]{}=,. \n\té", max_size=6)
SCALARS = st.one_of(st.integers(), st.booleans(), TRICKY)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(TRICKY, inner, max_size=3)
    ),
    max_leaves=8,
)


def quoted(text: str, flavour: int) -> str:
    """The same text in one of TOML's string forms, where that form can hold it."""
    if flavour == 1 and "'" not in text and "\n" not in text:
        return f"'{text}'"
    if flavour == 2 and "'''" not in text and not text.startswith(("'", "\n")):
        return f"'''{text}'''" if not text.endswith("'''") else json.dumps(text)
    if flavour == 3:
        body = text.replace("\\", "\\\\").replace('"', '\\"')
        return '"""\n' + body + '"""'
    return json.dumps(text)


class Writer:
    """Writes TOML in varied layout and remembers the line of every key."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.text = ""
        self.lines: dict[KeyPath, int] = {}

    def put(self, text: str) -> None:
        self.text += text

    def note(self, path: KeyPath) -> None:
        self.lines.setdefault(path, self.text.count("\n") + 1)

    def gap(self) -> None:
        self.put(self._draw(st.sampled_from(["", " ", "\n", " # ]}\n", "\n\n\t"])))

    def value(self, value: Any, path: KeyPath) -> None:
        if isinstance(value, bool):
            self.put(str(value).lower())
        elif isinstance(value, int):
            self.put(str(value))
        elif isinstance(value, str):
            self.put(quoted(value, self._draw(st.integers(0, 3))))
        elif isinstance(value, list):
            self.put("[")
            for index, item in enumerate(value):
                self.gap()
                self.note((*path, index))
                self.value(item, (*path, index))
                self.gap()
                self.put(",")
            self.gap()
            self.put("]")
        else:
            self.put("{")
            for index, (key, item) in enumerate(value.items()):
                self.put(", " if index else " ")
                self.note((*path, key))
                self.put(f"{json.dumps(key)} = ")
                self.value(item, (*path, key))
            self.put(" }")


@given(st.dictionaries(TRICKY, st.dictionaries(TRICKY, VALUES, max_size=4), max_size=4), st.data())
def test_any_document(document: dict[str, dict[str, Any]], data: st.DataObject) -> None:
    """Whatever layout the same data is written in, every key is found on its line."""
    writer = Writer(data.draw)
    for name, table in document.items():
        writer.put("\n" * data.draw(st.integers(0, 2)))
        writer.note((name,))
        writer.put(f"[{json.dumps(name)}] # [x]\n")
        for key, value in table.items():
            writer.note((name, key))
            writer.put(f"{json.dumps(key)} = ")
            writer.value(value, (name, key))
            writer.put("\n")
    assert tomllib.loads(writer.text) == document
    assert locate(writer.text) == writer.lines
