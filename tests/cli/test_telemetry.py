"""Spans that the command line exports to an OTLP receiver on the loopback."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.need import need

pytestmark = pytest.mark.integration


class Receiver(ThreadingHTTPServer):
    """Keeps the spans that are posted to /v1/traces."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        assert self.path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.server.services |= {
                entry.value.string_value for entry in resource.resource.attributes if entry.key == "service.name"
            }
            self.server.spans += [span for scope in resource.scope_spans for span in scope.spans]
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_words: object) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter  # noqa: F401
    except ImportError:
        need(False, "the OTLP exporter is not installed")
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    root.mkdir()
    (root / "answer").write_text("41\n")
    return root


def run(project: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    environment |= {"FORKWISE_STATE": str(project.parent / "state"), "HOME": str(project.parent), **variables}
    forkwise = Path(sys.executable).parent / "forkwise"
    return subprocess.run([forkwise, *words], cwd=project, env=environment, capture_output=True, text=True, timeout=300)


def values_of(holder: Any) -> dict[str, Any]:
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in holder.attributes}


def test_an_exploration_is_exported_by_the_conventions(receiver: Receiver, project: Path) -> None:
    done = run(
        project,
        *("speculate", "--all", "--test", "grep -q 42 answer", "-c", "echo 42 > answer", "-c", "echo 43 > answer"),
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.server_port}",
    )
    assert done.returncode == 0, done.stderr
    assert receiver.services == {"forkwise"}
    spans = {span.span_id: span for span in receiver.spans}
    [workflow] = [span for span in receiver.spans if span.name == "invoke_workflow speculate"]
    assert values_of(workflow) == {
        "gen_ai.operation.name": "invoke_workflow",
        "gen_ai.workflow.name": "speculate",
    }
    attempts = [span for span in receiver.spans if span.name == "forkwise.attempt"]
    assert len(attempts) == 2
    verdicts = {}
    for attempt in attempts:
        assert spans[attempt.parent_span_id] is workflow
        [event] = attempt.events
        assert event.name == "gen_ai.evaluation.result"
        found = values_of(event)
        assert found["gen_ai.evaluation.name"] == "tests"
        verdicts[values_of(attempt)["forkwise.label"]] = found["gen_ai.evaluation.score.label"]
    assert verdicts == {"echo 42 > answer": "pass", "echo 43 > answer": "fail"}
    assert len({span.trace_id for span in receiver.spans}) == 1


def test_a_receiver_that_is_gone_changes_nothing(project: Path) -> None:
    done = run(
        project,
        *("speculate", "-c", "echo 42 > answer"),
        OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9",
        OTEL_EXPORTER_OTLP_TIMEOUT="1",
    )
    assert done.returncode == 0, done.stderr
    assert (project / "answer").read_text() == "42\n"
