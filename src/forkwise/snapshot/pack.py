"""Packs: contents cut into chunks, several chunks compressed together, and encrypted if the user has a key.

A chunk is addressed by the BLAKE3 digest of its content. Small files are a chunk each; large ones are cut at positions
that depend on the content (FastCDC), so that an insertion changes the chunks around it and not all that follow. With a
key every digest is keyed and the cuts depend on the key, so that neither names nor lengths of chunks reveal a known
content.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from blake3 import blake3
from pyfastcdc.cy import FastCDC

if TYPE_CHECKING or sys.version_info < (3, 14):
    from backports import zstd
else:
    from compression import zstd

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "KEY_BYTES",
    "LARGEST_CHUNK",
    "LARGEST_OBJECT",
    "PACK",
    "WHOLE",
    "Codec",
    "DamagedObjectError",
    "read_key_file",
]

#: Length of a user's key, in bytes.
KEY_BYTES = 32

#: The largest file that is a single chunk, in bytes; larger ones are cut.
WHOLE = 1 << 20

#: Bytes of content after which a pack is complete.
PACK = 4 << 20

#: The largest chunk that is ever written or accepted.
LARGEST_CHUNK = 4 << 20

#: The largest content of one object that is ever accepted: a decompression bomb stops here.
LARGEST_OBJECT = 64 << 20

_AVERAGE, _SMALLEST = 1 << 20, 256 << 10
_LEVEL = 3
_NONCE = 12
_BLOCK = 1 << 20
_PLAIN, _SEALED = b"\x01", b"\x02"


class DamagedObjectError(ValueError):
    """An object of a store is not what its name promises; raised to the code that reads it."""


class Codec:
    """How contents become objects of one store: digests, cuts, compression and encryption."""

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and len(key) != KEY_BYTES:
            raise ValueError(f"a store's key has {KEY_BYTES} bytes, not {len(key)}")
        self._key = key
        self._digest_key = None if key is None else _derive(key, "forkwise 2026 digests of contents")
        seed = 0 if key is None else int.from_bytes(_derive(key, "forkwise 2026 cuts of contents")[:4], "big")
        self._seed = seed
        self.digest: Callable[[bytes | memoryview], str] = self._make_digest()

    @property
    def is_encrypted(self) -> bool:
        """Whether objects are encrypted."""
        return self._key is not None

    def _make_digest(self) -> Callable[[bytes | memoryview], str]:
        key = self._digest_key
        if key is None:
            return lambda data: blake3(data).hexdigest()
        return lambda data: blake3(data, key=key).hexdigest()

    def digest_file(self, file_fd: int) -> str:
        """Return the digest of the whole content of an open file."""
        hasher = blake3() if self._digest_key is None else blake3(key=self._digest_key)
        position = 0
        while data := os.pread(file_fd, _BLOCK, position):
            hasher.update(data)
            position += len(data)
        return hasher.hexdigest()

    def name_pack(self, digests: Sequence[str]) -> str:
        """Return the name of the object that holds these chunks, in this order."""
        return self.digest(bytes.fromhex("".join(digests)) + b"pack")

    def cut(self, file_fd: int, start: int, end: int) -> Iterator[bytes]:
        """Yield the chunks of a part of an open file; they end early if the file does."""
        cutter = FastCDC(_AVERAGE, min_size=_SMALLEST, max_size=LARGEST_CHUNK, seed=self._seed)
        for chunk in cutter.cut_stream(_Part(file_fd, start, end)):
            yield bytes(chunk.data)

    def encode(self, name: str, content: bytes) -> bytes:
        """Return the content as the bytes of the object ``name``."""
        packed = zstd.compress(content, _LEVEL)
        if self._key is None:
            return _PLAIN + packed
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - only with a key

        nonce = os.urandom(_NONCE)
        return _SEALED + nonce + AESGCM(self._object_key(name)).encrypt(nonce, packed, name.encode())

    def decode(self, name: str, data: bytes, limit: int = LARGEST_OBJECT) -> bytes:
        """Return the content of the object ``name``; DamagedObjectError if it is another object's, or damaged."""
        kind, packed = data[:1], data[1:]
        if kind == _SEALED and self._key is None:
            raise DamagedObjectError("it is encrypted, and the store was opened without a key")
        if kind != (_PLAIN if self._key is None else _SEALED):
            raise DamagedObjectError("it does not begin like an object of this store")
        if self._key is not None:
            packed = self._decrypt(name, packed)
        try:
            reader = zstd.ZstdDecompressor()
            content = reader.decompress(packed, limit + 1)
        except zstd.ZstdError as error:
            raise DamagedObjectError(str(error)) from error
        if len(content) > limit or not reader.eof or reader.unused_data:
            raise DamagedObjectError(f"its content is incomplete, or larger than {limit} bytes")
        return content

    def _decrypt(self, name: str, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - only with a key
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        try:
            return AESGCM(self._object_key(name)).decrypt(data[:_NONCE], data[_NONCE:], name.encode())
        except (InvalidTag, ValueError) as error:
            raise DamagedObjectError("it was changed, moved, or encrypted with another key") from error

    def _object_key(self, name: str) -> bytes:
        """Return a key for one object, because with one key for many objects, random nonces could repeat."""
        assert self._key is not None
        return _derive(self._key + name.encode(), "forkwise 2026 encryption of one object")


def read_key_file(path: str | os.PathLike[str]) -> bytes:
    """Read a key from a file. Raises ValueError if it holds none, or if other users can read it."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_mode & 0o077:
            raise ValueError(f"the key file {os.fspath(path)} can be read by others; run: chmod 600 {os.fspath(path)}")
        content = file.read(200)
    if len(content) == KEY_BYTES:
        return content
    try:
        key = bytes.fromhex(content.decode("ascii").strip())
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"the key file {os.fspath(path)} has neither {KEY_BYTES} bytes nor {2 * KEY_BYTES} digits 0-9a-f"
        )
    return key


def _derive(material: bytes, context: str) -> bytes:
    return blake3(material, derive_key_context=context).digest()


class _Part:
    """A part of an open file as a stream."""

    def __init__(self, file_fd: int, start: int, end: int) -> None:
        self._fd = file_fd
        self._position = start
        self._end = end

    def read(self, size: int = -1) -> bytes:
        left = self._end - self._position
        data = os.pread(self._fd, left if size < 0 else min(size, left), self._position)
        self._position += len(data)
        return data
