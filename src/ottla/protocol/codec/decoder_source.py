"""Writes the Python source that decodes one message in one version.

Structures are inlined into one function. Consecutive fields of fixed size are read with one call, together with the
first byte of the length after them. The source checks only what memory safety and a correct result need: the next read
or the end of the message notices a length past the end, and `walk` then finds the invalid byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.protocol.codec.wire import (
    FIXED,
    finish_uvarint,
    layout,
    long_length,
    nullable_string_length,
    read_uvarint,
    string_length,
    unpack_many,
)
from ottla.protocol.schema import Uuid

if TYPE_CHECKING:
    from ottla.protocol.schema import Field, Message, Struct

# Iterated by the loop over an array, by its length + 1 below 128.
_TIMES = ((), *((None,) * count for count in range(127)))

_NUMBERS = {letter: unpack_many(letter) for letter in ("b", "h", "H", "i", "I", "q", "d")}


def _bad() -> None:
    raise ValueError("the bytes are not a valid message")


def _read_unknown_tags(target: Struct, b: bytes | memoryview, p: int, end: int) -> int:
    """Keep the tagged fields of a structure that declares none."""
    count, p = read_uvarint(b, p)
    unknown = {}
    for _ in range(count):
        tag, p = read_uvarint(b, p)
        size, p = read_uvarint(b, p)
        stop = p + size
        if stop > end:
            _bad()
        unknown[tag] = bytes(b[p:stop])
        p = stop
    target.unknown_tags = unknown or None
    return p


class DecoderSource:
    """The source of a decoder and the names that it uses.

    The function takes (buffer, position, whole) and returns the message if `whole`, else the message and the position
    after it. `view`: the buffer is a memoryview. `lenient`: replace invalid UTF-8, as Java does; the strict decoder,
    which is faster, calls the lenient one for invalid UTF-8.
    """

    def __init__(self, cls: type[Message], version: int, view: bool, lenient: bool = False) -> None:
        self._version = version
        self._flexible = version in cls.__schema__.flexible
        self._view = view
        self._decode_text = ".decode('utf-8', 'replace')" if lenient else ".decode()"
        self.scope: dict[str, Any] = {
            "new": object.__new__,
            "new_uuid": bytes.__new__,
            "Uuid": Uuid,
            "finish": finish_uvarint,
            "string_length": string_length,
            "nullable_string_length": nullable_string_length,
            "long_length": long_length,
            "bad": _bad,
            "TIMES": _TIMES,
            "read_uvarint": read_uvarint,
            "read_unknown_tags": _read_unknown_tags,
        }
        self._functions: list[str] = []
        self._lines: list[str] = []
        self._indent = 1
        self._counter = 0
        self._run_letters = ""
        self._run_targets: list[str] = []
        self._run_after: list[str] = []
        body = self._message(cls)
        self.text = "\n".join([*self._functions, *body])

    # -- writing lines -------------------------------------------------------------------------------------------

    def _emit(self, line: str) -> None:
        self._lines.append("    " * self._indent + line)

    def _fresh(self, letter: str) -> str:
        self._counter += 1
        return f"{letter}{self._counter}"

    def _class_name(self, cls: type[Struct]) -> str:
        self.scope[cls.__name__] = cls
        return cls.__name__

    def _constant(self, value: Any) -> str:
        if value is None or isinstance(value, (bool, int, float, str)):
            return repr(value)
        for name, known in self.scope.items():
            if known is value:
                return name
        name = self._fresh("K")
        self.scope[name] = value
        return name

    # -- runs of fixed size --------------------------------------------------------------------------------------

    def _run(self, letter: str, target: str, after: str | None = None) -> None:
        """Add a value of fixed size to the run that is read at the next flush."""
        self._run_letters += letter
        self._run_targets.append(target)
        if after is not None:
            self._run_after.append(after)

    def _flush(self) -> None:
        if not self._run_letters:
            return
        if self._run_letters == "B":
            self._emit(f"{self._run_targets[0]} = b[p]")
            self._emit("p += 1")
        else:
            name = f"U_{self._run_letters.replace('?', 'o')}"
            made = layout(self._run_letters)
            self.scope[name] = made.unpack_from
            comma = "," if len(self._run_targets) == 1 else ""
            self._emit(f"{', '.join(self._run_targets)}{comma} = {name}(b, p)")
            self._emit(f"p += {made.size}")
        for line in self._run_after:
            self._emit(line)
        self._run_letters, self._run_targets, self._run_after = "", [], []

    # -- the message ---------------------------------------------------------------------------------------------

    def _message(self, cls: type[Message]) -> list[str]:
        self._emit("try:")
        self._indent = 2
        self._emit("end = len(b)")
        if holds_records(cls):
            self._emit("v = b" if self._view else "v = memoryview(b)")
        target = self._struct(cls)
        self._emit("if whole:")
        self._emit("    if p == end:")
        self._emit(f"        return {target}")
        self._emit("elif p <= end:")
        self._emit(f"    return {target}, p")
        self._indent = 1
        self._emit("except UnicodeDecodeError:")
        self._emit("    return lenient(b, start, whole)")
        self._emit("except failures:")
        self._emit("    pass")
        self._emit("raise explain(b, start, whole)")
        return ["def decode(b, p, whole):", "    start = p", *self._lines]

    def _struct(self, cls: type[Struct]) -> str:
        """Decode a structure into a new variable and return its name."""
        target = self._fresh("o")
        self._emit(f"{target} = new({self._class_name(cls)})")
        for field in cls.__schema__.fields:
            if field.present(self._version):
                self._field(field, f"{target}.{field.name}")
            else:
                self._default(field, f"{target}.{field.name}")
        self._emit(f"{target}.unknown_tags = None")
        if self._flexible:
            function = self._tags(cls)
            if self._run_letters:
                count = self._fresh("t")
                self._run("B", count)
                self._flush()
                self._emit(f"if {count}:")
                self._emit(f"    p = {function}({target}, b, p - 1, end)")
            else:
                self._emit("if b[p]:")
                self._emit(f"    p = {function}({target}, b, p, end)")
                self._emit("else:")
                self._emit("    p += 1")
        else:
            self._flush()
        return target

    def _default(self, field: Field, target: str) -> None:
        """Set a field that this version does not have to its default."""
        if field.kind == "array" and field.factory is not None:
            self._emit(f"{target} = []")
        elif field.kind == "struct" and field.factory is not None:
            assert field.struct is not None
            made = self._fresh("o")
            self._emit(f"{made} = new({self._class_name(field.struct)})")
            for inner in field.struct.__schema__.fields:
                self._default(inner, f"{made}.{inner.name}")
            self._emit(f"{made}.unknown_tags = None")
            self._emit(f"{target} = {made}")
        else:
            self._emit(f"{target} = {self._constant(field.default)}")

    def _field(self, field: Field, target: str, tagged: bool = False) -> None:
        nullable = self._version in field.nullable
        compact = self._flexible and self._version in field.flexible
        if field.kind == "array":
            self._array(field, target, compact, nullable)
        elif field.kind == "struct":
            self._nested(field, target, nullable, tagged)
        elif field.kind in FIXED:
            self._fixed(field.kind, target)
        else:
            self._variable(field.kind, target, compact, nullable)

    def _fixed(self, kind: str, target: str) -> None:
        letter = FIXED[kind][0]
        if kind == "uuid":
            raw = self._fresh("u")
            self._run(letter, raw, f"{target} = new_uuid(Uuid, {raw})")
        else:
            self._run(letter, target)

    def _nested(self, field: Field, target: str, nullable: bool, tagged: bool) -> None:
        assert field.struct is not None
        if nullable:
            present = self._fresh("n")
            # A nullable tagged struct marks null with a varint, others with a byte.
            self._run("B" if tagged else "b", present)
            self._flush()
            if tagged:
                self._emit(f"if {present} > 127:")
                self._emit(f"    {present}, p = finish(b, p, {present})")
            self._emit(f"if {present} <= 0:" if tagged else f"if {present} < 0:")
            self._emit(f"    {target} = None")
            self._emit("else:")
            self._indent += 1
        made = self._struct(field.struct)
        self._emit(f"{target} = {made}")
        if nullable:
            self._indent -= 1

    # -- lengths -------------------------------------------------------------------------------------------------

    def _length(self, kind: str, compact: bool, nullable: bool, target: str) -> str:
        """Read a length, handle null, and open the branch of a value; return the variable with the length.

        A compact length is stored as length + 1.
        """
        size = self._fresh("n")
        string = kind == "string"
        self._run("B" if compact else "h" if string else "i", size)
        self._flush()
        if compact:
            if nullable:
                helper = "nullable_string_length" if string else "finish"
                self._emit(f"if {size} > 127:")
            else:
                helper = "string_length" if string else "long_length"
                self._emit(f"if not 0 < {size} < 128:")
            self._emit(f"    {size}, p = {helper}(b, p, {size})")
            if kind == "array":
                # A count below 128 needs no check: reading the first missing element fails.
                self._emit(f"    if {size} - 1 > end - p:")
                self._emit("        bad()")
        if nullable:
            self._emit(f"if {size} {'== 0' if compact else '== -1'}:")
            self._emit(f"    {target} = None")
            self._emit("else:")
            self._indent += 1
        if not compact:
            self._emit(f"if not 0 <= {size} <= end - p:" if kind == "array" else f"if {size} < 0:")
            self._emit("    bad()")
        return size

    def _variable(self, kind: str, target: str, compact: bool, nullable: bool) -> None:
        size = self._length(kind, compact, nullable, target)
        stop = self._fresh("e")
        self._emit(f"{stop} = p + {size} - 1" if compact else f"{stop} = p + {size}")
        copied = f"b[p:{stop}].tobytes()" if self._view else f"b[p:{stop}]"
        if kind == "string":
            self._emit(f"{target} = {copied}{self._decode_text}")
        elif kind == "bytes":
            self._emit(f"{target} = {copied}")
        else:
            self._emit(f"{target} = v[p:{stop}]")
        self._emit(f"p = {stop}")
        if nullable:
            self._indent -= 1

    # -- arrays --------------------------------------------------------------------------------------------------

    def _array(self, field: Field, target: str, compact: bool, nullable: bool) -> None:
        size = self._length("array", compact, nullable, target)
        of = field.of
        assert of is not None
        if isinstance(of, str) and of in FIXED:
            self._numbers(of, target, f"{size} - 1" if compact else size)
        else:
            items = self._fresh("l")
            self._emit(f"{items} = []")
            if isinstance(of, str):
                self._loop(size, compact)
                item = self._fresh("x")
                self._variable(of, item, compact, False)
                self._emit(f"{items}.append({item})")
                self._indent -= 1
            elif not self._flexible and self._all_fixed(of):
                self._fixed_structs(of, items, size)
            else:
                self._loop(size, compact)
                self._emit(f"{items}.append({self._struct(of)})")
                self._indent -= 1
            self._emit(f"{target} = {items}")
        if nullable:
            self._indent -= 1

    def _loop(self, size: str, compact: bool) -> None:
        """Open a loop over an array; iterating over an existing tuple is faster than a range."""
        if compact:
            self._emit(f"for _ in TIMES[{size}] if {size} < 128 else range({size} - 1):")
        else:
            self._emit(f"for _ in TIMES[{size} + 1] if {size} < 127 else range({size}):")
        self._indent += 1

    def _numbers(self, of: str, target: str, length: str) -> None:
        """Read an array of a type of fixed size."""
        letter, size = FIXED[of]
        count, stop = self._fresh("c"), self._fresh("e")
        self._emit(f"{count} = {length}")
        self._emit(f"{stop} = p + {count} * {size}" if size > 1 else f"{stop} = p + {count}")
        self._emit(f"if {stop} > end:")
        self._emit("    bad()")
        if of == "uuid":
            piece = "b[i : i + 16].tobytes()" if self._view else "b[i : i + 16]"
            self._emit(f"{target} = [new_uuid(Uuid, {piece}) for i in range(p, {stop}, 16)]")
        elif of == "bool":
            self._emit(f"{target} = [i != 0 for i in b[p:{stop}]]")
        else:
            name = f"many_{letter}"
            self.scope[name] = _NUMBERS[letter]
            self._emit(f"{target} = {name}(b, p, {count})")
        self._emit(f"p = {stop}")

    def _all_fixed(self, cls: type[Struct]) -> bool:
        present = [field for field in cls.__schema__.fields if field.present(self._version)]
        return bool(present) and all(field.kind in FIXED for field in present)

    def _fixed_structs(self, cls: type[Struct], items: str, count: str) -> None:
        """Read an array of structures that have fixed fields only with one call."""
        fields = [field for field in cls.__schema__.fields if field.present(self._version)]
        made = layout("".join(FIXED[field.kind][0] for field in fields))
        name = self._fresh("I")
        self.scope[name] = made.iter_unpack
        stop, item = self._fresh("e"), self._fresh("o")
        values = [self._fresh("x") for _ in fields]
        self._emit(f"{stop} = p + {count} * {made.size}")
        self._emit(f"if {stop} > end:")
        self._emit("    bad()")
        self._emit(f"for {', '.join(values)}, in {name}(b[p:{stop}]):")
        self._indent += 1
        self._emit(f"{item} = new({self._class_name(cls)})")
        for field in cls.__schema__.fields:
            target = f"{item}.{field.name}"
            if field in fields:
                value = values[fields.index(field)]
                self._emit(f"{target} = new_uuid(Uuid, {value})" if field.kind == "uuid" else f"{target} = {value}")
            else:
                self._default(field, target)
        self._emit(f"{item}.unknown_tags = None")
        self._emit(f"{items}.append({item})")
        self._indent -= 1
        self._emit(f"p = {stop}")

    # -- tagged fields -------------------------------------------------------------------------------------------

    def _tags(self, cls: type[Struct]) -> str:
        """Write the function that reads the tagged fields of a structure; it is rarely called."""
        if all(field.tag is None for field in cls.__schema__.fields):
            return "read_unknown_tags"
        name = f"tags_{cls.__name__}"
        if name in self.scope:
            return name
        self.scope[name] = None  # A placeholder; running the source sets the function.
        outer = self._lines, self._indent, self._run_letters, self._run_targets, self._run_after
        self._lines, self._indent = [], 1
        self._run_letters, self._run_targets, self._run_after = "", [], []
        self._emit("n, p = read_uvarint(b, p)")
        if holds_records(cls):
            self._emit("v = b" if self._view else "v = memoryview(b)")
        self._emit("unknown = None")
        self._emit("for _ in range(n):")
        self._indent = 2
        self._emit("tag, p = read_uvarint(b, p)")
        self._emit("size, p = read_uvarint(b, p)")
        self._emit("stop = p + size")
        self._emit("if stop > end:")
        self._emit("    bad()")
        word = "if"
        for field in cls.__schema__.fields:
            if field.tag is None:
                continue
            self._emit(f"{word} tag == {field.tag}:")
            word = "elif"
            self._indent = 3
            if self._version in field.tagged and self._version in field.versions:
                self._field(field, f"o.{field.name}", tagged=True)
                self._flush()
                self._emit("if p != stop:")
                self._emit("    bad()")
            else:
                self._emit("bad()")
            self._indent = 2
        self._emit("else:")
        self._indent = 3
        self._emit("if unknown is None:")
        self._emit("    unknown = {}")
        self._emit("unknown[tag] = bytes(b[p:stop])")
        self._emit("p = stop")
        self._indent = 1
        self._emit("o.unknown_tags = unknown")
        self._emit("return p")
        self._functions += [f"def {name}(o, b, p, end):", *self._lines, ""]
        self._lines, self._indent, self._run_letters, self._run_targets, self._run_after = outer
        return name


def holds_records(cls: type[Struct]) -> bool:
    """Return whether this structure, or one inside it, has a `records` field."""
    return any(
        field.kind == "records" or (field.struct is not None and holds_records(field.struct))
        for field in cls.__schema__.fields
    )
