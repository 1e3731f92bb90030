"""Messages and tools as OpenAI's clients write them, and as chat templates read them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from homespecd.api import fields

# `developer` is the newer name of `system`, which is what templates know.
_ROLES = {"developer": "system"}


class Schema(BaseModel):
    """What a client may send: nothing unknown, nothing of another type, and null is nothing."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if value is not None}


class CalledFunction(Schema):
    name: str
    arguments: str


class Call(Schema):
    """A tool call of an earlier answer, as a client sends it back."""

    id: str | None = None
    type: Literal["function"] = "function"
    index: int | None = None
    function: CalledFunction


class Message(Schema):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: fields.Content
    name: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None

    def rendered(self) -> dict[str, Any]:
        """As a chat template gets it."""
        message: dict[str, Any] = {
            "role": _ROLES.get(self.role, self.role),
            "content": self.content,
            "name": self.name,
            "tool_call_id": self.tool_call_id,
            "tool_calls": None
            if self.tool_calls is None
            else [one.model_dump(exclude={"index"}, exclude_none=True) for one in self.tool_calls],
        }
        return {key: value for key, value in message.items() if value is not None}


class Function(Schema):
    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Schema):
    type: Literal["function"]
    function: Function
