"""Read Protobuf schemas: the types of their values, and the descriptors that decode them."""

import base64
import importlib
import re
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import DecodeError

from frazil.kafka.schema_registry import Registered
from frazil.schemas.source_types import (
    MAX_FIELDS,
    Dictionary,
    NotConvertibleError,
    Record,
    Scalar,
    Sequence,
    Source,
    UnreadableSchemaError,
    Unsupported,
    refusing_deep_schemas,
)
from frazil.streams.column_types import MAX_LEVELS, Primitive

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
_FREE_FORM = frozenset(f"google.protobuf.{word}" for word in ("Struct", "Value", "ListValue"))
_TIMESTAMP = "google.protobuf.Timestamp"
_PACKAGES = {"google/": "", "confluent/": "confluent_kafka.schema_registry."}
"""The folder of a file that registries know → the package with its module."""

_MAX_DEPTH = 2 * MAX_LEVELS
"""Messages in a message: as many as Google's library reads."""
_STANDARD = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)+[.]proto")
_IMPORT = re.compile(r"""\bimport\s+(?:public\s+|weak\s+)?["']([^"']+)["']""")


@dataclass(frozen=True)
class ProtobufSchema:
    """One message: its type, its descriptors, and the message indexes in a record's header.

    `indexes` has each valid encoding of the indexes.
    """

    root: Record
    message: str
    descriptor_set: bytes
    indexes: tuple[bytes, ...]


@refusing_deep_schemas()
def read_protobuf(registered: Registered, message: str | None) -> ProtobufSchema:
    """Read a registered schema; without a name, the file's first message.

    Raises:
        UnreadableSchemaError: it is not a valid Protobuf schema.
        NotConvertibleError: it has no such message.
    """
    try:
        files = _load_files(registered)
        pool = DescriptorPool()
        for each in files.file:
            _number_json_names(each)
            pool.AddSerializedFile(each.SerializeToString())
        described = pool.FindFileByName(files.file[-1].name)
    except KeyError as error:
        problem = f"imports {error.args[0]}, which is neither a reference of it nor a standard file"
        raise UnreadableSchemaError(problem) from error
    except (TypeError, ValueError, DecodeError) as error:
        problem = f"is not a valid Protobuf schema: {error}"
        raise UnreadableSchemaError(problem) from error
    found, path = _find_message(described, message)
    return ProtobufSchema(
        root=_Reader().read_root(found),
        message=found.full_name,
        descriptor_set=files.SerializeToString(),
        indexes=_encode_path(path),
    )


def _load_files(registered: Registered) -> FileDescriptorSet:
    """Load a schema and its imports, each file after its imports."""
    references = dict(registered.references)
    own = "frazil.proto"
    while own in references:
        own = f"own/{own}"
    texts = {**references, own: registered.text}
    parsed = {name: _parse_descriptor(text, name) for name, text in texts.items()}
    if any(each is None for each in parsed.values()):
        return _compile(texts, own)
    known = {name: each for name, each in parsed.items() if each is not None}
    files = FileDescriptorSet()
    _add_file(files, known[own], known)
    return files


def _parse_descriptor(text: str, name: str) -> FileDescriptorProto | None:
    """Read a descriptor in base64; None if the text is in .proto syntax."""
    try:
        content = base64.b64decode(text, validate=True)
        parsed = FileDescriptorProto.FromString(content)
    except (ValueError, DecodeError):  # texts beyond ASCII are a plain ValueError
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
    """Return the descriptor of a file that registries know without a reference.

    Raises:
        KeyError: there is no such file.
    """
    prefix = next((each for each in _PACKAGES if name.startswith(each)), None)
    if prefix is None or not _STANDARD.fullmatch(name):
        raise KeyError(name)
    module = f"{_PACKAGES[prefix]}{name.removesuffix('.proto').replace('/', '.')}_pb2"
    try:
        importlib.import_module(module)
    except ModuleNotFoundError:
        raise KeyError(name) from None
    found = FileDescriptorProto()
    Default().FindFileByName(name).CopyToProto(found)
    return found


def _compile(texts: dict[str, str], own: str) -> FileDescriptorSet:
    """Compile the text named `own` from .proto syntax, as registries may have no descriptors.

    Raises:
        ValueError: a reference's name leaves the folder, or protoc rejected the schema.
    """
    from grpc_tools import protoc  # noqa: PLC0415 - slow, rarely needed

    with tempfile.TemporaryDirectory(prefix="frazil-proto-") as folder:
        for name, text in texts.items():
            path = Path(folder, name)
            if not path.resolve().is_relative_to(Path(folder).resolve()):
                raise ValueError(f"a reference has the name {name}, which is outside the schema")
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
            except OSError as error:
                message = f"the name of a reference is not a file name: {error.strerror}"
                raise ValueError(message) from error
        output, standard = Path(folder, "compiled.bin"), Path(folder, "standard.bin")
        standard.write_bytes(_list_standard(texts).SerializeToString())
        command = ["protoc", f"-I{folder}", f"--descriptor_set_in={standard}", "--include_imports"]
        if protoc.main([*command, f"--descriptor_set_out={output}", own]) != 0:
            raise ValueError("protoc rejected it; see its messages in this step's log")
        return FileDescriptorSet.FromString(output.read_bytes())


def replace_enums(descriptor_set: bytes) -> bytes:
    """Return the descriptors with `int32` in place of each enumeration, which has the same bytes.

    With a closed enumeration (proto2) Google's library hides a number without a name: the field
    would be null, the list shorter, the map's entry missing. As numbers all of them are checked.
    """
    pool, replaced = DescriptorPool(), FileDescriptorSet()
    for each in FileDescriptorSet.FromString(descriptor_set).file:
        pool.AddSerializedFile(each.SerializeToString())
        file = replaced.file.add()
        pool.FindFileByName(each.name).CopyToProto(file)  # with resolved types
        for field in _walk_fields(file):
            if field.type == FieldDescriptor.TYPE_ENUM:
                field.type = FieldDescriptorProto.TYPE_INT32
                field.ClearField("type_name")
                field.ClearField("default_value")
    written: bytes = replaced.SerializeToString()
    return written


def _number_json_names(scope: FileDescriptorProto | DescriptorProto) -> None:
    """Name fields for JSON by their numbers: no payload has such names.

    Google's library refuses two fields of one name in JSON, such as `order_id` and `orderId`, which
    proto2 allows.
    """
    if isinstance(scope, DescriptorProto):
        for field in scope.field:
            field.json_name = f"f{field.number}"
    nested = scope.nested_type if isinstance(scope, DescriptorProto) else scope.message_type
    for message in nested:
        _number_json_names(message)


def _walk_fields(
    scope: FileDescriptorProto | DescriptorProto,
) -> Iterator[FieldDescriptorProto]:
    """Iterate over the fields and extensions of a file or message, and of the messages in it."""
    yield from scope.extension
    if isinstance(scope, FileDescriptorProto):
        nested = scope.message_type
    else:
        nested = scope.nested_type
        yield from scope.field
    for message in nested:
        yield from _walk_fields(message)


def _list_standard(texts: dict[str, str]) -> FileDescriptorSet:
    """Return the files that texts import and registries know, each after its imports."""
    files = FileDescriptorSet()
    for name in sorted({name for text in texts.values() for name in _IMPORT.findall(text)}):
        if name not in texts and not any(name == added.name for added in files.file):
            with suppress(KeyError):  # protoc reports what is missing
                _add_file(files, _find_standard(name), {})
    return files


def _find_message(file: FileDescriptor, name: str | None) -> tuple[Descriptor, tuple[int, ...]]:
    """Return a message by its name, with or without its package, and its indexes in the file."""
    messages = list(_walk_messages(list(file.message_types_by_name.values()), ()))
    for found, path in messages:
        if name is None or name in {
            found.full_name,
            found.full_name.removeprefix(file.package + "."),
        }:
            return found, path
    known = ", ".join(found.full_name for found, _ in messages) or "none"
    problem = f"has no message {name or ''}; known: {known}"
    raise NotConvertibleError(problem)


def _walk_messages(
    messages: list[Descriptor], path: tuple[int, ...]
) -> Iterator[tuple[Descriptor, tuple[int, ...]]]:
    for index, message in enumerate(messages):
        yield message, (*path, index)
        yield from _walk_messages(list(message.nested_types), (*path, index))


def _encode_path(path: tuple[int, ...]) -> tuple[bytes, ...]:
    """Encode message indexes as in headers: count and indexes, zigzag; [0] also as one zero."""
    full = b"".join(_encode_varint(2 * number) for number in (len(path), *path))
    return (b"\x00", full) if path == (0,) else (full,)


def _encode_varint(number: int) -> bytes:
    parts = bytearray()
    while number > 0x7F:  # noqa: PLR2004 - seven bits each
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


@dataclass
class _Reader:
    """Read the types of a message; `count` are the fields read since one of the message itself."""

    count: int = 0

    def read_root(self, message: Descriptor) -> Record:
        """Read the message of a schema."""
        fields = []
        for each in message.fields:
            self.count = 0
            fields.append((each.name, self._read_field(each, (message.full_name,))))
        return Record(tuple(fields))

    def _read_message(self, message: Descriptor, above: tuple[str, ...]) -> Record:
        inner = (*above, message.full_name)
        return Record(tuple((each.name, self._read_field(each, inner)) for each in message.fields))

    def _read_field(self, field: FieldDescriptor, above: tuple[str, ...]) -> Source:
        """Read the type of a field; `above` are the messages that contain it."""
        self.count += 1
        if self.count > MAX_FIELDS:
            return Unsupported(f"has more than {MAX_FIELDS} fields")
        if len(above) > _MAX_DEPTH:
            return Unsupported(f"is nested deeper than {_MAX_DEPTH} levels")
        kind = field.message_type
        if kind is not None and kind.GetOptions().map_entry:
            key, value = (self._read_value(kind.fields_by_name[n], above) for n in ("key", "value"))
            return (
                Dictionary(key, value)
                if isinstance(key, Scalar)
                else Unsupported("has unsupported keys")
            )
        value = self._read_value(field, above)
        return Sequence(value) if field.is_repeated else value

    def _read_value(self, field: FieldDescriptor, above: tuple[str, ...]) -> Source:
        """Read the type of one value, of a group as of a message.

        A recursive, free-form or empty message stays bytes.
        """
        if field.type == FieldDescriptor.TYPE_ENUM:
            names: dict[int, str] = {}
            for value in field.enum_type.values:
                names.setdefault(value.number, value.name)
            return Scalar(Primitive("string"), "enum", tuple(names.items()))
        kind = field.message_type
        if kind is None:
            return Scalar(_SCALARS[field.type])
        if kind.full_name in above or kind.full_name in _FREE_FORM or not kind.fields:
            return Scalar(Primitive("binary"))
        if kind.full_name == _TIMESTAMP:
            return Scalar(Primitive("timestamptz"), "instant")
        if kind.full_name in _WRAPPERS:
            return Scalar(_SCALARS[kind.fields_by_name["value"].type], "wrapped")
        return self._read_message(kind, above)
