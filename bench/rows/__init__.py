"""The rows of the table: functions that measure, and return lines."""

from __future__ import annotations

from collections.abc import Callable

from bench.line import Line
from bench.rows.abort import measure_abort
from bench.rows.agent_streams import measure_agent_streams
from bench.rows.agents import measure_agents
from bench.rows.branch import measure_branch
from bench.rows.chat import measure_chat
from bench.rows.cluster import measure_cluster, measure_travel
from bench.rows.commit import measure_commit
from bench.rows.conversation import measure_conversation
from bench.rows.diff_report import measure_diff_report
from bench.rows.explore import measure_explore
from bench.rows.git_status import measure_git_status
from bench.rows.ledger import measure_ledger
from bench.rows.live import measure_live
from bench.rows.live_files import measure_live_files
from bench.rows.live_fork import measure_live_fork
from bench.rows.mcp import measure_mcp
from bench.rows.modules import measure_modules
from bench.rows.network import measure_network
from bench.rows.preview import measure_preview
from bench.rows.sandbox import measure_sandbox
from bench.rows.servers import measure_servers
from bench.rows.snapshots import measure_snapshots
from bench.rows.start import measure_start
from bench.rows.terminal import measure_terminal
from bench.rows.walk import measure_walk
from bench.rows.web import measure_web
from bench.rows.worktree import measure_worktree
from bench.scratch import Scratch

__all__ = ["ROWS"]

#: In the order of measurement. Rows that delete many files come late: afterwards some filesystems create files slowly.
ROWS: dict[str, Callable[[Scratch], list[Line]]] = {
    "branch": measure_branch,
    "commit": measure_commit,
    "walk": measure_walk,
    "git-status": measure_git_status,
    "worktree": measure_worktree,
    "sandbox": measure_sandbox,
    "network": measure_network,
    "preview": measure_preview,
    "web": measure_web,
    "servers": measure_servers,
    "explore": measure_explore,
    "ledger": measure_ledger,
    "start": measure_start,
    "mcp": measure_mcp,
    "agent-streams": measure_agent_streams,
    "agents": measure_agents,
    "modules": measure_modules,
    "conversation": measure_conversation,
    "live-files": measure_live_files,
    "diff-report": measure_diff_report,
    "snapshots": measure_snapshots,
    "cluster": measure_cluster,
    "travel": measure_travel,
    "abort": measure_abort,
    "live": measure_live,
    "live-fork": measure_live_fork,
    "terminal": measure_terminal,
    "chat": measure_chat,
}
