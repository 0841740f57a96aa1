"""Writes the Python source that encodes one message in one version.

The function appends pieces to a list: fields of fixed size packed with one call, strings and bytes as they are.
`records` are not copied; their positions in the list are noted, so that they can be sent separately.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ottla.protocol.codec.wire import FIXED, MAX_STRING, SMALL_UVARINTS, layout, pack_many, tag_section, uvarint

if TYPE_CHECKING:
    from ottla.protocol.schema import Field, Message, Struct

_NUMBERS = {letter: pack_many(letter) for letter in ("b", "h", "H", "i", "I", "q", "d", "?")}


def _bad() -> None:
    raise ValueError("not encodable in this version")


def _uvarint_string(length: int) -> bytes:
    if length > MAX_STRING + 1:
        raise ValueError("a string of more than 32767 bytes")
    return uvarint(length)


def _unknown_tags(tags: dict[int, bytes]) -> bytes:
    return tag_section({tag: bytes(data) for tag, data in tags.items()})


class EncoderSource:
    """The source of an encoder, `encode(o0, out, big)`, and the names that it uses."""

    def __init__(self, cls: type[Message], version: int) -> None:
        self._version = version
        self._flexible = version in cls.__schema__.flexible
        self.scope: dict[str, Any] = {
            "uv": uvarint,
            "uvs": _uvarint_string,
            "UV": SMALL_UVARINTS,
            "bad": _bad,
            "tag_section": tag_section,
            "unknown_tags": _unknown_tags,
        }
        self._functions: list[str] = []
        self._lines: list[str] = []
        self._indent = 1
        self._counter = 0
        self._run_letters = ""
        self._run_values: list[str] = []
        self._emit("w = out.append")
        self._struct(cls, "o0")
        self.text = "\n".join([*self._functions, "def encode(o0, out, big):", *self._lines])

    def _emit(self, line: str) -> None:
        self._lines.append("    " * self._indent + line)

    def _fresh(self, letter: str) -> str:
        self._counter += 1
        return f"{letter}{self._counter}"

    # -- runs of fixed size --------------------------------------------------------------------------------------

    def _run(self, letter: str, value: str) -> None:
        self._run_letters += letter
        self._run_values.append(value)

    def _packed(self, letters: str, values: list[str]) -> str:
        name = f"P_{letters.replace('?', 'o')}"
        self.scope[name] = layout(letters).pack
        return f"{name}({', '.join(values)})"

    def _flush(self) -> None:
        if self._run_letters:
            self._emit(f"w({self._packed(self._run_letters, self._run_values)})")
            self._run_letters, self._run_values = "", []

    def _flush_with_uvarint(self, variable: str, writer: str = "uv") -> None:
        """Write the run and a varint after it, which is almost always one byte."""
        letters, values = self._run_letters, self._run_values
        self._run_letters, self._run_values = "", []
        if not letters:
            self._emit(f"w(UV[{variable}] if {variable} < 128 else {writer}({variable}))")
            return
        self._emit(f"if {variable} < 128:")
        self._emit(f"    w({self._packed(letters + 'B', [*values, variable])})")
        self._emit("else:")
        self._emit(f"    w({self._packed(letters, values)})")
        self._emit(f"    w({writer}({variable}))")

    # -- structures ----------------------------------------------------------------------------------------------

    def _struct(self, cls: type[Struct], source: str) -> None:
        absent = [
            self._differs(field, f"{source}.{field.name}")
            for field in cls.__schema__.fields
            if self._version not in field.versions and not field.ignorable
        ]
        if not self._flexible:
            absent.append(f"{source}.unknown_tags")
        if absent:
            self._emit(f"if {' or '.join(absent)}:")
            self._emit("    bad()")
        for field in cls.__schema__.fields:
            if field.present(self._version):
                self._field(field, f"{source}.{field.name}")
        if self._flexible:
            self._tag_buffer(cls, source)
        else:
            self._flush()

    def _differs(self, field: Field, source: str) -> str:
        """Return an expression that is true if a field differs from its default."""
        if field.default is None and field.factory is None:
            return f"{source} is not None"
        if field.kind == "array":
            return f"{source} != []"
        if field.kind == "struct":
            assert field.struct is not None
            inner = [self._differs(member, f"{source}.{member.name}") for member in field.struct.__schema__.fields]
            inner.append(f"{source}.unknown_tags")
            both = " or ".join(inner)
            return f"({source} is None or {both})" if field.nullable else f"({both})"
        if field.kind == "bool":
            return f"not {source}" if field.default else source
        if field.kind == "uuid":
            self.scope["ZERO_UUID"] = field.default
            return f"{source} != ZERO_UUID"
        return f"{source} != {field.default!r}"

    def _field(self, field: Field, source: str, tagged: bool = False) -> None:
        nullable = self._version in field.nullable
        compact = self._flexible and self._version in field.flexible
        if field.kind in FIXED:
            self._run(FIXED[field.kind][0], source)
        elif field.kind == "array":
            self._array(field, source, compact, nullable)
        elif field.kind == "struct":
            assert field.struct is not None
            self._nested(field.struct, source, nullable, tagged)
        else:
            self._variable(field.kind, source, compact, nullable)

    def _nested(self, cls: type[Struct], source: str, nullable: bool, tagged: bool) -> None:
        value = self._fresh("o")
        self._emit(f"{value} = {source}")
        if nullable:
            self._flush()
            self._emit(f"if {value} is None:")
            self._emit("    w(b'\\0')" if tagged else "    w(b'\\xff')")
            self._emit("else:")
            self._indent += 1
            self._run("b", "1")
        self._struct(cls, value)
        if nullable:
            self._indent -= 1

    # -- values with a length ------------------------------------------------------------------------------------

    def _variable(self, kind: str, source: str, compact: bool, nullable: bool) -> None:
        value, size = self._fresh("x"), self._fresh("n")
        self._emit(f"{value} = {source}")
        if nullable:
            self._emit(f"if {value} is None:")
            self._emit(f"    {size} = {0 if compact else -1}")
            self._emit("else:")
            self._indent += 1
        if kind == "string":
            self._emit(f"{value} = {value}.encode()")
        self._emit(f"{size} = len({value}){' + 1' if compact else ''}")
        if nullable:
            self._indent -= 1
        if compact:
            self._flush_with_uvarint(size, "uvs" if kind == "string" else "uv")
        else:
            self._run("h" if kind == "string" else "i", size)
            self._flush()
        condition = f"{size} > {1 if compact else 0}"
        self._emit(f"if {condition}:")
        if kind == "records":
            self._emit("    big.append(len(out))")
        self._emit(f"    w({value})")

    def _array(self, field: Field, source: str, compact: bool, nullable: bool) -> None:
        of = field.of
        assert of is not None
        items, size = self._fresh("l"), self._fresh("n")
        self._emit(f"{items} = {source}")
        if nullable:
            self._emit(f"if {items} is None:")
            self._emit(f"    {items} = ()")
            self._emit(f"    {size} = {0 if compact else -1}")
            self._emit("else:")
            self._emit(f"    {size} = len({items}){' + 1' if compact else ''}")
        else:
            self._emit(f"{size} = len({items}){' + 1' if compact else ''}")
        if compact:
            self._flush_with_uvarint(size)
        else:
            self._run("i", size)
            self._flush()
        if isinstance(of, str) and of in FIXED:
            letter = FIXED[of][0]
            if of == "uuid":
                self._emit(f"out += {items}")
                return
            name = f"many_{letter.replace('?', 'o')}"
            self.scope[name] = _NUMBERS[letter]
            self._emit(f"if {items}:")
            self._emit(f"    w({name}({items}))")
            return
        item = self._fresh("o")
        self._emit(f"for {item} in {items}:")
        self._indent += 1
        if isinstance(of, str):
            self._variable(of, item, compact, False)
        else:
            self._struct(of, item)
        self._indent -= 1

    # -- tagged fields -------------------------------------------------------------------------------------------

    def _tag_buffer(self, cls: type[Struct], source: str) -> None:
        """Close a structure: write an empty tag buffer, or call the function for tagged fields."""
        tagged = [
            field
            for field in cls.__schema__.fields
            if self._version in field.tagged and self._version in field.versions
        ]
        letters, values = self._run_letters, self._run_values
        self._run_letters, self._run_values = "", []
        conditions = [self._differs(field, f"{source}.{field.name}") for field in tagged]
        conditions.append(f"{source}.unknown_tags")
        self._emit(f"if {' or '.join(conditions)}:")
        if letters:
            self._emit(f"    w({self._packed(letters, values)})")
        self._emit(
            f"    w({self._tags(cls, tagged)}({source}))" if tagged else f"    w(unknown_tags({source}.unknown_tags))"
        )
        self._emit("else:")
        self._emit(f"    w({self._packed(letters + 'x', values)})" if letters else "    w(b'\\0')")

    def _tags(self, cls: type[Struct], tagged: list[Field]) -> str:
        name = f"tags_{cls.__name__}"
        if name in self.scope:
            return name
        self.scope[name] = None
        outer = self._lines, self._indent
        self._lines, self._indent = [], 1
        self._emit("fields = {}")
        self._emit("if o.unknown_tags:")
        self._emit("    for tag, data in o.unknown_tags.items():")
        self._emit("        fields[tag] = bytes(data)")
        for field in tagged:
            self._emit(f"if {self._differs(field, f'o.{field.name}')}:")
            self._indent += 1
            self._emit("out = []")
            self._emit("w = out.append")
            self._field(field, f"o.{field.name}", tagged=True)
            self._flush()
            self._emit(f"fields[{field.tag}] = b''.join(out)")
            self._indent -= 1
        self._emit("return tag_section(fields)")
        self._functions += [f"def {name}(o):", *self._lines, ""]
        self._lines, self._indent = outer
        return name
