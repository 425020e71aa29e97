"""How a failure is told in a chat: on one line, with what would help."""

from __future__ import annotations

__all__ = ["told"]

_LONGEST = 2000


def told(error: BaseException) -> str:
    """What went wrong.

    >>> told(ValueError("no such thing"))
    'no such thing'
    >>> told(KeyError("x"))
    "KeyError: 'x'"
    """
    text = " ".join(str(error).split())
    if not text or isinstance(error, KeyError | AssertionError | AttributeError | TypeError | NameError):
        text = f"{type(error).__name__}: {text}".removesuffix(": ")
    remedy = getattr(error, "remedy", "")
    if remedy and remedy not in text:
        text = f"{text.rstrip('.')}; {remedy}"
    return text[:_LONGEST]
