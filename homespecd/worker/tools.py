"""The tools of one request: does the model know about tools, and how does it call them."""

from __future__ import annotations

import re

from homespecd.bundle.chat import ChatTemplate
from homespecd.decoding.constraint import GrammarSpec
from homespecd.decoding.tool_calls import ToolCalls, format_of
from homespecd.decoding.tool_grammar import tool_grammar
from homespecd.errors import RequestError
from homespecd.worker.messages import GenerationRequest


def check_tools(request: GenerationRequest, template: ChatTemplate) -> None:
    """Raises RequestError (400) when the template would drop tools or calls without a word."""
    said = request.messages or ()
    called = [index for index, message in enumerate(said) if message.get("tool_calls")]
    if request.tools and not _mentions(template, "tools", with_tools=True):
        raise _unknown("tools")
    if called and not _mentions(template, "tool_calls", with_tools=bool(request.tools)):
        raise _unknown(f"messages[{called[0]}].tool_calls")


def takes_tools(template: ChatTemplate) -> bool:
    """Whether a request may have tools."""
    try:
        return _mentions(template, "tools", with_tools=True)
    except RequestError:  # there is no template at all
        return False


def answer_grammar(request: GenerationRequest, template: ChatTemplate) -> GrammarSpec | None:
    """What the answer must be, tools considered; None = anything."""
    if not request.tools:
        return request.grammar
    form = format_of(template.text(with_tools=True))
    return tool_grammar(request.tools, request.tool_choice, form, otherwise=request.grammar)


def tool_calls(request: GenerationRequest, template: ChatTemplate) -> ToolCalls | None:
    """What finds the calls in one choice's text; None when there are no tools to call."""
    if not request.tools:
        return None
    form = format_of(template.text(with_tools=True))
    return ToolCalls(form, [tool["function"]["name"] for tool in request.tools])


def _mentions(template: ChatTemplate, name: str, *, with_tools: bool) -> bool:
    return re.search(rf"\b{name}\b", template.text(with_tools=with_tools)) is not None


def _unknown(param: str) -> RequestError:
    return RequestError(
        "this model's chat template knows nothing of tools",
        code="unsupported_parameter",
        param=param,
    )
