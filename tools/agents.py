"""Run real coding agents in forkwise against a scripted model: ``make agents``.

The programs are installed from npm into a temporary prefix, or taken from the directory in AGENTS_PREFIX, whose ``bin``
or ``node_modules/.bin`` has them. A server on the loopback plays the models of Anthropic and OpenAI. As root,
everything runs a second time as the user ``nobody``. It prints a table, and exits with 1 if something does not hold.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import click
from tests.cli.test_unprivileged import TOOLS
from tests.unprivileged import UNPRIVILEGED as NOBODY
from tests.unprivileged import interpreter, readable_copy

PACKAGES = {"claude": "@anthropic-ai/claude-code", "codex": "@openai/codex"}
FIX = "case $FORKWISE_ATTEMPT in 1) sed -i s/-/+/ calc.py ;; 2) echo '# wrong' >> calc.py ;; esac"
TEST = "python3 -c 'import calc; assert calc.add(1, 2) == 3'"


class Model(BaseHTTPRequestHandler):
    """Plays a model that runs one shell command, and then says that it is done."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_GET(self) -> None:
        self._send(b"{}", "application/json")

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        try:
            request = json.loads(body)
        except ValueError:
            request = {}
        if "count_tokens" in self.path:
            self._send(b'{"input_tokens": 10}', "application/json")
        elif self.path.startswith("/v1/messages"):
            self._send_events(_anthropic(request))
        elif self.path.endswith("/responses"):
            self._send_events(_openai(request))
        else:
            self._send(b"{}", "application/json")

    def _send_events(self, events: list[dict[str, Any]]) -> None:
        text = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)
        self._send(text.encode(), "text/event-stream")

    def _send(self, content: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _anthropic(request: dict[str, Any]) -> list[dict[str, Any]]:
    contents = [message["content"] for message in request.get("messages", ()) if isinstance(message["content"], list)]
    is_done = any(part.get("type") == "tool_result" for content in contents for part in content)
    has_tool = any(tool.get("name") == "Bash" for tool in request.get("tools", ()))
    if has_tool and not is_done:
        block: dict[str, Any] = {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps({"command": FIX, "description": "fix"})}
    else:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": "Fixed it."}
    usage = {"input_tokens": 100, "output_tokens": 5}
    head = {"id": f"msg_{time.monotonic_ns()}", "type": "message", "role": "assistant", "model": request.get("model")}
    head |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    stop = "tool_use" if block["type"] == "tool_use" else "end_turn"
    return [
        {"type": "message_start", "message": head},
        {"type": "content_block_start", "index": 0, "content_block": block},
        {"type": "content_block_delta", "index": 0, "delta": delta},
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": stop, "stop_sequence": None},
            "usage": {"output_tokens": 20},
        },
        {"type": "message_stop"},
    ]


def _openai(request: dict[str, Any]) -> list[dict[str, Any]]:
    items = [item for item in request.get("input", ()) if isinstance(item, dict)]
    names = [tool.get("name") for tool in request.get("tools", ())]
    calls = {"exec_command": {"cmd": FIX}, "shell_command": {"command": FIX}, "shell": {"command": ["sh", "-c", FIX]}}
    tool = next((name for name in calls if name in names), None)
    if tool is not None and not any(item.get("type") == "function_call_output" for item in items):
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": tool}
        item["arguments"] = json.dumps(calls[tool])
    else:
        content = [{"type": "output_text", "text": "Fixed it."}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "content": content}
    usage = {"input_tokens": 100, "input_tokens_details": None, "output_tokens": 5, "output_tokens_details": None}
    return [
        {"type": "response.created", "response": {"id": "resp_1"}},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": {"id": "resp_1", "usage": usage | {"total_tokens": 105}}},
    ]


@dataclass(frozen=True)
class Result:
    """One agent, as one user."""

    agent: str
    version: str
    user: str
    problems: tuple[str, ...]
    bare_s: float
    overhead_s: float

    def __str__(self) -> str:
        verdict = "; ".join(self.problems) or "right one wins, session, tokens, closing message"
        times = f"{self.bare_s:.2f} s | {self.overhead_s:+.2f} s"
        return f"| {self.agent} {self.version} | {self.user} | {verdict} | {times} |"


def try_agent(agent: str, programs: str, url: str, top: Path, user: int, sources: str) -> Result:
    """Run best-of 3 with one right, one wrong and one idle attempt, in an empty home directory."""
    place = top / f"{agent}-{user}"
    for name in ("home", "project"):
        (place / name).mkdir(parents=True)
    (place / "project/calc.py").write_text("def add(a, b):\n    return a - b\n")
    keys = {"ANTHROPIC_API_KEY": "test-key-of-nobody", "OPENAI_API_KEY": "test-key-of-nobody"}
    env = {"PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(place / "home"), **keys}
    env |= {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1", "FORKWISE_STATE": str(place / "state")}
    env |= {"PYTHONPATH": sources} if user else {}
    if agent == "codex":
        (place / "home/.codex").mkdir()
        provider = f'name = "scripted"\nbase_url = "{url}/v1"\nenv_key = "OPENAI_API_KEY"\nwire_api = "responses"\n'
        config = f'model_provider = "scripted"\nmodel = "gpt-5"\n[model_providers.scripted]\n{provider}'
        (place / "home/.codex/config.toml").write_text(config)
    for path in (place, *place.rglob("*")):
        os.chown(path, user, user)

    def run(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            cwd=place / "project",
            env=env | more,
            user=user or None,
            group=user or None,
            extra_groups=[] if user else None,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    forkwise = (interpreter() if user else sys.executable, "-c", "from forkwise.cli import main; main()")
    version = run(agent, "--version").stdout.split()
    network = ("--network", "host")
    done = run(*forkwise, "best-of", "3", *network, "--agent", agent, "--test", TEST, "--json", "fix add")
    problems = _find_problems(done, place)
    bare = {
        "claude": ("claude", "-p", "x", "--dangerously-skip-permissions", "--output-format=stream-json", "--verbose")
    }
    command = bare.get(agent, ("codex", "exec", "--json", "--skip-git-repo-check", "-s", "danger-full-access", "x"))
    bare_s = min(_measure(lambda: run(*command, IS_SANDBOX="1")) for _ in range(3))
    inside_s = min(
        _read_seconds(run(*forkwise, "run", *network, "--allow-empty", "--agent", agent, "--json", "x"))
        for _ in range(3)
    )
    return Result(
        agent,
        next((w for w in version if w[:1].isdigit()), "?"),
        "root" if not user else "nobody",
        tuple(problems),
        bare_s,
        inside_s - bare_s,
    )


def _measure(call: Any) -> float:
    started = time.monotonic()
    call()
    return time.monotonic() - started


def _read_seconds(done: subprocess.CompletedProcess[str]) -> float:
    """Return from the start of the attempt to its end, as the ledger has them."""
    events = [json.loads(line).get("event") or {} for line in done.stdout.splitlines()]
    at = {event.get("kind"): event.get("at", 0.0) for event in events}
    return float(at.get("ended", 0.0) - at.get("started", 0.0))


def _find_problems(done: subprocess.CompletedProcess[str], place: Path) -> list[str]:
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    outcome = next((line["outcome"] for line in lines if "outcome" in line), None)
    if outcome is None:
        return [f"no outcome: {(done.stderr or done.stdout)[-300:]!r}"]
    attempts = outcome["attempts"]
    problems = [] if str(outcome["winner"]).endswith(".1") else [f"winner {outcome['winner']}"]
    problems += [f"{a['id']} {a['state']}: {a['reason']}" for a in attempts if a["fault"]]
    problems += [] if len({a["session"] for a in attempts} - {None}) == 3 else ["sessions are not distinct"]
    problems += [] if all((a["cost"] or {}).get("input_tokens") for a in attempts) else ["no tokens"]
    problems += [] if all(a["answer"] == "Fixed it." for a in attempts) else ["no closing message"]
    problems += [] if outcome["continue"] else ["no command to continue"]
    problems += [] if "a + b" in (place / "project/calc.py").read_text() else ["not committed"]
    kept = [
        str(path) for path in (place / "home").rglob("*.jsonl") if any(str(a["session"]) in path.name for a in attempts)
    ]
    problems += [] if len(kept) == 1 else [f"{len(kept)} sessions are kept"]
    return problems


@contextmanager
def _copy_sources() -> Iterator[Path]:
    """Copy forkwise and what it needs to where every user can read it."""
    with readable_copy(TOOLS) as copy:
        for found in Path(click.__file__).parents[1].glob("opentelemetry*"):
            shutil.copytree(found, copy / "tools" / found.name)
        subprocess.run(["chmod", "-R", "a+rX", str(copy / "tools")], check=True)
        yield copy


def main() -> int:
    """Run all agents, as root also as another user."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory(prefix="agents-", dir="/var/tmp") as name:
        top = Path(name)
        top.chmod(0o755)
        prefix = os.environ.get("AGENTS_PREFIX")
        if prefix is None:
            prefix = str(top / "prefix")
            subprocess.run(["npm", "install", "--silent", "--prefix", prefix, *PACKAGES.values()], check=True)
        programs = f"{prefix}/bin:{prefix}/node_modules/.bin"
        users = (0, NOBODY) if os.geteuid() == 0 else (os.geteuid(),)
        print("| agent | user | best-of 3 | bare | forkwise adds |\n| --- | --- | --- | --- | --- |")
        failed = False
        for agent in PACKAGES:
            if shutil.which(agent, path=programs) is None:
                print(f"| {agent} | | not installed | | |")
                failed = True
                continue
            for user in users:
                with _copy_sources() if user == NOBODY else nullcontext() as copy:
                    result = try_agent(agent, programs, url, top, user, f"{copy}/src:{copy}/tools")
                print(result, flush=True)
                failed = failed or bool(result.problems)
    server.shutdown()
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
