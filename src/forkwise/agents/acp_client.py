"""A program that runs an agent by the Agent Client Protocol, for one prompt: ``acp_client --prompt=TEXT -- COMMAND``.

It runs inside an attempt's sandbox, beside the agent, and plays the editor that the agent expects. It grants every
permission that the agent requests, because the sandbox decides what the agent can reach, and prints what happens as
lines of JSON, which `forkwise.agents.formats.acp` reads. Without ``--prompt`` the prompt is standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import acp
from acp import schema

from forkwise import __version__

__all__ = ["main"]

_LONGEST_MESSAGE = 50 << 20  # bytes
_PREFERRED = ("allow_always", "allow_once")


def _print(type_: str, **values: Any) -> None:
    sys.stdout.write(f"{json.dumps({'type': type_, **values})}\n")
    sys.stdout.flush()


class _Editor:
    """The editor's side of the connection: files are those of the branch, and every permission is granted."""

    async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
        data = update.model_dump(mode="json", by_alias=True, exclude_none=True)
        _print("update", update={"sessionUpdate": data.get("sessionUpdate"), **data})  # its kind first, for the format

    async def request_permission(
        self, session_id: str, tool_call: Any, options: list[schema.PermissionOption], **_: Any
    ) -> schema.RequestPermissionResponse:
        ranked = [option for kind in _PREFERRED for option in options if option.kind == kind]
        _print("permission", title=tool_call.title, is_given=bool(ranked))
        outcome: schema.AllowedOutcome | schema.DeniedOutcome = schema.DeniedOutcome(outcome="cancelled")
        if ranked:
            outcome = schema.AllowedOutcome(outcome="selected", option_id=ranked[0].option_id)
        return schema.RequestPermissionResponse(outcome=outcome)

    async def read_text_file(
        self, path: str, session_id: str, line: int | None = None, limit: int | None = None, **_: Any
    ) -> schema.ReadTextFileResponse:
        lines = Path(path).read_text(errors="replace").splitlines(keepends=True)
        first = max((line or 1) - 1, 0)
        return schema.ReadTextFileResponse(content="".join(lines[first : None if limit is None else first + limit]))

    async def write_text_file(self, path: str, content: str, session_id: str, **_: Any) -> schema.WriteTextFileResponse:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(content)
        return schema.WriteTextFileResponse()

    def on_connect(self, conn: Any) -> None:
        """Do nothing: the agent sends nothing until it gets a request."""


async def _run(prompt: str, words: list[str]) -> int:
    can = schema.ClientCapabilities(fs=schema.FileSystemCapabilities(read_text_file=True, write_text_file=True))
    start = acp.spawn_agent_process(
        _Editor(),  # type: ignore[arg-type]  # an agent asks for terminals and the like only if the editor offers them
        *words,
        env=os.environ,
        transport_kwargs={"limit": _LONGEST_MESSAGE, "stderr": None},
    )
    async with start as (agent, _):
        info = schema.Implementation(name="forkwise", version=__version__)
        await agent.initialize(protocol_version=acp.PROTOCOL_VERSION, client_capabilities=can, client_info=info)
        session = await agent.new_session(cwd=str(Path.cwd()), mcp_servers=[])
        _print("session", id=session.session_id)
        answer = await agent.prompt(session_id=session.session_id, prompt=[acp.text_block(prompt)])
    usage = None if answer.usage is None else answer.usage.model_dump(mode="json", by_alias=True, exclude_none=True)
    _print("end", reason=answer.stop_reason, usage=usage)
    return 0 if answer.stop_reason == "end_turn" else 1


def main(words: list[str]) -> int:
    """Run an agent, and return 0 if it finished its turn."""
    at = words.index("--")
    options, command = words[:at], words[at + 1 :]
    prompt = options[0].removeprefix("--prompt=") if options else sys.stdin.read()
    try:
        return asyncio.run(_run(prompt, command))
    except acp.RequestError as error:
        details = error.data if isinstance(error.data, str) else json.dumps(error.data) if error.data else ""
        _print("failure", message=f"{error}{details and f': {details}'}")
    except (OSError, EOFError) as error:
        _print("failure", message=f"the agent ended before its turn was over: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
