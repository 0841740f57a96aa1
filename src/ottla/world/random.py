"""Chance: the machine's, and a seeded one that a failed run can be replayed with.

Nothing here depends on PYTHONHASHSEED. Keys and passwords are not made from the seeded one outside of tests.
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
    """A source of chance."""

    def bytes(self, count: int) -> builtins.bytes:
        """That many random bytes."""
        ...

    def below(self, limit: int) -> int:
        """A whole number of 0 .. limit - 1."""
        ...

    def float(self) -> builtins.float:
        """A number of [0, 1)."""
        ...

    def choice(self, options: Sequence[T]) -> T:
        """One of them."""
        ...

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Bring a list into a random order, in place."""
        ...

    def uuid(self) -> builtins.bytes:
        """The 16 bytes of an id as Kafka's `Uuid.randomUuid` makes them."""
        ...

    def fork(self, name: str) -> Random:
        """A source of its own, so that one part's use of chance does not move another's."""
        ...


class _Source:
    """What both kinds share: the rules are applied to the generator of the standard library."""

    __slots__ = ("_generator",)

    def __init__(self, generator: random.Random) -> None:
        self._generator = generator

    def bytes(self, count: int) -> builtins.bytes:
        """That many random bytes."""
        return self._generator.randbytes(count)

    def below(self, limit: int) -> int:
        """A whole number of 0 .. limit - 1."""
        return self._generator.randrange(limit)

    def float(self) -> builtins.float:
        """A number of [0, 1)."""
        return self._generator.random()

    def choice(self, options: Sequence[T]) -> T:
        """One of them."""
        return self._generator.choice(options)

    def shuffle(self, items: MutableSequence[Any]) -> None:
        """Bring a list into a random order, in place."""
        self._generator.shuffle(items)

    def uuid(self) -> builtins.bytes:
        """A version 4 id whose base64 form has no dash at its start: command lines take that for an option.

        The version bits keep it clear of the ids that Kafka reserves: the first hundred numbers.
        """
        while True:
            made = bytearray(self._generator.randbytes(16))
            made[6] = made[6] & 0x0F | 0x40
            made[8] = made[8] & 0x3F | 0x80
            if made[0] >> 2 != 62:  # 62 is "-" in the alphabet of URL-safe base64
                return bytes(made)


class SystemRandom(_Source):
    """Chance from the operating system."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(random.SystemRandom())

    def fork(self, name: str) -> SystemRandom:
        """Itself: it has no state to share."""
        return self


class SeededRandom(_Source):
    """Chance that is the same again for the same seed."""

    __slots__ = ("seed",)

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        super().__init__(random.Random(_number(str(seed))))

    def __repr__(self) -> str:
        return f"SeededRandom({self.seed!r})"

    def fork(self, name: str) -> SeededRandom:
        """A stream that depends on the seed and the name only, not on what was drawn before."""
        return SeededRandom(f"{self.seed}/{name}")


def _number(seed: str) -> int:
    return int.from_bytes(hashlib.sha256(seed.encode()).digest())
