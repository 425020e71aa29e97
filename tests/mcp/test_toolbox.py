"""The tools, through messages of the protocol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from forkwise import Workspace
from forkwise.ledger.detached_run import load_detached_run
from tests.mcp.conftest import FILES, Talker

RIGHT = {"path": "calc.py", "old": "a - b", "new": "a + b"}
UNITTEST = "python3 -m unittest -q"


def test_branches_from_fork_to_undo(talker: Talker, project: Path) -> None:
    made = talker.call("fork", branches=3)
    first, second, _ = made["branches"]
    talker.call("write", branch=first, files=[RIGHT, {"path": "new/notes.md", "content": "# why\n"}])
    talker.call("write", branch=second, files=[{"path": "calc.py", "content": "raise SystemExit\n"}])
    assert talker.call("run", branch=first, command="cat new/notes.md; pwd") | {"output": ""} == {
        "exit_code": 0,
        "ending": "exit",
        "output": "",
    }
    tested = talker.call("test", branches=[first, second], command=UNITTEST)["tests"]
    assert [one["passes"] for one in tested] == [True, False]
    assert "fixed" in tested[0]["compared"]
    shown = talker.call("diff", name=first)
    assert shown["files"] == ["calc.py", "new/notes.md"]
    assert "+    return a + b" in shown["text"]
    assert (project / "calc.py").read_text() == FILES["calc.py"]

    picked = talker.call("pick", names=[first])
    assert picked["committed"]
    assert picked["added"] == ["new", "new/notes.md"] or picked["added"] == ["new/notes.md"]
    assert "a + b" in (project / "calc.py").read_text()
    assert Workspace(project).branches() == []

    assert talker.call("undo")["undoes"] == picked["commit"]
    assert (project / "calc.py").read_text() == FILES["calc.py"]


def test_attempts_by_commands_from_fork_to_pick(talker: Talker, project: Path) -> None:
    commands = ["sed -i s/-/+/ calc.py", "echo '# no' >> calc.py; echo tried"]
    fork = talker.call("fork", commands=commands, test=UNITTEST)["fork"]
    seen, cursor = set(), 0
    state = "running"
    while state == "running":
        news = talker.call("wait", handle=fork, cursor=cursor, timeout_s=40)
        assert news["cursor"] >= cursor
        cursor, state = news["cursor"], news["state"]
        seen |= {one["attempt"] for one in news["new"]}
    assert state == "open"
    run = load_detached_run(Workspace(project).state / "ledger", fork)
    assert run is not None
    assert not run.process.alive, "while it lives, it holds the branches"
    assert seen == {f"{fork}.1", f"{fork}.2"}
    assert talker.call("wait", handle=fork, cursor=cursor, timeout_s=0)["new"] == []
    shown = talker.call("show", name=fork)
    assert shown["best"] == f"{fork}.1"
    assert [one["state"] for one in shown["list"]] == ["succeeded", "failed"]
    assert "tried" in talker.call("show", name=f"{fork}.2", output=True)["text"]
    assert talker.call("show", name=f"{fork}.2")["paths"] == ["calc.py"]
    assert "name one or two of its attempts" in talker.fail("diff", name=fork)
    report = talker.request("resources/read", uri=f"forkwise://fork/{fork}")["result"]["contents"][0]["text"]
    assert f"{fork}.1" in report
    log = talker.request("resources/read", uri=f"forkwise://attempt/{fork}.2/log")["result"]["contents"][0]
    assert log["text"] == "tried\n"
    assert talker.call("pick", names=[fork])["committed"]
    assert "a + b" in (project / "calc.py").read_text()


def test_several_branches_are_committed_together(talker: Talker, project: Path) -> None:
    first, second = talker.call("fork", branches=2)["branches"]
    talker.call("write", branch=first, files=[RIGHT])
    talker.call("write", branch=second, files=[{"path": "more.py", "content": "x = 1\n"}])
    assert talker.call("pick", names=[first, second])["committed"]
    assert (project / "more.py").exists()
    assert "a + b" in (project / "calc.py").read_text()
    assert Workspace(project).branches() == []


def test_a_conflict_is_reported_and_nothing_is_changed(talker: Talker, project: Path) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    talker.call("write", branch=branch, files=[RIGHT])
    (project / "calc.py").write_text("mine = 1\n")
    assert "calc.py" in talker.fail("pick", names=[branch])
    assert (project / "calc.py").read_text() == "mine = 1\n"
    first, second = talker.call("fork", branches=2)["branches"]
    for name, text in ((first, "a\n"), (second, "b\n")):
        talker.call("write", branch=name, files=[{"path": "calc.py", "content": text}])
    found = talker.call("pick", names=[first, second])
    assert (found["committed"], [one["path"] for one in found["conflicts"]]) == (False, ["calc.py"])
    assert talker.call("pick", names=[first, second], prefer=[f"calc.py={second}"])["committed"]
    assert (project / "calc.py").read_text() == "b\n"


def test_all_edits_of_a_write_are_made_or_none(talker: Talker) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    ok = {"path": "ok.txt", "content": "ok"}
    for wrong, reason in (
        ({"path": "calc.py", "old": "a", "new": "b"}, "exactly once"),
        ({"path": "calc.py", "old": "a - b"}, "give content, or old and new"),
        ({"path": "gone.py", "delete": True}, "there is no"),
        ({"path": "../outside", "content": ""}, "leads out of"),
        ({"path": "/etc/passwd", "content": ""}, "leads out of"),
    ):
        assert reason in talker.fail("write", branch=branch, files=[ok, wrong])
    assert talker.call("show", name=branch)["changes"] == []
    assert talker.call("write", branch=branch, files=[{"path": "calc.py", "delete": True}])["deleted"] == ["calc.py"]


def test_a_link_in_a_branch_leads_no_write_outside(talker: Talker, tmp_path: Path) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    talker.call("run", branch=branch, command=f"ln -s {tmp_path} out; ln -s /etc/hostname file")
    assert "leads out of" in talker.fail("write", branch=branch, files=[{"path": "out/x", "content": "x"}])
    assert "leads out of" in talker.fail("write", branch=branch, files=[{"path": "file", "content": "x"}])
    assert not (tmp_path / "x").exists()


def test_a_long_diff_and_a_long_output_come_in_pages(talker: Talker) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    lines = "".join(f"line {number}\n" for number in range(5000))
    talker.call("write", branch=branch, files=[{"path": "long.txt", "content": lines}])
    text, offset = "", 0
    while offset is not None:
        page = talker.call("diff", name=branch, offset=offset)
        assert len(page["text"]) <= 12_000
        text, offset = text + page["text"], page.get("next")
    assert text.count("\n+line ") == 5000
    ran = talker.call("run", branch=branch, command="cat long.txt")
    assert ran["output"].endswith("line 4999\n")
    handle = ran["note"].split("name ")[1].split(" ")[0]
    assert talker.call("show", name=handle)["text"].startswith("line 0\n")


def test_work_that_takes_long_is_answered_by_a_handle(connect: Callable[..., Talker], project: Path) -> None:
    talker = connect(answer_s=0.5)
    (branch,) = talker.call("fork", branches=1)["branches"]
    mark = project.parent / "gate"
    found = talker.call("run", branch=branch, command="echo begun; exec sleep 1000")
    assert found["state"] == "running"
    assert "job" in found
    waited = talker.call("wait", handle=found["job"], timeout_s=0)
    assert waited["state"] == "running"
    assert not mark.exists()
    assert talker.call("abort", name=found["job"]) == {"cancelled": found["job"]}
    while True:
        outcome = talker.request("tools/call", name="wait", arguments={"handle": found["job"], "timeout_s": 40})
        if outcome["result"].get("isError"):
            break
    assert "was cancelled" in outcome["result"]["content"][0]["text"]


def test_commits_need_the_users_consent_where_the_client_can_ask(connect: Callable[..., Talker], project: Path) -> None:
    talker = connect("decline")
    (branch,) = talker.call("fork", branches=1)["branches"]
    talker.call("write", branch=branch, files=[RIGHT])
    assert talker.call("pick", names=[branch]) == {"committed": False, "reason": "the user declined: do not ask again"}
    assert (project / "calc.py").read_text() == FILES["calc.py"]
    asked = [message for message in talker.messages if message.get("method") == "elicitation/create"]
    assert "1 changed paths" in asked[0]["params"]["message"]
    talker.elicitation = "accept"
    assert talker.call("pick", names=[branch])["committed"]
    talker.elicitation = "cancel"
    assert "the question was dismissed" in talker.call("undo")["reason"]
    assert "a + b" in (project / "calc.py").read_text()
    assert connect("decline", confirms=False).call("undo")["committed"]


def test_what_makes_the_users_machine_run_something_is_not_committed(talker: Talker, project: Path) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    talker.call("write", branch=branch, files=[{"path": ".envrc", "content": "rm -rf ~\n"}])
    assert talker.call("diff", name=branch)["makes_your_machine_run"] == [".envrc"]
    assert ".envrc" in talker.fail("pick", names=[branch])
    assert not (project / ".envrc").exists()


def test_generated_files_are_left_out_of_a_commit(talker: Talker, project: Path) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    talker.call("write", branch=branch, files=[RIGHT])
    talker.call("run", branch=branch, command="mkdir __pycache__; echo > __pycache__/calc.pyc")
    assert talker.call("pick", names=[branch])["committed"]
    assert not (project / "__pycache__").exists()


def test_abort_drops_forks_attempts_branches_and_groups(talker: Talker, project: Path) -> None:
    made = talker.call("fork", branches=3)
    assert talker.call("abort", name=made["branches"][0])["dropped"] == [made["branches"][0]]
    assert len(talker.call("abort", name=made["group"])["dropped"]) == 2
    fork = talker.call("fork", commands=["sleep 1000", "sleep 1000"])["fork"]
    assert "still runs" in talker.fail("run", branch=f"{fork}.1", command="true")
    assert talker.call("abort", name=fork)["aborted"] == fork
    assert talker.call("wait", handle=fork, timeout_s=40)["state"] == "aborted"
    assert Workspace(project).branches() == []
    assert fork in str(talker.call("show")["forks"])


def test_a_command_in_a_branch_is_confined(talker: Talker, project: Path, tmp_path: Path) -> None:
    (branch,) = talker.call("fork", branches=1)["branches"]
    done = talker.call("run", branch=branch, command=f"touch {tmp_path}/outside; echo x > calc.py")
    assert not (tmp_path / "outside").exists()
    assert (project / "calc.py").read_text() == FILES["calc.py"]
    assert done["exit_code"] == 0


def test_modules_of_the_workspace_are_not_imported(talker: Talker, project: Path) -> None:
    for name in ("click", "forkwise", "json"):
        (project / f"{name}.py").write_text(f"open({str(project / 'owned')!r}, 'w')\n")
    fork = talker.call("fork", commands=["true"])["fork"]
    while talker.call("wait", handle=fork, timeout_s=40)["state"] == "running":
        pass
    assert not (project / "owned").exists()
