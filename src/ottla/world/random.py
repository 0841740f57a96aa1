"""Randomness: the operating system's, and a seeded one that replays a failed run.

Neither depends on PYTHONHASHSEED. Only tests draw keys or passwords from the seeded one.
"""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import builtins
    from collections.abc import MutableSequence, Sequence

T = TypeVar("T")


class Random(Protocol):
    """A source of randomness."""

    def bytes(self, count: int) -> builtins.bytes:
        """Return that many random bytes."""
        ...

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to limit - 1."""
        ...

    def float(self) -> builtins.float:
        """Return a number in [0, 1)."""
        ...

    def choice(self, options: Sequence[T]) -> T:
        """Return one element."""
        ...

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Shuffle a list in place."""
        ...

    def uuid(self) -> builtins.bytes:
        """Return the 16 bytes of an id as Kafka's `Uuid.randomUuid` does."""
        ...

    def fork(self, name: str) -> Random:
        """Return an independent source, so that one part's draws do not change another's."""
        ...


class _Source:
    """The common part of both sources, on a generator of the standard library."""

    __slots__ = ("_generator",)

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def bytes(self, count: int) -> builtins.bytes:
        """Return that many random bytes."""
        return self._generator.randbytes(count)

    def below(self, limit: int) -> int:
        """Return a whole number from 0 to limit - 1."""
        return self._generator.randrange(limit)

    def float(self) -> builtins.float:
        """Return a number in [0, 1)."""
        return self._generator.random()

    def choice(self, options: Sequence[T]) -> T:
        """Return one element."""
        return self._generator.choice(options)

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Shuffle a list in place."""
        self._generator.shuffle(items)

    def uuid(self) -> builtins.bytes:
        """Return a version 4 id whose base64 form does not start with a dash, which command lines take for an option.

        The version bits exclude the ids that Kafka reserves: the first hundred numbers.
        """
        while True:
            made = bytearray(self._generator.randbytes(16))
            made[6] = made[6] & 0x0F | 0x40
            made[8] = made[8] & 0x3F | 0x80
            if made[0] >> 2 != 62:  # 62 is "-" in the alphabet of URL-safe base64
                return bytes(made)


class SystemRandom(_Source):
    """Randomness of the operating system."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(random.SystemRandom())

    def fork(self, name: str) -> SystemRandom:
        """Return this source: it has no state to share."""
        return self


class SeededRandom(_Source):
    """Randomness that repeats for the same seed."""

    __slots__ = ("seed",)

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        super().__init__(random.Random(_number(str(seed))))

    def __repr__(self) -> str:
        return f"SeededRandom({self.seed!r})"

    def fork(self, name: str) -> SeededRandom:
        """Return a stream that depends on the seed and the name only, not on earlier draws."""
        return SeededRandom(f"{self.seed}/{name}")


def _number(seed: str) -> int:
    return int.from_bytes(hashlib.sha256(seed.encode()).digest())
