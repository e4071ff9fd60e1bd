"""Protobuf schemas: the values that they describe, and what a Python worker needs to read them."""

import base64
import binascii
import importlib
import pkgutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import google.protobuf
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import DecodeError

from frazil.kafka.schema_registry import Registered
from frazil.schemas.source_types import (
    Dictionary,
    NoExactFormError,
    Record,
    Scalar,
    Sequence,
    Source,
    Unsupported,
)
from frazil.streams.column_types import Primitive

_SCALARS = {
    FieldDescriptor.TYPE_BOOL: Primitive("boolean"),
    FieldDescriptor.TYPE_INT32: Primitive("int"),
    FieldDescriptor.TYPE_SINT32: Primitive("int"),
    FieldDescriptor.TYPE_SFIXED32: Primitive("int"),
    FieldDescriptor.TYPE_INT64: Primitive("long"),
    FieldDescriptor.TYPE_SINT64: Primitive("long"),
    FieldDescriptor.TYPE_SFIXED64: Primitive("long"),
    FieldDescriptor.TYPE_UINT32: Primitive("long"),
    FieldDescriptor.TYPE_FIXED32: Primitive("long"),
    FieldDescriptor.TYPE_UINT64: Primitive("decimal", (20, 0)),
    FieldDescriptor.TYPE_FIXED64: Primitive("decimal", (20, 0)),
    FieldDescriptor.TYPE_FLOAT: Primitive("float"),
    FieldDescriptor.TYPE_DOUBLE: Primitive("double"),
    FieldDescriptor.TYPE_STRING: Primitive("string"),
    FieldDescriptor.TYPE_BYTES: Primitive("binary"),
}
_WRAPPERS = frozenset(
    f"google.protobuf.{word}Value"
    for word in ("Bool", "Int32", "Int64", "UInt32", "UInt64", "Float", "Double", "String", "Bytes")
)
_DYNAMIC = frozenset(f"google.protobuf.{word}" for word in ("Struct", "Value", "ListValue"))
_INSTANT = "google.protobuf.Timestamp"


@dataclass(frozen=True)
class ProtobufSchema:
    """One message as a tree of values, with its files and the bytes that name it in a header."""

    root: Record
    message: str
    descriptor_set: bytes
    indexes: tuple[bytes, ...]


def read_protobuf(registered: Registered, message: str | None) -> ProtobufSchema:
    """Read a registered schema; the message is the one named, or the first of the file.

    Raises:
        NoExactFormError: it is no Protobuf schema, or has no such message.
    """
    try:
        files = _load_files(registered)
        pool = DescriptorPool()
        for each in files.file:
            pool.AddSerializedFile(each.SerializeToString())
        described = pool.FindFileByName(files.file[-1].name)
    except (TypeError, KeyError, ValueError, DecodeError) as error:
        problem = f"is no Protobuf schema: {error}"
        raise NoExactFormError(problem) from error
    found, path = _find_message(described, message)
    return ProtobufSchema(
        root=_read_message(found, frozenset()),
        message=found.full_name,
        descriptor_set=files.SerializeToString(),
        indexes=_encode_path(path),
    )


def _load_files(registered: Registered) -> FileDescriptorSet:
    """Load a schema and all that it imports, the imported first."""
    texts = {**dict(registered.references), "frazil.proto": registered.text}
    parsed = {name: _parse_descriptor(text, name) for name, text in texts.items()}
    if any(each is None for each in parsed.values()):
        return _compile(texts)
    known = {name: each for name, each in parsed.items() if each is not None}
    files = FileDescriptorSet()
    _add_file(files, known["frazil.proto"], known)
    return files


def _parse_descriptor(text: str, name: str) -> FileDescriptorProto | None:
    """Read a descriptor in base64; None if the text is Protobuf's own language."""
    try:
        content = base64.b64decode(text, validate=True)
        parsed = FileDescriptorProto.FromString(content)
    except (binascii.Error, DecodeError):
        return None
    parsed.name = name
    return parsed


def _add_file(
    files: FileDescriptorSet, each: FileDescriptorProto, known: dict[str, FileDescriptorProto]
) -> None:
    for name in each.dependency:
        if not any(name == added.name for added in files.file):
            _add_file(files, known[name] if name in known else _find_standard(name), known)
    files.file.append(each)


def _find_standard(name: str) -> FileDescriptorProto:
    """Find a file that Protobuf itself brings.

    Raises:
        KeyError: it brings no such file.
    """
    _load_standard()
    found = FileDescriptorProto()
    Default().FindFileByName(name).CopyToProto(found)
    return found


@cache
def _load_standard() -> None:
    for module in pkgutil.iter_modules(google.protobuf.__path__):
        if module.name.endswith("_pb2"):
            importlib.import_module(f"google.protobuf.{module.name}")


def _compile(texts: dict[str, str]) -> FileDescriptorSet:
    """Compile Protobuf's own language, which registries give that cannot serialize.

    Raises:
        ValueError: the compiler refused it; carries its words.
    """
    from grpc_tools import protoc  # noqa: PLC0415 - slow, and seldom needed

    with tempfile.TemporaryDirectory(prefix="frazil-proto-") as folder:
        for name, text in texts.items():
            path = Path(folder, name)
            if not path.resolve().is_relative_to(Path(folder).resolve()):
                raise ValueError(f"a reference is named {name}")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        output = Path(folder, "compiled.bin")
        standard = Path(str(protoc.__file__)).parent / "_proto"
        command = ["protoc", f"-I{folder}", f"-I{standard}", "--include_imports"]
        if protoc.main([*command, f"--descriptor_set_out={output}", "frazil.proto"]) != 0:
            raise ValueError("the compiler refused it; its words are in this step's log")
        return FileDescriptorSet.FromString(output.read_bytes())


def _find_message(file: FileDescriptor, name: str | None) -> tuple[Descriptor, tuple[int, ...]]:
    """Find the message by its name, whole or without its package, and where it is in its file."""
    messages = list(_walk_messages(list(file.message_types_by_name.values()), ()))
    for found, path in messages:
        if name is None or name in {
            found.full_name,
            found.full_name.removeprefix(file.package + "."),
        }:
            return found, path
    known = ", ".join(found.full_name for found, _ in messages) or "none"
    problem = f"has no message {name or ''}; known: {known}"
    raise NoExactFormError(problem)


def _walk_messages(
    messages: list[Descriptor], path: tuple[int, ...]
) -> Iterator[tuple[Descriptor, tuple[int, ...]]]:
    for index, message in enumerate(messages):
        yield message, (*path, index)
        yield from _walk_messages(list(message.nested_types), (*path, index))


def _encode_path(path: tuple[int, ...]) -> tuple[bytes, ...]:
    """Write a message's path as headers do: a count and the indexes, zigzag; [0] also as a zero."""
    full = b"".join(_encode_varint(2 * number) for number in (len(path), *path))
    return (b"\x00", full) if path == (0,) else (full,)


def _encode_varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits each
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


def _read_message(message: Descriptor, above: frozenset[str]) -> Record:
    inner = above | {message.full_name}
    return Record(tuple((field.name, _read_field(field, inner)) for field in message.fields))


def _read_field(field: FieldDescriptor, above: frozenset[str]) -> Source:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        key, value = (_read_value(kind.fields_by_name[n], above) for n in ("key", "value"))
        return Dictionary(key, value) if isinstance(key, Scalar) else Unsupported("has odd keys")
    value = _read_value(field, above)
    return Sequence(value) if field.is_repeated else value


def _read_value(  # noqa: PLR0911 - one answer for each kind
    field: FieldDescriptor, above: frozenset[str]
) -> Source:
    """Read one value of a field; a message that ends nowhere is kept as its own bytes."""
    if field.type == FieldDescriptor.TYPE_GROUP:
        return Unsupported("is a group")
    if field.type == FieldDescriptor.TYPE_ENUM:
        names: dict[int, str] = {}
        for value in field.enum_type.values:
            names.setdefault(value.number, value.name)
        return Scalar(Primitive("string"), "enum", tuple(names.items()))
    kind = field.message_type
    if kind is None:
        return Scalar(_SCALARS[field.type])
    if kind.full_name in above or kind.full_name in _DYNAMIC or not kind.fields:
        return Scalar(Primitive("binary"))
    if kind.full_name == _INSTANT:
        return Scalar(Primitive("timestamptz"), "instant")
    if kind.full_name in _WRAPPERS:
        return Scalar(_SCALARS[kind.fields_by_name["value"].type], "wrapped")
    return _read_message(kind, above)
