"""Scripts by themselves: in order of arrival, by turn, and by predicate."""

from __future__ import annotations

import pytest

from tests.provider.anthropic_wire import ANTHROPIC
from tests.provider.bodies import anthropic_body, assistant, user
from tests.provider.openai_wire import OPENAI
from tests.provider.reply import Reply, answer, as_reply, call
from tests.provider.request import Request, ToolCall
from tests.provider.script import Cases, Script, ScriptEnded, Turns, says, structured


def asking(words: str, turn: int = 0) -> Request:
    return ANTHROPIC.read(anthropic_body(*[user("Hello."), assistant("Yes?")] * turn, user(words)))


ONE, TWO, LATER = asking("run the tests"), asking("look"), asking("and then", turn=1)


def test_in_order() -> None:
    script = Script(["a", lambda request: request.last_user_text])
    assert (script(ONE), script.left, script(TWO), script.left) == ("a", 1, "look", 0)
    with pytest.raises(ScriptEnded, match=r"no answer for turn 1 of 'Hello.' \(anthropic\): the script has 2 steps"):
        script(LATER)
    assert Script([], then="b")(ONE) == "b"


def test_by_turn() -> None:
    turns = Turns(["a", "b"])
    assert [turns(request) for request in (ONE, TWO, LATER, ONE)] == ["a", "a", "b", "a"]


def test_by_predicate() -> None:
    cases = Cases((says("tests"), call("run")), otherwise="c")
    assert (cases(ONE), cases(TWO)) == (ToolCall("run", {}), "c")
    with pytest.raises(ScriptEnded):
        Cases()(ONE)


def test_a_structured_output_takes_the_way_there_is() -> None:
    body = anthropic_body(user("Look."))
    tool = {"name": "final_result", "input_schema": {}}
    assert structured(x=1)(ANTHROPIC.read(body)) == answer('{"x": 1}')
    assert structured(x=1)(ANTHROPIC.read({**body, "tools": [tool]})) == call("final_result", x=1)


def test_short_forms() -> None:
    look = call("look", where="here")
    assert as_reply("a") == Reply(("a",))
    assert as_reply(look) == Reply((look,))
    assert as_reply(["a", look]) == answer("a", look) == Reply(("a", look))


def test_a_request_of_the_system_alone() -> None:
    request = OPENAI.read({"model": "m", "messages": [{"role": "system", "content": "Be brief."}]})
    assert (request.system, request.messages, request.tool_results, request.last_user_text) == ("Be brief.", (), (), "")
