"""The form of requests in JSON: each member with its JSON Schema, which `/openapi.json` publishes, and its check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from aioflow.serve.protocol.datatypes import DATATYPES
from aioflow.serve.protocol.errors import MalformedRequestError

Schema: TypeAlias = dict[str, Any]

TEXT: Final[Schema] = {"type": "string"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
FLAG: Final[Schema] = {"type": "boolean"}
DATATYPE: Final[Schema] = {"type": "string", "enum": list(DATATYPES)}
_MOST: Final = (1 << 63) - 1
_SHOWN: Final = 60


def ref(name: str) -> Schema:
    """Return a reference to the schema `name`."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_of(needed: Mapping[str, Schema], **more: Schema) -> Schema:
    """Return the schema of an object with all members of `needed`, and optional members `more`."""
    return {"type": "object", "properties": {**needed, **more}, "required": list(needed)}


def list_of(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def or_none(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {**schema, "type": [schema["type"], "null"]}


class Member(NamedTuple):
    """A member of an object: its schema, a function that returns whether a value matches it, and words for errors."""

    schema: Schema
    accepts: Callable[[Any], bool]
    expected: str

    def described(self, text: str) -> Member:
        """Return this member with a description."""
        return self._replace(schema={**self.schema, "description": text})


# The exact types: `bool` is a subclass of `int`, but true is not a number here.
_TEXT: Final = Member(TEXT, lambda value: type(value) is str, "a text")
_NAME: Final = Member({**TEXT, "minLength": 1}, lambda value: type(value) is str and value != "", "a non-empty text")
_FLAG: Final = Member(FLAG, lambda value: type(value) is bool, "true or false")
_WHOLE: Final = Member(
    {**COUNT, "maximum": _MOST},
    lambda value: type(value) is int and 0 <= value <= _MOST,
    f"a whole number from 0 to {_MOST}",
)
_NUMBER: Final = Member(
    {"type": "number", "minimum": 0, "maximum": 1e6},
    lambda value: type(value) in (int, float) and 0 <= value <= 1e6,
    "a number from 0 to 1000000",
)
_COUNT: Final = Member(
    {"type": "integer", "minimum": 1, "maximum": _MOST},
    lambda value: type(value) is int and 1 <= value <= _MOST,
    f"a whole number from 1 to {_MOST}",
)
_DATATYPE: Final = Member(DATATYPE, lambda value: type(value) is str and value in DATATYPES, ", ".join(DATATYPES))
_SHAPE: Final = Member(
    list_of(COUNT),
    lambda value: type(value) is list and all(type(size) is int and size >= 0 for size in value),
    "a list of sizes, none negative",
)


class Form:
    """The form of an object.

    Args:
        needed: The members that it must have.
        more: Those that it may have. It may have others, too.
    """

    def __init__(self, needed: Mapping[str, Member], **more: Member) -> None:
        self._is_named = "name" in needed
        self._members = [(name, *member, name in needed) for name, member in {**needed, **more}.items()]
        self.schema = object_of(
            {name: member.schema for name, member in needed.items()},
            **{name: member.schema for name, member in more.items()},
        )

    def check(self, value: Any, what: str) -> None:
        """Raise MalformedRequestError if a value does not have this form. Errors call it `what`, with its name."""
        if type(value) is not dict:
            raise MalformedRequestError(f"{what} is not an object", expected="an object", actual=shown(value))
        for name, _, accepts, expected, is_needed in self._members:
            if not accepts(value[name]) if name in value else is_needed:
                own = value.get("name") if self._is_named else None
                raise MalformedRequestError(
                    f"{name!r} of {what}{f' {shown(own)}' if own and type(own) is str else ''} is wrong",
                    expected=expected,
                    actual=shown(value[name]) if name in value else "nothing",
                )


def _or_none(member: Member) -> Member:
    """Return a member that may also be null."""
    return member._replace(schema=or_none(member.schema), accepts=lambda value: value is None or member.accepts(value))


def _object(form: Form) -> Member:
    """Return a member that may be an object of a form, which is checked separately."""
    return Member(form.schema, lambda value: type(value) is dict, "an object")


def _list(schema: str) -> Member:
    """Return a member that is a list of objects of a form, which are checked separately."""
    return Member(list_of(ref(schema)), lambda value: type(value) is list, "a list")


_SCHEDULING: Final[Mapping[str, Member]] = {
    "timeout": _WHOLE.described("Timeout in microseconds; 0 means no timeout."),
    "priority": _WHOLE.described("0, the default, and 1 are the most urgent."),
}
SCHEDULING: Final = Form({}, **_SCHEDULING)
PARAMETERS: Final = Form(
    {},
    **_SCHEDULING,
    binary_data_output=_FLAG,
    signature=_TEXT.described("Signature to use instead of the default one."),
)
INPUT_PARAMETERS: Final = Form({}, binary_data_size=_or_none(_WHOLE))
_CLASSES: Final = _WHOLE.described("Number of classes to return instead of the elements.")
CLASSIFICATION: Final = Form({}, classification=_CLASSES)
OUTPUT_PARAMETERS: Final = Form({}, binary_data=_FLAG, classification=_CLASSES)
GENERATION: Final = Form(
    {},
    max_tokens=_COUNT.described("Maximum number of tokens to generate."),
    temperature=_NUMBER.described("Above 1 for more variety; 0, the default, always selects the likeliest token."),
    top_k=_COUNT.described("Number of likeliest tokens to sample from."),
    seed=_WHOLE.described("Equal seeds yield equal streams."),
    timeout=_SCHEDULING["timeout"],
)
_FEATURES: Final[Schema] = {"type": "object"}  # a value, or a list of values, by name
_DATA: Final = "Elements in row-major order, flat or nested by the shape; absent if sent as binary data."
FORMS: Final[Mapping[str, Form]] = {
    "InputTensor": Form(
        {"name": _NAME, "datatype": _DATATYPE, "shape": _SHAPE},
        data=Member({}, lambda value: True, "").described(_DATA),
        parameters=_or_none(_object(INPUT_PARAMETERS)),
    ),
    "RequestedOutput": Form({"name": _NAME}, parameters=_or_none(_object(OUTPUT_PARAMETERS))),
    "InferRequest": Form(
        {"inputs": _list("InputTensor")},
        id=_TEXT,
        outputs=_or_none(_list("RequestedOutput")),
        parameters=_or_none(_object(PARAMETERS)),
    ),
    "GenerateRequest": Form(
        {},
        text_input=_TEXT.described("The prompt as text, if the model has an encoding."),
        tokens=Member(
            list_of(COUNT),
            lambda value: type(value) is list and all(type(each) is int and each >= 0 for each in value),
            "a list of tokens",
        ).described("The prompt as tokens."),
        id=_TEXT,
        parameters=_or_none(_object(GENERATION)),
    ),
    "IndexRequest": Form({}, ready=_FLAG),
    "ExamplesRequest": Form(
        {"examples": _list("Example")},
        signature_name=_TEXT.described("Signature to use instead of the default one."),
        context=_or_none(Member(_FEATURES, lambda value: type(value) is dict, "an object")).described(
            "Features of all examples."
        ),
        parameters=_or_none(_object(SCHEDULING)),
    ),
    "PredictRequest": Form(
        {},
        signature_name=_TEXT.described("Signature to use instead of the default one."),
        instances=Member(list_of({}), lambda value: type(value) is list, "a list").described(
            "Rows: a list of values, or of objects by input name."
        ),
        inputs=Member({}, lambda value: True, "").described("Columns: a value, or an object by input name."),
        parameters=_or_none(_object(SCHEDULING)),
    ),
}


def shown(value: Any) -> str:
    """Return a short form of a value for a message."""
    if type(value) is int and not -(10**_SHOWN) < value < 10**_SHOWN:
        return "a number of many digits"
    if type(value) is dict:
        return "an object"
    if type(value) is list:
        # Lists in it are not shown: they may be nested more deeply than the stack allows, and very long.
        return f"[{', '.join('a list' if type(each) is list else shown(each) for each in value[:8])}]"[:_SHOWN]
    return repr(value[:_SHOWN] if type(value) is str else value)[:_SHOWN]
