"""Settings of a `ConfigProto`, with those of the `SessionConfig` that it denotes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple


class ConfigCase(NamedTuple):
    """A message.

    Attributes:
        fill: Sets fields of the message, given the module with the message classes.
        settings: Settings of a `SessionConfig` with the same effect.
        ignored: Fields without a counterpart, in the order of their numbers.
    """

    fill: Callable[[Any, Any], None]
    settings: Mapping[str, Any] = {}
    ignored: tuple[str, ...] = ()


def _fields(**values: Any) -> Callable[[Any, Any], None]:
    def fill(config: Any, module: Any) -> None:
        config.MergeFrom(module.ConfigProto(**values))

    return fill


def _nested(path: str, value: Any) -> Callable[[Any, Any], None]:
    def fill(config: Any, module: Any) -> None:
        *outer, name = path.split(".")
        for part in outer:
            config = getattr(config, part)
        setattr(config, name, value)

    return fill


def _options(config: Any, module: Any) -> None:
    config.gpu_options.CopyFrom(module.GPUOptions(allow_growth=True, visible_device_list="0"))
    config.session_inter_op_thread_pool.add(num_threads=2)
    config.cluster_def.job.add(name="worker").tasks[0] = "localhost:2222"


CONFIGS: Final[dict[str, ConfigCase]] = {
    "empty": ConfigCase(_fields()),
    "placement": ConfigCase(
        _fields(allow_soft_placement=True, log_device_placement=True, device_count={"CPU": 2, "GPU": 0}),
        {"allow_soft_placement": True, "log_device_placement": True, "device_count": {"CPU": 2, "GPU": 0}},
    ),
    "threads within a node": ConfigCase(_fields(intra_op_parallelism_threads=4), {"threads": 4}),
    "threads of both kinds": ConfigCase(
        _fields(intra_op_parallelism_threads=2, inter_op_parallelism_threads=3), {"threads": 3}
    ),
    "nodes in the calling thread": ConfigCase(_fields(inter_op_parallelism_threads=-1), {"threads": 1}),
    "time limit": ConfigCase(_fields(operation_timeout_in_ms=2500), {"operation_timeout": 2.5}),
    "time limit of zero": ConfigCase(_fields(operation_timeout_in_ms=0)),
    "no optimization": ConfigCase(_nested("graph_options.optimizer_options.opt_level", -1), {"optimizations": False}),
    "default optimization": ConfigCase(_nested("graph_options.optimizer_options.opt_level", 0)),
    "no graph optimizer": ConfigCase(
        _nested("graph_options.rewrite_options.disable_meta_optimizer", True), {"optimizations": False}
    ),
    "no folding": ConfigCase(
        _nested("graph_options.rewrite_options.constant_folding", 2), {"optimizations": {"constant_folding": False}}
    ),
    "mixed precision": ConfigCase(
        _nested("graph_options.rewrite_options.auto_mixed_precision", 1),
        {"optimizations": {"auto_mixed_precision": True}},
    ),
    "compression": ConfigCase(_nested("graph_options.enable_bfloat16_sendrecv", True), {"compression": "bfloat16"}),
    "what aioflow does anyway": ConfigCase(_fields(isolate_session_state=True)),
    "ignored fields": ConfigCase(
        _fields(device_filters=["/job:ps"], use_per_session_threads=True, intra_op_parallelism_threads=1),
        {"threads": 1},
        ("device_filters", "use_per_session_threads"),
    ),
    "ignored fields of messages": ConfigCase(
        _options, {}, ("gpu_options.visible_device_list", "session_inter_op_thread_pool", "cluster_def")
    ),
    "compilation": ConfigCase(
        _nested("graph_options.optimizer_options.global_jit_level", 1),
        {},
        ("graph_options.optimizer_options.global_jit_level",),
    ),
}
