"""The index file of a repository: its entries, without the times and numbers of files that git keeps with them."""

from __future__ import annotations

import struct

__all__ = ["read_index_entries"]

_STAT_SIZE = 40
_ID_SIZE = 20
_EXTENDED = 0x4000


def read_index_entries(content: bytes) -> list[bytes] | None:
    """Return mode, id, stage and path of each entry as one value; None if the file is of another form than expected.

    That is: version 2 or 3, with SHA-1 ids and not split into two files. An empty file has no entries.

    >>> read_index_entries(b""), read_index_entries(b"something else")
    ([], None)
    """
    if not content:
        return []
    if content[:4] != b"DIRC" or len(content) < 12:
        return None
    version, count = struct.unpack_from(">II", content, 4)
    if version not in (2, 3) or count > len(content) // 62:
        return None
    entries, at = [], 12
    for _ in range(count):
        fixed = at + _STAT_SIZE + _ID_SIZE
        flags = int.from_bytes(content[fixed : fixed + 2], "big")
        start = fixed + (4 if version == 3 and flags & _EXTENDED else 2)
        end = content.find(b"\0", start)
        if end < 0:
            return None
        mode = content[at + 24 : at + 28]
        entries.append(mode + content[at + _STAT_SIZE : fixed] + bytes([flags >> 12 & 3]) + content[start:end])
        at += (end - at) // 8 * 8 + 8
    # A split index has a part elsewhere, which the extension "link" names.
    return None if content[at : at + 4] == b"link" else entries
