"""Options of `aioflow serve`: command line, file, environment, and their errors."""

from __future__ import annotations

import argparse
from dataclasses import fields
from pathlib import Path
from typing import Final

import pytest

pytest.importorskip("starlette", reason="aioflow-engine[serve] is not installed")

from aioflow.cli import serve_options
from aioflow.cli.arguments import Parser
from aioflow.cli.serve import add_parser
from aioflow.cli.serve_options import ServeOptions, given_options
from aioflow.config import SessionConfig
from aioflow.errors import DTypeError, InvalidArgumentError, NotFoundError
from aioflow.observe.logs import LogOptions
from aioflow.serve import Limits, ModelOptions, ModelSource, ServerOptions

FILE: Final = """
[serve]
host = "0.0.0.0"
port = 9000
grpc-port = 0
allow-host = ["a.example", "b.example"]
max-batch-size = 8
timeout = 2.5
memory-budget = "2GiB"
warmup = false
strict = true
readiness = "any"
drain-seconds = 5
processes = 2
quorum = 1
stuck-seconds = 0
import = "json"
log-level = "debug"
log-format = "json"
access-log = "common"
shape = ["b:y=2"]

[limits]
body_bytes = 1000
body_seconds = 1.5

[models.a]
path = "models/a:1"
versions = [1, 3]

[models.b]
path = "b.onnx"
versions = "all"
shape = ["x=?,3"]
max-batch-size = 4
batch = "never"
batch-timeout = 0.5
max-enqueued-batches = 2
max-concurrent-batches = 3
delegate = "none"
json-nan = "null"
warmup = true
timeout = 1
memory-budget = "1MiB"
response-cache = "2MiB"
"""


def parser() -> Parser:
    found = Parser(prog="aioflow")
    add_parser(found.add_subparsers(parser_class=Parser))
    return found


def given(*arguments: str, environment: dict[str, str] | None = None) -> ServeOptions:
    return given_options(parser().parse_args(["serve", *arguments]), environment or {})


@pytest.fixture
def file(tmp_path: Path) -> str:
    return written(tmp_path, FILE)


def written(folder: Path, text: str) -> str:
    path = folder / "serve.toml"
    path.write_text(text)
    return str(path)


def test_options_have_the_defaults_of_the_library() -> None:
    found = given("m=a")
    assert found == ServeOptions(
        {"m": ModelSource("a")},
        {"m": ModelOptions()},
        ServerOptions(strict=False),
        Limits(),
        None,
        1,
        None,
        30.0,
        (),
        LogOptions(),
    )


def test_options_from_a_file(file: str) -> None:
    found = given("--config", file)
    assert found.models == {
        "a": ModelSource("models/a:1", (1, 3)),
        "b": ModelSource("b.onnx", None, {"x": (None, 3), "y": (2,)}),
    }
    assert found.options == {
        "a": ModelOptions(max_batch_size=8, timeout=2.5, warmup=False),
        "b": ModelOptions(
            batch="never",
            max_batch_size=4,
            batch_timeout=0.5,
            max_enqueued_batches=2,
            max_concurrent_batches=3,
            timeout=1.0,
            memory_budget=1 << 20,
            response_cache=2 << 20,
            json_nan="null",
            config=SessionConfig(delegate=None),
        ),
    }
    assert found.where == ServerOptions(
        "0.0.0.0",
        9000,
        hosts=["a.example", "b.example"],
        drain_seconds=5.0,
        grpc_port=0,
        strict=True,
        readiness="any",
        access_log=True,
    )
    assert found.limits == Limits(body_bytes=1000, body_seconds=1.5)
    assert found[4:] == (2 << 30, 2, 1, 0.0, ("json",), LogOptions("debug", "json", "common"))


def test_command_line_overrides_the_file(file: str) -> None:
    found = given(
        *("a=other:2", "c=new", "--config", file, "--port", "1", "--max-batch-size", "16", "--no-warmup"),
        *(
            "--no-strict",
            "--limit",
            "body_bytes=7",
            "--shape",
            "b:x=5",
            "--access-log",
            "off",
            "--memory-budget",
            "1GB",
        ),
    )
    assert found.models == {
        "a": ModelSource("other", (2,)),
        "b": ModelSource("b.onnx", None, {"x": (5,), "y": (2,)}),
        "c": ModelSource("new"),
    }
    assert {name: (each.max_batch_size, each.warmup, each.timeout) for name, each in found.options.items()} == {
        "a": (16, False, 2.5),
        "b": (16, False, 1.0),
        "c": (16, False, 2.5),
    }
    # The budget of a model is not that of the process.
    assert [each.memory_budget for each in found.options.values()] == [None, 1 << 20, None]
    assert (found.where.port, found.where.strict, found.where.access_log) == (1, False, False)
    assert found.limits == Limits(body_bytes=7, body_seconds=1.5)
    assert found.memory_budget == 10**9


def test_every_option_has_a_key_in_the_file(tmp_path: Path) -> None:
    """Only the file itself and the check of it cannot be in it; limits and models have tables of their own."""
    of_tables = {"limit": "limits", "models": "models"}
    command = next(
        action.choices["serve"] for action in parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    names = {(action.option_strings or [f"--{action.dest}"])[0].strip("-") for action in command._actions}
    options = {of_tables.get(name, name) for name in names - {"h", "help", "config", "check"}}
    with pytest.raises(InvalidArgumentError) as raised:
        given("--config", written(tmp_path, "[serve]\nno-such-key = 1"))
    keys = set(str(raised.value.expected).removeprefix("one of ").split(", ")) | {"limits", "models"}
    assert options == keys
    with pytest.raises(InvalidArgumentError) as raised:
        given("--config", written(tmp_path, "[limits]\nno-such-key = 1"))
    assert str(raised.value.expected).removeprefix("one of ").split(", ") == [each.name for each in fields(Limits)]


def test_table_of_a_model_has_every_option_of_models(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        given("--config", written(tmp_path, "[models.m]\nno-such-key = 1"))
    keys = set(str(raised.value.expected).removeprefix("one of ").split(", "))
    alone = argparse.ArgumentParser(add_help=False)
    serve_options.add_model_options(alone)
    assert keys == {action.option_strings[0][2:] for action in alone._actions} | {
        "path",
        "versions",
        "shape",
        "memory-budget",
        "labels",
    }


@pytest.mark.parametrize(
    ("text", "names", "says"),
    [
        ("[serve]\nport = 'x'", "[serve]: port", "'x' is not a number from 0 to 65535"),
        ("[serve]\nport = true", "[serve]: port", "a text, a number"),
        ("[serve]\nwarmup = 1", "[serve]: warmup", "true or false"),
        ("[serve]\nno-warmup = true", "[serve]", "an unknown key"),
        ("[serve]\ntoken = 'secret'", "[serve]", "an unknown key"),
        ("[serve]\nconfig = 'x'", "[serve]", "an unknown key"),
        ("[serve]\nbatch = 'some'", "[serve]: batch", "invalid choice"),
        ("[serve]\nlog-level = 'loud'", "[serve]: log-level", "invalid choice"),
        ("[serve]\nimport = 'no_such_module'", "[serve]: import", "No module named"),
        ("serve = 1", "serve", "a table"),
        ("[server]\nport = 1", "serve.toml", "an unknown key"),
        ("[limits]\nrank = 0", "[limits]: Limits.rank", "at least 1"),
        ("[limits]\nrank = 'x'", "[limits]: wrong type for Limits.rank", "int"),
        ("[limits]\nranks = 1", "[limits]", "an unknown key"),
        ("[models]\nm = 'a'", "[models]: m", "a table"),
        ("[models.m]", "[models.m]: path", "the path of the model"),
        ("[models.m]\npath = ''", "[models.m]: path", "not a name"),
        ("[models.m]\npath = 'a'\nversions = 'new'", "[models.m]: versions", "malformed versions"),
        ("[models.m]\npath = 'a'\nport = 1", "[models.m]", "an unknown key"),
        ("[models.m]\npath = 'a'\nmemory-budget = 'much'", "[models.m]: memory-budget", "not a size"),
        ("[models.'a b']\npath = 'a'", "[models]: invalid model name", "letters"),
        ("port =\nhost = 'x'", "is not TOML", "line 1"),
    ],
)
def test_mistake_in_a_file_is_reported_with_its_place(tmp_path: Path, text: str, names: str, says: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises((InvalidArgumentError, DTypeError)) as raised:
        given("m=a" if "models" not in text else "n=a", "--config", path)
    assert raised.value.message.startswith(path)
    assert names in raised.value.message
    assert says in str(raised.value)


def test_a_model_is_required(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="a model is required"):
        given("--config", written(tmp_path, ""))
    with pytest.raises(NotFoundError, match=r"missing\.toml"):
        given("--config", "missing.toml")


# ── the token ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text("of-the-file\n")
    return str(path)


def test_token_comes_from_the_file_or_the_environment(tmp_path: Path, secret: str) -> None:
    def token(*arguments: str, **environment: str) -> str | None:
        return given("m=a", *arguments, environment=environment).where.token

    assert token() is None
    assert token(AIOFLOW_TOKEN=" secret\n") == "secret"
    assert token(AIOFLOW_TOKEN_FILE=secret) == "of-the-file"
    assert token("--token-file", secret, AIOFLOW_TOKEN="secret", AIOFLOW_TOKEN_FILE="missing") == "of-the-file"
    config = written(tmp_path, f"[serve]\ntoken-file = '{secret}'")
    assert token("--config", config, AIOFLOW_TOKEN="secret") == "of-the-file"


@pytest.mark.parametrize("environment", [{"AIOFLOW_TOKEN": ""}, {"AIOFLOW_TOKEN": "two words"}])
def test_malformed_token_is_not_shown(environment: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match="AIOFLOW_TOKEN has no token") as raised:
        given("m=a", environment=environment)
    assert "words" not in str(raised.value)


def test_admin_token_is_read_like_that_of_callers(secret: str) -> None:
    found = given("m=a", "--admin-token-file", secret, environment={"AIOFLOW_TOKEN": "other"}).where
    assert (found.token, found.admin_token) == ("other", "of-the-file")
    assert given("m=a", environment={"AIOFLOW_ADMIN_TOKEN": "root"}).where.admin_token == "root"
    assert "of-the-file" not in repr(found)
    with pytest.raises(InvalidArgumentError, match="both tokens are the same"):
        given("m=a", "--token-file", secret, "--admin-token-file", secret)


def test_two_tokens_in_the_environment_are_rejected(secret: str) -> None:
    with pytest.raises(InvalidArgumentError, match="both set"):
        given("m=a", environment={"AIOFLOW_TOKEN": "secret", "AIOFLOW_TOKEN_FILE": secret})


def test_representation_of_options_has_no_token() -> None:
    found = given("m=a", environment={"AIOFLOW_TOKEN": "secret"})
    assert found.where.token == "secret"
    assert "secret" not in repr(found)
