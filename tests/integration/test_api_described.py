"""The real service against the description of its API: whatever that allows is tried.

Answers must be ones that are described, in every field, and nothing may fail inside. Toys with a
small context answer, so that a thousand requests are seconds.
"""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from homespecd.api.openapi import description
from tests.integration.service import Served, Service
from tests.oracle import ASSISTANT, Toy, say

pytestmark = pytest.mark.integration

HELLO = Toy(layout="lanes", script=say("Hello"), script_after=ASSISTANT)
MODELS = ["hello", "absent"]
CHECKS = [
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
# What a failure inside looks like; the description has them, and none may come of a request.
FAULTS = ("internal_error", "model_error", "worker_died")


def tried() -> dict[str, Any]:
    """The description, with names of models that there are, or nearly."""
    described = copy.deepcopy(description())
    names = {"enum": MODELS}
    for schema in described["components"]["schemas"].values():
        if schema["title"].endswith("Request"):
            schema["properties"]["model"] = names
    for path in described["paths"].values():
        for operation in path.values():
            for parameter in operation.get("parameters", ()):
                parameter["schema"] = names
    return described


DESCRIBED = schemathesis.openapi.from_dict(tried())


@pytest.fixture(scope="module", name="service")
def _service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("described")
    service = Service(folder, [Served("hello", HELLO, ("d1",), slots=2, context=48)])
    try:
        service.start()
        yield service
    finally:
        service.close()
        sys.stderr.write(service.log()[-5000:])


@DESCRIBED.parametrize()
@settings(
    max_examples=12,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_described(service: Service, case: schemathesis.Case) -> None:
    asked = case.as_transport_kwargs(base_url="http://homespecd")
    response = service.http.request(
        asked["method"],
        asked["url"],
        params=asked.get("params"),
        headers=dict(asked["headers"]),
        json=asked.get("json"),
        content=asked.get("data"),
    )
    case.validate_response(response, checks=CHECKS)
    if response.headers["Content-Type"].startswith("text/event-stream"):
        last = response.text.rstrip().rpartition("\n\n")[2]
        assert last == "data: [DONE]" or last.startswith("event: error\n"), last
    if response.headers["Content-Type"] == "application/x-ndjson":
        last = json.loads(response.text.splitlines()[-1])
        assert last.get("done") or "error" in last
    if response.status_code >= 400:
        error = json.loads(response.content)["error"]
        code = None if isinstance(error, str) else error["code"]
        assert response.status_code != 500, error
        assert code not in FAULTS, error
        assert response.status_code in (501, 503) or response.status_code < 500, error
