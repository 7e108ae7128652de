"""`aioflow port`: the rewriting of TensorFlow 1 programs, and the report of what is left to do.

The programs in `tensorflow_programs` are text files, since linters and type checkers here have no TensorFlow.
"""

from __future__ import annotations

import runpy
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

import numpy as np
import pytest

import aioflow as af
from aioflow.cli import main
from aioflow.cli.porting.rewriting import PortedProgram, port
from aioflow.loading.missing_names import is_tensorflows
from aioflow.loading.tensorflow_names import INSTEAD
from tests.support import processes

PROGRAMS: Final = Path(__file__).parent / "tensorflow_programs"
# The names of each program that aioflow lacks. Those that lack nothing run below.
MISSING: Final[dict[str, set[str]]] = {
    "softmax_regression": set(),
    "convolutional_digits": set(),
    "distributed_trainer": set(),
    "word2vec": {"tf.nn.nce_loss"},
    "lstm_language_model": set(),
}


def ported(source: str) -> PortedProgram:
    """Return the port of a source, after checking that a second port changes nothing and that it compiles."""
    made = port(dedent(source), "x.py")
    compile(made.source, "x.py", "exec")
    assert port(made.source, "x.py").source == made.source
    return made


def check(before: str, after: str) -> None:
    """Check the text of a port that leaves nothing to do."""
    made = ported(before)
    assert made.source == dedent(after)
    assert made.is_complete, made.findings


def texts(made: PortedProgram, level: str) -> list[tuple[int, str]]:
    return [(found.line, found.text) for found in made.findings if found.level == level]


# ── imports ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import tensorflow as tf", "import aioflow as tf"),
        ("import tensorflow.compat.v1 as tf  # the old one", "import aioflow as tf  # the old one"),
        ("from tensorflow.compat import v1 as tf", "import aioflow as tf"),
        ("from tensorflow import compat", "from tensorflow import compat"),
        ("import numpy as np, tensorflow as tf", "import numpy as np, aioflow as tf"),
        ("import tensorflow\nx = tensorflow.zeros([2])", "import aioflow as tensorflow\nx = tensorflow.zeros([2])"),
        ("import tensorflow.nn as nn", "import aioflow.nn as nn"),
        ("from tensorflow import zeros, nn as layers", "from aioflow import zeros, nn as layers"),
        ("from tensorflow.compat.v1.train import Saver", "from aioflow.train import Saver"),
        ("import os\nfrom . import tensorflow", "import os\nfrom . import tensorflow"),
        ("import tensorflow as tf\nx = tf.compat.v1.zeros([2])", "import aioflow as tf\nx = tf.zeros([2])"),
    ],
)
def test_imports_are_replaced_and_aliases_kept(before: str, after: str) -> None:
    assert ported(before).source == after


def test_missing_imports_are_kept_and_reported() -> None:
    made = ported("""\
        import tensorflow.contrib.slim as slim
        from tensorflow.examples.tutorials.mnist import input_data
        from tensorflow import estimator, zeros
        from tensorflow import *
        estimator.Estimator(zeros([1, 2]))
        """)
    assert "import tensorflow.contrib.slim as slim\n" in made.source
    assert "from tensorflow.examples" in made.source
    missing = texts(made, "missing")
    assert [line for line, _ in missing] == [1, 2, 3], "a name is reported where it is imported"
    assert "'estimator' yet" in missing[2][1]
    assert [line for line, _ in texts(made, "check")] == [4]


# ── await and async ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_session_in_a_function_and_its_callers_become_async() -> None:
    check(
        """\
        import sys
        import tensorflow as tf


        def evaluate(sess, x):  # a helper
            # The first row.
            return sess.run(x)[0]


        def train(x):
            with tf.Session() as sess:
                tf.global_variables_initializer().run()
                return evaluate(sess, x), x.eval()


        def plain(x):
            return x + 1


        if __name__ == "__main__":
            sys.exit(train(tf.zeros([2])))
        """,
        """\
        import asyncio
        import sys
        import aioflow as tf


        async def evaluate(sess, x):  # a helper
            # The first row.
            return (await sess.run(x))[0]


        async def train(x):
            async with tf.Session() as sess:
                await tf.global_variables_initializer().run()
                return await evaluate(sess, x), await x.eval()


        def plain(x):
            return x + 1


        if __name__ == "__main__":
            sys.exit(asyncio.run(train(tf.zeros([2]))))
        """,
    )


def test_methods_and_attributes_of_a_class_are_followed() -> None:
    made = ported("""\
        import tensorflow as tf

        class Model(object):
            def __init__(self):
                self.x = tf.get_variable("x", [2])
                self.step, self.keeper = tf.train.AdamOptimizer().minimize(self.x), tf.train.Saver()
                self.session = tf.Session()

            def save(self, path):
                return self.keeper.save(self.session, path)

            def fit(self):
                self.step.run(session=self.session)
                self.save("x")

        def use():
            model = Model()
            model.fit()
            model.session.close()
            return [model.x.eval() for _ in range(2)]
        """)
    assert made.functions == ["Model.save", "Model.fit", "use"]
    for line in (
        "return await self.keeper.save(self.session, path)",
        "await self.step.run(session=self.session)",
        'await self.save("x")',
        "await model.fit()",
        "await model.session.close()",
        "return [await model.x.eval() for _ in range(2)]",
    ):
        assert f" {line}\n" in made.source
    assert made.is_complete


def test_blocks_that_are_not_async_get_a_block_of_their_own() -> None:
    check(
        """\
        import tensorflow as tf

        def f():
            # Both at once.
            with tf.Graph().as_default() as g, tf.Session(graph=g) as sess:
                sess.run(tf.zeros([1]))
        """,
        """\
        import aioflow as tf

        async def f():
            # Both at once.
            with tf.Graph().as_default() as g:
                async with tf.Session(graph=g) as sess:
                    await sess.run(tf.zeros([1]))
        """,
    )


def test_hooks_servers_coordinators_and_supervisors() -> None:
    made = ported("""\
        import tensorflow as tf

        class Hook(tf.train.SessionRunHook):
            def after_create_session(self, session, coord):
                session.run(tf.zeros([1]))

        def main():
            server = tf.train.Server.create_local_server()
            with tf.train.MonitoredTrainingSession(master=server.target, hooks=[Hook()]) as sess:
                while not sess.should_stop():
                    sess.run(tf.zeros([1]))
            coord = tf.train.Coordinator()
            threads = tf.train.start_queue_runners(coord=coord)
            coord.request_stop()
            coord.join(threads)
            with tf.train.Supervisor(logdir="x").managed_session() as sess:
                sess.run(tf.zeros([1]))
            server.join()
        """)
    assert made.functions == ["Hook.after_create_session", "main"]
    assert made.source.count("await ") == 5
    assert made.source.count("async with ") == 2
    assert "    threads = tf.train" in made.source
    ((line, text),) = texts(made, "check")
    assert (line, text.partition(":")[0]) == (12, "tf.train.Coordinator starts tasks only in its block")
    assert texts(made, "note") == [(5, "session is taken for a Session because of its name")]


def test_coordinator_in_a_block_needs_no_change() -> None:
    made = ported("""\
        import tensorflow as tf

        def main():
            coord = tf.train.Coordinator()
            with coord:
                coord.join()
        """)
    assert "    async with coord:\n        await coord.join()\n" in made.source
    assert made.is_complete


def test_optional_parameters_are_followed() -> None:
    made = ported("""\
        import tensorflow as tf

        def store(sess, keeper=None, saver=None):
            keeper.save(sess, "x")
            saver.save(sess, "x")

        def main(other=None):
            with tf.Session() as sess:
                store(sess, tf.train.Saver())
            other.eval()
        """)
    assert "    await keeper.save(sess" in made.source
    assert "    await saver.save(sess" in made.source
    assert [line for line, _ in texts(made, "check")] == [10]
    assert [line for line, _ in texts(made, "note")] == [5]


def test_calls_of_other_objects_stay() -> None:
    check(
        """\
        import subprocess
        import threading
        import numpy as np
        import tensorflow as tf

        def f(path):
            subprocess.run(["ls"])
            thread = threading.Thread()
            thread.join()
            with open(path) as file:
                file.close()
            np.save(path, np.zeros(2))
            return ", ".join(["a"]), tf.zeros([1])
        """,
        """\
        import subprocess
        import threading
        import numpy as np
        import aioflow as tf

        def f(path):
            subprocess.run(["ls"])
            thread = threading.Thread()
            thread.join()
            with open(path) as file:
                file.close()
            np.save(path, np.zeros(2))
            return ", ".join(["a"]), tf.zeros([1])
        """,
    )


# ── the code of the module ───────────────────────────────────────────────────────────────────────────────────────────


def test_code_of_the_module_that_waits_becomes_main() -> None:
    check(
        '''\
        """Doc."""
        from __future__ import print_function

        import numpy as np
        import tensorflow as tf

        count = 0
        total = 0


        def add(n):
            global count
            count += n
            return total


        x = tf.zeros([2])

        # Run it.
        with tf.Session() as sess:
            total = sess.run(x)
            text = """a
          b"""
        count = count + 1
        print(text)  # done
        ''',
        '''\
        """Doc."""
        from __future__ import print_function

        import asyncio

        import numpy as np
        import aioflow as tf

        count = 0
        total = 0


        def add(n):
            global count
            count += n
            return total


        x = tf.zeros([2])


        async def main():
            global count, total
            # Run it.
            async with tf.Session() as sess:
                total = await sess.run(x)
                text = """a
          b"""
            count = count + 1
            print(text)  # done


        asyncio.run(main())
        ''',
    )


def test_code_under_name_is_main_becomes_a_coroutine() -> None:
    check(
        """\
        import tensorflow as tf

        def main(x):
            return x.eval(session=tf.Session())

        if __name__ == "__main__":
            x = tf.zeros([2])
            main(x)
            print(main(x))
        """,
        """\
        import asyncio

        import aioflow as tf

        async def main(x):
            return await x.eval(session=tf.Session())


        async def async_main():
            x = tf.zeros([2])
            await main(x)
            print(await main(x))


        if __name__ == "__main__":
            asyncio.run(async_main())
        """,
    )


def test_calls_without_effect_are_removed() -> None:
    check(
        """\
        import tensorflow.compat.v1 as tf

        tf.disable_v2_behavior()
        tf.enable_resource_variables(); x = tf.zeros([1])
        if x is None:
            tf.disable_eager_execution()
        """,
        """\
        import aioflow as tf

        x = tf.zeros([1])
        if x is None:
            pass
        """,
    )


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("f = lambda: sess.run(x)", "not possible in a lambda"),
        ("n = sum(sess.run(x) for _ in range(2))", "not possible in a generator expression"),
        ("class A:\n    n = sess.run(x)", "not possible in the body of a class"),
        ("class A:\n    def __init__(self):\n        sess.run(x)", "in A.__init__, which Python calls as __init__"),
        ("def f():\n    yield sess.run(x)", "in f, which is a generator"),
        (
            "import functools\n@functools.cache\ndef f():\n    sess.run(x)",
            "in f, which is decorated by functools.cache",
        ),
        ("def f():\n    sess.run(x)\nprint(map(f, [1]))", "f becomes a coroutine function, and is passed on here"),
        ("def f(it):\n    it.run(x)", "it.run(…): the kind of it is not known"),
        ("def f(unknown):\n    return unknown.eval()", "unknown.eval(…): the kind of unknown is not known"),
        (
            "import unittest\nclass A(unittest.TestCase):\n    def test(self):\n        sess.run(x)",
            "A.test becomes a coroutine function: does the base of A await it?",
        ),
    ],
)
def test_undecided_places_are_reported_with_their_line(code: str, says: str) -> None:
    made = ported(f"import tensorflow as tf\nx = tf.zeros([1])\nsess = tf.Session()\n{code}\n")
    found = texts(made, "check")
    assert len(found) == 1, made.findings
    assert says in found[0][1]
    lines = [i for i, line in enumerate(code.split("\n"), 4) if "x" in line or "eval" in line or "map" in line]
    assert found[0][0] in {*lines, 6}
    assert not made.is_complete


def test_missing_names_are_reported_with_place_and_replacement() -> None:
    made = ported("""\
        import tensorflow as tf
        x = tf.zeros([1]) + tf.estimator.Estimator(tf.zeros([1, 2]), 3)
        tape = tf.GradientTape()
        tf.not_there()
        sess = tf.InteractiveSession(config=tf.ConfigProto())
        print(x.eval())
        tf.zeros([1], typ=tf.float32)
        tf.train.Saver().savee(sess)
        """)
    found = {(f.line, f.column): f.text for f in made.findings if f.level == "missing"}
    assert found.keys() == {(2, 21), (3, 8), (4, 1), (7, 1), (8, 1)}
    assert "use aioflow.train.MonitoredTrainingSession" in found[2, 21]
    assert "use aioflow.gradients" in found[3, 8]
    assert "not in TensorFlow's public interface" in found[4, 1]
    assert found[7, 1] == "tf.zeros has no argument 'typ'"
    assert found[8, 1] == "tf.train.Saver.savee: Saver has no method 'savee'"
    assert "await x.eval()" in made.source, "an interactive session is one"


def test_programs_keep_their_flags_and_main_function() -> None:
    check(
        """\
        import tensorflow as tf
        FLAGS = tf.app.flags.FLAGS
        tf.flags.DEFINE_integer("steps", 3, "Steps.")
        def main(_):
            with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as sess:
                tf.logging.info("%s", sess.run(tf.zeros([FLAGS.steps])))
            with tf.gfile.GFile("log", "w") as file:
                file.write(str(tf.io.gfile.exists("log")))
        tf.app.run(main)
        """,
        """\
        import aioflow as tf
        FLAGS = tf.app.flags.FLAGS
        tf.flags.DEFINE_integer("steps", 3, "Steps.")
        async def main(_):
            async with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as sess:
                tf.logging.info("%s", await sess.run(tf.zeros([FLAGS.steps])))
            with tf.gfile.GFile("log", "w") as file:
                file.write(str(tf.io.gfile.exists("log")))
        tf.app.run(main)
        """,
    )


def test_replacements_are_of_missing_names_and_shown_in_errors() -> None:
    assert [name for name in INSTEAD if not is_tensorflows("", name) or name in af.__all__] == []
    with pytest.raises(AttributeError, match=r"'GradientTape' yet: use aioflow\.gradients.*; see docs"):
        _ = af.GradientTape  # type: ignore[attr-defined] # missing


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────

BEFORE = "import tensorflow as tf\nx = tf.zeros([1])  # é\n"
AFTER = "import aioflow as tf\nx = tf.zeros([1])  # é\n"


def test_port_goes_to_stdout_a_file_or_into_the_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, other = tmp_path / "before.py", tmp_path / "after.py"
    file.write_text(BEFORE, encoding="utf-8")
    assert main(["port", str(file)]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (AFTER, f"{file}: 0 calls awaited\n")
    assert main(["port", str(file), "--diff"]) == 0
    assert "-import tensorflow as tf\n+import aioflow as tf\n" in capsys.readouterr().out
    assert main(["port", str(file), "-o", str(other)]) == 0
    assert (file.read_text("utf-8"), other.read_text("utf-8")) == (BEFORE, AFTER)
    assert main(["port", str(file), "--in-place"]) == 0
    assert file.read_text("utf-8") == AFTER


def test_status_is_one_if_something_is_left_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "before.py"
    file.write_text("import tensorflow as tf\ntf.estimator.Estimator(1)\n")
    assert main(["port", str(file)]) == 1
    line, summary = capsys.readouterr().err.splitlines()
    assert line.startswith(f"{file}:2:1: missing: tf.estimator.Estimator: aioflow has no 'estimator' yet")
    assert summary == f"{file}: 0 calls awaited"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("x.py", "print 'two'\n", "x.py:1:1: not a program in Python 3: Missing parentheses"),
        ("x.ipynb", "{}", "nbconvert"),
        ("x.py", "# -*- coding: nonsense -*-\n", "not a text in its encoding"),
    ],
)
def test_other_files_are_answered_in_one_line(
    name: str, text: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["port", str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1


def test_missing_libcst_is_answered_with_the_extra(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text(BEFORE, encoding="utf-8")
    program = "import sys; sys.modules['libcst'] = None; from aioflow.cli import main; main(['port', sys.argv[1]])"
    command = [sys.executable, "-c", program, str(tmp_path / "x.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert "pip install 'aioflow-engine[port]'" in done.stderr
    assert done.stderr.count("\n") == 1


# ── well-known programs ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", MISSING)
def test_well_known_program_needs_nothing_but_its_missing_names(name: str) -> None:
    source = (PROGRAMS / f"{name}.txt").read_text("utf-8")
    made = ported(source)
    assert texts(made, "check") == []
    assert {text.partition(":")[0] for _, text in texts(made, "missing")} == MISSING[name]
    comments = [line for line in source.splitlines() if line.strip().startswith("#")]
    assert [line.strip() for line in comments] == [
        line.strip() for line in made.source.splitlines() if line.strip().startswith("#")
    ]


def written(name: str, folder: Path) -> str:
    """Write the port of a program into a folder, and return its path."""
    path = folder / f"{name}.py"
    path.write_text(port((PROGRAMS / f"{name}.txt").read_text("utf-8"), name).source, encoding="utf-8")
    return str(path)


def digits(folder: Path) -> str:
    """Write images of 8 × 8 points of ten classes, each with a bright column or row of its own."""
    labels = np.arange(300) % 10
    images = np.random.default_rng(0).uniform(0, 0.1, (300, 8, 8)).astype(np.float32)
    for image, label in zip(images, labels, strict=True):
        image[label % 5 + 1, :] += label < 5
        image[:, label % 5 + 1] += label >= 5
    np.savez(folder / "digits.npz", images=images.reshape(300, 64), labels=labels)
    return str(folder / "digits.npz")


def run(path: str, arguments: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a ported program in this process."""
    monkeypatch.setattr(sys, "argv", [path, *arguments])
    with af.Graph().as_default():
        runpy.run_path(path, run_name="__main__")


def test_ported_softmax_regression_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run(written("softmax_regression", tmp_path), [digits(tmp_path), "30"], monkeypatch)
    assert capsys.readouterr().out == "accuracy above 0.5: True\n"


def test_ported_convolutional_network_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written("convolutional_digits", tmp_path)
    run(path, ["--data", digits(tmp_path), "--logdir", str(tmp_path / "log"), "--steps", "3"], monkeypatch)
    assert capsys.readouterr().out.splitlines() == [
        "step 0, training accuracy known: True",
        "step 2, training accuracy known: True",
        "saved: model-3",
        "test accuracy known: True",
    ]
    assert len(list((tmp_path / "log" / "train").iterdir())) == 1


def test_ported_distributed_trainer_runs(tmp_path: Path) -> None:
    with socket.socket() as first, socket.socket() as second:
        addresses: list[Any] = []
        for probe in (first, second):
            probe.bind(("127.0.0.1", 0))
            addresses.append(f"127.0.0.1:{probe.getsockname()[1]}")
    command = [written("distributed_trainer", tmp_path), "--ps_hosts", addresses[0], "--worker_hosts", addresses[1]]
    with (
        processes.program(*command, "--job_name", "ps"),
        processes.program(*command, "--job_name", "worker", "--steps", "50") as worker,
    ):
        out, _ = worker.communicate(timeout=processes.SECONDS)
    assert out.splitlines() == ["first weight: (1,)", "steps: True", "weight near 3: True"]
