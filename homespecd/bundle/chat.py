"""A model's chat template: messages to the text of a prompt.

Templates are Jinja, written for one environment that the ecosystem agrees on (blocks trimmed,
`raise_exception`, `strftime_now`, a `tojson` that leaves HTML alone, loop controls, `generation`
blocks). They come with a downloaded model, so they run sandboxed and with bounded output.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import Environment, Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from homespecd.bundle.end_ids import read_json, token_name
from homespecd.bundle.tokenizer import Tokenizer
from homespecd.errors import BundleError, RequestError

MAX_PROMPT_CHARS = 16 * 1024 * 1024
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")
_TEMPLATE_FAULTS = (
    TemplateError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    RecursionError,
)
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@dataclass(frozen=True)
class ChatSource:
    """Where a template comes from. `tool_use`: another one, used when a request has tools."""

    default: str
    tool_use: str | None = None


class ChatTemplate:
    """The template of one model.

    Args:
        source: None when the model has none; every `render` is then refused.
        names: what templates call tokens by (`bos_token` and so on) → the token's text.
        clock: the local time, for templates that print a date.
    """

    def __init__(
        self,
        source: ChatSource | str | None,
        *,
        names: Mapping[str, str] | None = None,
        clock: Callable[[], datetime] = lambda: datetime.now().astimezone(),
        max_chars: int = MAX_PROMPT_CHARS,
    ) -> None:
        self._source = ChatSource(source) if isinstance(source, str) else source
        self._names = dict(names or {})
        self._max_chars = max_chars
        self._environment = _environment(clock, max_chars)
        self._compiled: dict[str, Template] = {}

    @classmethod
    def load(cls, folder: Path, tokenizer: Tokenizer) -> ChatTemplate:
        """The template of a model's folder.

        From chat_template.jinja, else `chat_template` of tokenizer_config.json (text, or a list
        of named ones). A model without one gets plain ChatML if its vocabulary has the control
        tokens for it; otherwise chat requests are refused, and completions still work.

        Raises:
            BundleError: a file cannot be read.
        """
        config = read_json(folder / "tokenizer_config.json")
        path = folder / "chat_template.jinja"
        source: ChatSource | None
        if path.is_file():
            try:
                source = ChatSource(path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError) as error:
                raise BundleError(f"cannot be read: {error}", where=str(path)) from error
        else:
            source = _configured(config.get("chat_template"))
        if source is None and {"<|im_start|>", "<|im_end|>"} <= tokenizer.special_tokens.keys():
            source = ChatSource(CHATML)
        declared = {**read_json(folder / "special_tokens_map.json"), **config}
        found = {name: token_name(declared.get(name)) for name in _NAMED_TOKENS}
        if found["bos_token"] is None and tokenizer.bos_id is not None:
            found["bos_token"] = tokenizer.token_text(tokenizer.bos_id)
        return cls(source, names={name: text for name, text in found.items() if text is not None})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text.

        Message content is text already, or None (taken as empty); tool call arguments may be JSON
        text and are given to the template as the object they spell.

        Raises:
            RequestError: 400, the template refuses these messages or fails on them (its own words
                are in the message), the result is over the limit, or there is no template.
        """
        variables = {
            **self._names,
            "messages": prepared(messages),
            "tools": [dict(tool) for tool in tools] or None,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._bounded(self._template(bool(tools)), variables)
        except _TEMPLATE_FAULTS as error:
            said = str(error) or type(error).__name__
            raise _refusal(f"the model's chat template does not accept this: {said}") from error

    def text(self, *, with_tools: bool) -> str:
        """The template itself, as it is used with or without tools.

        Raises:
            RequestError: 400, there is none.
        """
        if self._source is None:
            raise _refusal(
                "this model has no chat template", hint="use /v1/completions with a plain prompt"
            )
        return (self._source.tool_use if with_tools else None) or self._source.default

    def _template(self, with_tools: bool) -> Template:
        text = self.text(with_tools=with_tools)
        if text not in self._compiled:
            self._compiled[text] = self._environment.from_string(text)
        return self._compiled[text]

    def _bounded(self, template: Template, variables: Mapping[str, Any]) -> str:
        parts: list[str] = []
        chars = 0
        for part in template.generate(variables):
            parts.append(part)
            chars += len(part)
            if chars > self._max_chars:
                raise TemplateError(f"the prompt is longer than {self._max_chars} characters")
        return "".join(parts)


def _refusal(message: str, *, hint: str = "") -> RequestError:
    return RequestError(message, status=400, param="messages", hint=hint)


def _configured(value: object) -> ChatSource | None:
    if isinstance(value, str) and value:
        return ChatSource(value)
    if not isinstance(value, list):
        return None
    named = {
        one["name"]: one["template"]
        for one in value
        if isinstance(one, dict)
        and isinstance(one.get("name"), str)
        and isinstance(one.get("template"), str)
    }
    default = named.get("default") or next(iter(named.values()), None)
    return None if default is None else ChatSource(default, named.get("tool_use"))


def prepared(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Messages as templates expect them; preparing them twice changes nothing."""
    return [_prepared(message) for message in messages]


def _prepared(message: Mapping[str, Any]) -> dict[str, Any]:
    changed = dict(message)
    if changed.get("content") is None:
        changed["content"] = ""
    calls = changed.get("tool_calls")
    if isinstance(calls, (list, tuple)):
        changed["tool_calls"] = [_prepared_call(call) for call in calls]
    return changed


def _prepared_call(call: Any) -> Any:
    """Templates print arguments through `tojson`; JSON text would come out quoted twice."""
    match call:
        case {"function": {"arguments": str(text)} as function}:
            try:
                arguments = json.loads(text)
            except (ValueError, RecursionError):
                return call
            if isinstance(arguments, dict):
                return {**call, "function": {**function, "arguments": arguments}}
    return call


class _Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks answers for training: the body as it is."""

    tags = {"generation"}  # noqa: RUF012 (jinja2's own way to declare it)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """jinja2's immutable sandbox, with operators that cannot make something enormous."""

    intercepted_binops = frozenset({"*", "**"})
    max_chars = MAX_PROMPT_CHARS

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for sequence, times in ((left, right), (right, left)):
                if (
                    isinstance(sequence, (str, bytes, list, tuple))
                    and isinstance(times, int)
                    and len(sequence) * times > self.max_chars
                ):
                    raise TemplateError("a repetition in the template is too long")
        elif isinstance(right, (int, float)) and abs(right) > 64:
            raise TemplateError("an exponent in the template is too large")
        return super().call_binop(context, operator, left, right)


def _environment(clock: Callable[[], datetime], max_chars: int) -> Environment:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_Generation, "jinja2.ext.loopcontrols"],
    )
    environment.max_chars = max_chars
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: clock().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
