"""The command line: listings match the registries, and the doctor reports what it finds, including missing packages."""

from __future__ import annotations

import importlib
import json
import sys
import types
from importlib import metadata

import pytest

from aioflow.cli import backends, doctor, main, ops
from aioflow.graph.gradient_registry import GRADIENTS
from aioflow.graph.opdef import OPS
from aioflow_cupy import driver


def test_ops_lists_every_registered_op_with_its_gradient() -> None:
    rows = {row.op: row for row in ops.list_ops()}
    assert set(rows) == {op_def.name for op_def in OPS}
    assert list(rows) == sorted(rows)
    for name, row in rows.items():
        expected = "missing" if name not in GRADIENTS else "none" if GRADIENTS[name] is None else "yes"
        assert row.gradient == expected, name


def test_ops_in_json_is_the_same_listing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [row["op"] for row in listed] == [row.op for row in ops.list_ops()]
    identity = next(row for row in listed if row["op"] == "Identity")
    traits = {"kind": "passes_on", "cost": "free", "memory": "passed"}
    assert identity == {
        "op": "Identity",
        "dtypes": {"T": []},
        "devices": ["any"],
        "gradient": "yes",
        "traits": traits,
    }


def test_ops_lists_traits(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops", "--traits"]) == 0
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines()}
    assert "reduction" in lines["Sum"]
    assert "rounded_by: reduction_indices" in lines["Sum"]
    assert "5 x transcendental" in lines["Digamma"]


def test_ops_in_text_ends_with_the_totals(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ops"]) == 0
    *_, totals = capsys.readouterr().out.splitlines()
    assert totals.startswith(f"{len(OPS)} ops: ")


def test_doctor_reports_versions_and_the_backend(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for subject in (
        "device ",
        "/job:localhost/replica:0/task:0/device:CPU:0",
        "python",
        "processors",
        "uvloop",
        "backend numpy",
        "core type chosen",
        "idle threads spin for",
        "blas",
    ):
        assert subject in out
    assert metadata.version("numpy") in out
    assert "NOT READY" not in out


def entry(name: str, target: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name, target, "aioflow.backends")


@pytest.mark.parametrize(
    ("name", "target", "expected"),
    [
        ("cupy", "no_such_module:backend", "pip install 'aioflow-engine[cupy]'"),
        ("strange", "no_such_module:backend", "No module named 'no_such_module'"),
        ("broken", "json:loads", "TypeError"),
    ],
)
def test_backend_that_fails_to_load_is_a_line_of_the_report(
    monkeypatch: pytest.MonkeyPatch, name: str, target: str, expected: str
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [entry(name, target)])
    [found] = backends.load_backends()
    assert found.problem is not None
    assert expected in found.problem
    lines, ready = doctor.report()
    assert not ready
    (finding,) = (finding for subject, finding in lines if subject == f"backend {name}")
    assert expected in finding
    assert finding.startswith("not installed; pip install" if name == "cupy" else "NOT READY")


def test_missing_cupy_is_reported_with_the_extra_for_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "cuda_version", lambda: 13)
    monkeypatch.setitem(sys.modules, "cupy", None)  # an import raises ImportError
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [entry("cupy", "aioflow_cupy.entry:backend")])
    assert dict(doctor.report()[0])["backend cupy"] == "not installed; pip install 'aioflow-engine[cupy13]'"


def test_entry_points_declared_twice_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution may also be installed under aioflow's earlier name."""
    real = metadata.entry_points
    before, _ = doctor.report()
    monkeypatch.setattr(metadata, "entry_points", lambda **group: [*real(**group), *real(**group)])
    subjects = [subject for subject, _ in doctor.report()[0]]
    assert subjects == [subject for subject, _ in before]


def test_missing_optional_package_does_not_fail_the_doctor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = metadata.entry_points

    def with_cupy(**group: str) -> list[metadata.EntryPoint]:
        missing = [entry("cupy", "no_such_module:backend")] if group == {"group": "aioflow.backends"} else []
        return [*real(**group), *missing]

    monkeypatch.setattr(metadata, "entry_points", with_cupy)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "NOT READY" not in out
    assert "pip install 'aioflow-engine[cupy]'" in out


def test_doctor_reports_devices_that_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("driver lost")

    monkeypatch.setattr(doctor, "list_devices", fail)
    assert ("devices", "NOT READY: RuntimeError: driver lost") in doctor.report()[0]


def test_doctor_fails_without_any_backend(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda **_: [])
    assert main(["doctor"]) == 1
    assert "no graph can run here" in capsys.readouterr().out


def test_doctor_names_what_the_demo_misses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_DEMO_PACKAGES", ("json", "no_such_module"))
    assert ("demo", "needs no_such_module: pip install 'aioflow-engine[demo]'") in doctor.report()[0]


def fake_demo(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setitem(sys.modules, "aioflow.demo.main", module)


def test_demo_receives_the_rest_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []

    def demo(rest: list[str]) -> int:
        seen.extend(rest)
        return 7

    fake_demo(monkeypatch, types.SimpleNamespace(main=demo))
    assert main(["demo", "--steps", "3", "-h"]) == 7
    assert seen == ["--steps", "3", "-h"]


def test_demo_without_its_packages_names_the_install_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_demo(monkeypatch, types.SimpleNamespace(main=lambda _: importlib.import_module("no_such_module")))
    assert main(["demo"]) == 2
    error = capsys.readouterr().err
    assert "no_such_module" in error
    assert "pip install 'aioflow-engine[demo]'" in error


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["ops", "--nonsense"], ["doctor", "extra"]])
def test_wrong_command_line_is_one_line_of_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(argv)
    assert stopped.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("aioflow: ")
    assert "--help" in line


COMMANDS = ["ops", "doctor", "devices", "calibrate", "explain", "run", "serve", "inspect", "graph", "port"]
COMMANDS += ["profile", "top", "secret", "demo"]


def help_of(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_each_command_describes_it(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    printed = help_of(capsys, command)
    assert printed.startswith(f"usage: aioflow {command} ")
    # The description is between the usage, whose last argument ends with a bracket or a name, and the first options.
    description = printed.partition(" options:")[0].partition(" positional arguments:")[0]
    assert description.endswith((".", "…")), description


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ((), "python -m aioflow.worker"),
        (("secret",), "--token-file"),
        (("explain",), "auto: the better of greedy and heft"),
        (("run",), "auto, which is the first that is installed. Default: auto with --repeat, otherwise none"),
        (("graph",), "Default: none; only with --as run"),
        (("serve",), "NAME=MODEL[:VERSION]"),
        (("serve",), "or ignores those that failed (any)"),
        (("serve",), "anyone who can reach it may use the models unless there is a token"),
    ],
)
def test_help_states(command: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert says in help_of(capsys, *command)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("worker", "--job", "ps"), "a task of a cluster is started by python -m aioflow.worker"),
        (("serve", "nope.onnx"), "write NAME=nope.onnx"),
        (("serve", "a b=nope.onnx"), "NAME of letters, digits and _ . -"),
    ],
)
def test_wrong_command_line_names_the_right_one(
    command: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(command)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
