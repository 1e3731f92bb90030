"""Chat messages to token ids, so that no message can write a control token.

A rendered prompt is text in which the template's `<|im_end|>` and one that a user typed look the
same. They are told apart like this:

1. Every control token's text holds at least one *key character* (for most models `<` alone, or
   `<` and `[`), chosen once per tokenizer.
2. The prompt is rendered a second time with the key characters of all message and tool texts
   replaced by private-use characters that occur nowhere in it. In that text, control tokens can
   only be the template's own, whatever the template does to the messages: trimming, splitting,
   joining two of them, dropping one.
3. If both renderings have the same control tokens in the same order, the messages added none, and
   the plain rendering's ids are the answer: identical to what everyone else gets. (A template that
   looks into messages, for `</think>` say, sees the real text here.)
4. Otherwise the second rendering is the answer, with the stand-ins turned back and the text around
   them tokenized as text. A template that looks for its own control tokens in messages does not
   find them then; nothing else changes.

Roles, types and the keys of objects are compared by templates, so those that are plain words stay
as they are. A role that is not one of the usual ones is refused if, with the template's own text
around it, it could make up a control token (`<|` + role + `|>`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from homespecd.bundle.chat import ChatTemplate, prepared
from homespecd.bundle.tokenizer import Tokenizer
from homespecd.errors import RequestError

_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "ipython"})
_COMPARED = frozenset({"role", "type"})
_PRIVATE_USE = range(0xF0000, 0x10FFFE)


def encode_chat(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """Token ids of a chat prompt, ready for the model to answer.

    The begin-of-text token is added if the model wants one and the template did not write it.

    Raises:
        RequestError: 400, the template refuses the messages (see `ChatTemplate.render`), a role
            spells a part of a control token, or the nesting is too deep.
    """
    _check_roles(tokenizer, messages)
    try:
        ids = _encode(tokenizer, template, messages, tools)
    except RecursionError as error:
        raise RequestError("messages or tools are nested too deeply", param="messages") from error
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    return ids


def _encode(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]],
) -> list[int]:
    messages = prepared(messages)  # first: JSON text may hide a key character behind an escape
    text = template.render(messages, tools=tools)
    ids = tokenizer.encode(text, parse_special=True)
    marks = _stand_ins(tokenizer.control_keys, text, [messages, tools])
    if not marks:
        return ids
    table = {ord(key): mark for key, mark in marks.items()}
    marked = _Marked(
        template.render(
            [_replaced(message, table) for message in messages],
            tools=[_replaced(tool, table) for tool in tools],
        ),
        {mark: key for key, mark in marks.items()},
    )
    spans = tokenizer.encode_spans(marked.text, parse_special=True)
    of_template = [token_id for token_id, _ in spans if tokenizer.is_special(token_id)]
    if of_template == [token_id for token_id in ids if tokenizer.is_special(token_id)]:
        return ids
    return list(_restored(tokenizer, marked, spans))


@dataclass(frozen=True)
class _Marked:
    """A rendering with stand-ins, and what they stand for."""

    text: str
    meaning: Mapping[str, str]

    def restore(self, start: int, end: int) -> str:
        table = {ord(mark): key for mark, key in self.meaning.items()}
        return self.text[start:end].translate(table)

    def has_stand_in(self, start: int, end: int) -> bool:
        return any(one in self.meaning for one in self.text[start:end])


def _restored(
    tokenizer: Tokenizer, marked: _Marked, spans: Sequence[tuple[int, tuple[int, int]]]
) -> Iterator[int]:
    """The template's control tokens as they are; text with stand-ins tokenized again as text."""
    run: list[int] = []
    begin = 0
    for token_id, (start, end) in [*spans, (None, (len(marked.text), len(marked.text)))]:
        if token_id is not None and not tokenizer.is_special(token_id):
            run.append(token_id)
            continue
        if marked.has_stand_in(begin, start):
            yield from tokenizer.encode(marked.restore(begin, start), parse_special=False)
        else:
            yield from run
        run = []
        begin = end
        if token_id is not None:
            yield token_id


def _stand_ins(keys: frozenset[str], rendered: str, values: Any) -> dict[str, str]:
    """Key characters that occur in the texts → a private-use character that does not."""
    seen: set[str] = set()

    def look(text: str) -> str:
        seen.update(text)
        return text

    _mapped(values, look)
    needed = sorted(keys & seen)
    if not needed:
        return {}
    used = seen | set(rendered)
    unused = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
    free = list(islice(unused, len(needed)))
    if len(free) < len(needed):
        raise RequestError("the messages use every private-use character", param="messages")
    return dict(zip(needed, free, strict=True))


def _replaced(value: Any, table: Mapping[int, str]) -> Any:
    return _mapped(value, lambda text: text.translate(table))


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """`value` with every text in it changed, but for words that templates compare."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {
            (key if str(key).isidentifier() else _mapped(key, change)): (
                one
                if key in _COMPARED and isinstance(one, str) and one.isidentifier()
                else _mapped(one, change)
            )
            for key, one in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_mapped(one, change) for one in value]
    return value


def _check_roles(tokenizer: Tokenizer, messages: Sequence[Mapping[str, Any]]) -> None:
    for message in messages:
        role = message.get("role")
        if not isinstance(role, str) or not role:
            raise RequestError("a message has no role", param="messages")
        if role in _ROLES:
            continue
        control = tokenizer.special_tokens
        if any(role in text or text in role for text in control if text):
            raise RequestError(
                f"role {role!r} is not known to this model",
                param="messages",
                hint="use system, user, assistant or tool",
            )
