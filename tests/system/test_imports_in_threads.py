"""Tests that threads which import modules and threads which look up names never deadlock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

# One thread is inside a module, at a block that forks wait for, when another requests a name of that module.
_NAMES = """
import sys, threading, time
import aioflow as af

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "aioflow.protos.messages" and not threads:
            threads.append(threading.Thread(target=lambda: names.append(af.Summary.DESCRIPTOR.name)))
            threads[0].start()
            time.sleep(0.3)  # it waits for this thread's module by now

threads, names = [], []
sys.meta_path.insert(0, Finder())
import aioflow.protos.classes
threads[0].join()
print(names, aioflow.protos.classes.Summary is af.Summary)
"""

_FIRST = """
def register():
    comes.set()
"""

_PACKAGE = """
import threading, time
from aioflow.extend import kernel

began.set()
comes.wait()
time.sleep(0.3)  # the other thread waits for this module by now

@kernel("Relu", device="CPU", priority=1000)
def relu(features):
    return features + 100

def register():
    pass
"""

# One thread imports a package of kernels while the first session of another thread loads all installed packages.
_KERNELS = """
import builtins, sys, threading
import aioflow as af

def run():
    with af.Graph().as_default():
        af.Session().run_sync(af.constant(1.0))

def imports():
    import my_kernels

builtins.began, builtins.comes = threading.Event(), threading.Event()
threads = [threading.Thread(target=imports), threading.Thread(target=run)]
threads[0].start()
began.wait()
threads[1].start()
for thread in threads:
    thread.join()
with af.Graph().as_default():
    print(af.Session().run_sync(af.nn.relu(af.constant(1.0))))
"""

_POOLS = """
import sys, threading
from aioflow.protos import messages

sys.setswitchinterval(1e-6)
found, together = [], threading.Barrier(8)

def ask():
    together.wait()
    found.append(messages.pool())

threads = [threading.Thread(target=ask) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(found), len(set(map(id, found))))
"""


def _output(program: str, *folders: Path) -> str:
    path = f"import sys; sys.path[:0] = {list(map(str, folders))}\n"
    ran = subprocess.run(
        [sys.executable, "-c", path + program], capture_output=True, check=False, text=True, timeout=60
    )
    assert not ran.stderr
    return ran.stdout


def test_name_is_found_while_another_thread_imports_its_module() -> None:
    assert _output(_NAMES) == "['Summary'] True\n"


def test_kernel_package_may_be_imported_while_the_first_session_starts(tmp_path: Path) -> None:
    (tmp_path / "my_first.py").write_text(_FIRST)
    (tmp_path / "my_kernels.py").write_text(_PACKAGE)
    declared = tmp_path / "my_kernels-1.dist-info"
    declared.mkdir()
    (declared / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kernels\nVersion: 1\n")
    (declared / "entry_points.txt").write_text(
        "[aioflow.kernels]\nfirst = my_first:register\nmine = my_kernels:register\n"
    )
    assert _output(_KERNELS, tmp_path) == "101.0\n"


def test_concurrent_first_calls_share_one_message_pool() -> None:
    assert _output(_POOLS) == "8 1\n"


_THREADS = """
import threading, time
from aioflow.protos import declaring
from aioflow.serve.grpc.messages import message

declare, pools, start = declaring.declare, set(), threading.Barrier(3)
def slowly(*given):
    time.sleep(0.2)  # the other threads have asked by now
    return declare(*given)
def ask(name):
    start.wait()
    pools.add(message(name).DESCRIPTOR.file.pool)

declaring.declare = slowly
threads = [threading.Thread(target=ask, args=(f"Server{name}Response",)) for name in ("Live", "Ready", "Metadata")]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len(pools))
"""


def test_concurrent_first_uses_of_grpc_messages_share_one_pool() -> None:
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, check=False, timeout=120)
    assert (done.stdout, done.stderr) == ("1\n", "")
