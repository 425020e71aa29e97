"""All verbs of the ``forkwise`` command, in one group. Each module of ``cli.commands`` holds related ones."""

from __future__ import annotations

from forkwise.cli.commands.agent.agents import agents, continue_session
from forkwise.cli.commands.agent.chat import acp, chat
from forkwise.cli.commands.agent.install import install, uninstall
from forkwise.cli.commands.agent.keys import keys
from forkwise.cli.commands.agent.mcp_server import mcp
from forkwise.cli.commands.agent.model import model
from forkwise.cli.commands.agent.walk import walk
from forkwise.cli.commands.branch import branch
from forkwise.cli.commands.completion import completion
from forkwise.cli.commands.decide import abort, combine, follow_up, pick, resume, wait
from forkwise.cli.commands.doctor import doctor
from forkwise.cli.commands.explore import EXPLORE_VERBS
from forkwise.cli.commands.export import export
from forkwise.cli.commands.fork_report import report
from forkwise.cli.commands.forks import diff, ls, show, watch
from forkwise.cli.commands.history import du, gc, judges, log, undo
from forkwise.cli.commands.ledger_copy import ledger
from forkwise.cli.commands.preview import open_preview, port
from forkwise.cli.commands.snapshot import snapshot
from forkwise.cli.commands.trust import trust
from forkwise.cli.commands.web_page import serve
from forkwise.cli.commands.worktree import worktree
from forkwise.cli.root_command import forkwise_command

__all__ = ["forkwise_command"]

forkwise_command.add_section("Explore", EXPLORE_VERBS)
forkwise_command.add_section("Decide", (pick, combine, follow_up, resume, abort, undo))
forkwise_command.add_section(
    "Look", (ls, show, watch, serve, wait, open_preview, port, diff, report, export, log, judges)
)
forkwise_command.add_section("Branch", (branch, worktree, snapshot))
forkwise_command.add_section("Agent", (agents, continue_session, chat, acp, mcp, install, uninstall, keys, walk, model))
forkwise_command.add_section("Maintenance", (doctor, trust, ledger, gc, du, completion))
