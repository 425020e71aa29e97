"""Secrets are replaced in texts, in data, and in streams that are cut anywhere."""

from __future__ import annotations

import resource
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forkwise.text.redaction import MARK, Redactor, StreamRedactor, find_secrets
from tests.sandbox.child import do

KEY = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\n" + "MIIEpAIBAAKCAQEA7bq9+/=\n" * 20
KEY += "-----END RSA PRIVATE KEY-----"
TOKENS = {
    "OpenAI": "sk-proj-" + "Ab3_" * 10,
    "Anthropic": "sk-ant-api03-" + "x9-Z" * 20,
    "Stripe": "sk_live_" + "4eC39HqLyjWDarjtT1zdp7dc",
    "GitHub": "ghp_" + "a1B2" * 9,
    "GitHub, fine-grained": "github_pat_" + "11ABC_" * 8,
    "GitLab": "glpat-" + "aB3dE6gH9jK2mN5pQ8sT",
    "AWS": "AKIAIOSFODNN7EXAMPLE",
    "Google": "AIza" + "Sy0_-" * 7,
    "Slack": "xoxb-123456789012-1234567890123-AbCdEf",
    "Hugging Face": "hf_" + "aBcDeFgHiJ" * 4,
    "npm": "npm_" + "a1b2c3" * 6,
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    "private key": KEY,
}
ORDINARY = [
    "task-based work, risk-averse, disk-usage-report-for-the-whole-department",
    "sk-short AKIA xoxo eyJ ghp_ hf_hub npm_config_registry",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "grep: -----BEGIN RSA PRIVATE KEY----- is in (3) files",
    "8d969eef6ecad3c29a3a629280e686cf0c3f5d5a86aff3ca12020c923adc6c92",
]
SECRETS = ["hunter2hunter2", "aXXXXXXXa", "multi word secret"]


@pytest.mark.parametrize("token", TOKENS.values(), ids=TOKENS)
@pytest.mark.parametrize("around", [("", ""), ("key=", "\n"), ('{"key":"', '"}'), ("Bearer ", " next")])
def test_tokens_of_known_shapes(token: str, around: tuple[str, str]) -> None:
    before, after = around
    assert Redactor().redact(before + token + after) == before + MARK + after
    assert Redactor().redact_bytes((before + token + after).encode()) == (before + MARK + after).encode()


@pytest.mark.parametrize("text", ORDINARY)
def test_ordinary_text_stays(text: str) -> None:
    assert Redactor().redact(text) in (text, text.replace("-----BEGIN RSA PRIVATE KEY-----", MARK))
    stream = StreamRedactor(Redactor())
    assert (stream.feed(text.encode()) + stream.flush()).decode() == Redactor().redact(text)


def test_values_of_variables_by_their_names() -> None:
    environment = {
        "GITHUB_TOKEN": "0123456789",
        "db_password": "correct horse",
        "SERVICE_TOKEN_FILE": "relative-file",
        "GOOGLE_APPLICATION_CREDENTIALS": "/home/me/key.json",
        "SHORT_SECRET": "short",
        "DATABASE_URL": "postgres://me:in-the-url@db/x",
        "EDITOR": "some-editor",
    }
    assert find_secrets(environment) == {"0123456789", "correct horse", "in-the-url"}


def test_data() -> None:
    redactor = Redactor(["hunter2hunter2"])
    data = {"a": ["x hunter2hunter2", 3, None, {"b": TOKENS["AWS"]}]}
    assert redactor.redact_data(data) == {"a": [f"x {MARK}", 3, None, {"b": MARK}]}


@pytest.mark.parametrize("secret", [*TOKENS.values(), *SECRETS], ids=[*TOKENS, *SECRETS])
def test_a_secret_that_two_pieces_share(secret: str) -> None:
    redactor = Redactor(SECRETS)
    text = f"before {secret}\nafter".encode()
    for at in range(len(text) + 1):
        stream = StreamRedactor(redactor)
        assert stream.feed(text[:at]) + stream.feed(text[at:]) + stream.flush() == f"before {MARK}\nafter".encode()
    bytewise = StreamRedactor(redactor)
    whole = b"".join(bytewise.feed(text[at : at + 1]) for at in range(len(text))) + bytewise.flush()
    assert whole == f"before {MARK}\nafter".encode()


PARTS = st.sampled_from([*TOKENS.values(), *SECRETS, *ORDINARY, "\n", " ", "a", "-", "sk-", "eyJ", "-----BEGIN"])


@given(st.lists(PARTS, max_size=8), st.lists(st.integers(0, 400), max_size=6))
def test_no_secret_passes_however_a_stream_is_cut(parts: list[str], cuts: list[int]) -> None:
    text = "\n".join(parts).encode()
    stream = StreamRedactor(Redactor(SECRETS))
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    shown = b"".join(stream.feed(text[a:b]) for a, b in pairwise(edges)) + stream.flush()
    assert not [secret for secret in (*SECRETS, *TOKENS.values()) if secret.encode() in shown]


def test_output_is_not_held_back_without_reason() -> None:
    stream = StreamRedactor(Redactor(SECRETS))
    assert stream.feed(b"Continue? ") == b"Continue? "
    assert stream.feed(b"downloading 10%") == b"downloading 10%"
    assert stream.feed(b"Done") == b"Done"


HOSTILE = [
    b"sk-",
    b"eyJ",
    b"-eyJ",
    b"eyJaaaaaaaa.",
    b"-----BEGIN PRIVATE KEY-----",
    b"-----BEGIN",
    b"-",
    b"ghp_a",
    b"A",
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_hostile_output_takes_linear_time(piece: bytes) -> None:
    def attempt() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (20, 20))
        stream = StreamRedactor(Redactor(SECRETS))
        content = piece * (2_000_000 // len(piece))
        for at in range(0, len(content), 1 << 16):
            stream.feed(content[at : at + (1 << 16)])
        stream.flush()

    assert do(attempt).code == 0
