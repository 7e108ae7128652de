"""Translation of TensorFlow's `ConfigProto` into `SessionConfig`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from aioflow.arguments import wrong_kind
from aioflow.config import SessionConfig, log_ignored
from aioflow.protos.messages import Message, is_message

_EXPECTED: Final = "an aioflow.SessionConfig or ConfigProto: Session(config=aioflow.SessionConfig(threads=2))"


def session_config(config: SessionConfig | Message | None) -> SessionConfig:
    """Return the settings that a `ConfigProto` denotes; `config` itself if it is a `SessionConfig`.

    The message may be TensorFlow's own. Fields without a counterpart are logged, each once for the process.

    Raises:
        DTypeError: it is neither.
        InvalidArgumentError: a field has an invalid value.
    """
    if config is None:
        return SessionConfig()
    if isinstance(config, SessionConfig):
        return config
    if not is_message(config, "ConfigProto"):
        raise wrong_kind(config, "the settings of a session", _EXPECTED)
    for name in _without_counterpart(config):
        log_ignored(f"ConfigProto.{name}", _INSTEAD.get(name, _NOTHING))
    graph = config.graph_options
    return SessionConfig(
        allow_soft_placement=config.allow_soft_placement,
        log_device_placement=config.log_device_placement,
        device_count=dict(config.device_count),
        threads=_threads(config),
        operation_timeout=config.operation_timeout_in_ms / 1000 if config.operation_timeout_in_ms > 0 else None,
        optimizations=_optimizations(graph),
        compression="bfloat16" if graph.enable_bfloat16_sendrecv else None,
    )


def _threads(config: Message) -> int:
    """Return the larger of the two thread counts: one pool runs nodes and divides kernels."""
    within, between = int(config.intra_op_parallelism_threads), int(config.inter_op_parallelism_threads)
    # Less than zero means that the calling thread runs all nodes.
    return max(within, 1 if between < 0 else between)


def _optimizations(graph: Message) -> bool | Mapping[str, bool]:
    rewriting = graph.rewrite_options
    if graph.optimizer_options.opt_level < 0 or rewriting.disable_meta_optimizer:
        return False
    switched = {
        own: getattr(rewriting, name) != _OFF
        for name, own in _PASSES.items()
        if getattr(rewriting, name) in (_ON, _OFF)
    }
    return switched or True


# ── fields without a counterpart ──────────────────────────────────────────────────────────────────────────────────────


_NOTHING: Final = "aioflow has no counterpart"
_ON: Final = 1
_OFF: Final = 2

# The passes of TensorFlow's graph optimizer, each with the switch in `SessionConfig.optimizations`.
_PASSES: Final[Mapping[str, str]] = {
    "arithmetic_optimization": "arithmetic",
    "auto_mixed_precision": "auto_mixed_precision",
    "auto_mixed_precision_onednn_bfloat16": "auto_mixed_precision_bfloat16",
    "common_subgraph_elimination": "common_subexpressions",
    "constant_folding": "constant_folding",
    "remapping": "fuse_bias",
    "shape_optimization": "shapes",
}

# Fields that have an effect, or ask for what aioflow does anyway.
_USED: Final = frozenset(
    (
        *("allow_soft_placement", "device_count", "inter_op_parallelism_threads", "intra_op_parallelism_threads"),
        *("log_device_placement", "operation_timeout_in_ms", "isolate_session_state"),
        *("gpu_options.allow_growth", "graph_options.build_cost_model", "graph_options.enable_bfloat16_sendrecv"),
        *("graph_options.enable_recv_scheduling", "graph_options.infer_shapes", "graph_options.place_pruned_graph"),
        *(f"graph_options.optimizer_options.{name}" for name in ("opt_level", "do_function_inlining")),
        *("graph_options.optimizer_options.do_common_subexpression_elimination",),
        *("graph_options.optimizer_options.do_constant_folding",),
        *(f"graph_options.rewrite_options.{name}" for name in ("disable_meta_optimizer", *_PASSES)),
    )
)

# Replacements of other fields.
_INSTEAD: Final[Mapping[str, str]] = {
    "cluster_def": "the cluster is that of the server; give train.Server a ClusterSpec",
    "device_filters": "a session uses all tasks of its cluster; start a smaller one",
    "gpu_options.per_process_gpu_memory_fraction": "memory is allocated as needed",
    "gpu_options.visible_device_list": 'set the environment variable CUDA_VISIBLE_DEVICES, or device_count={"GPU": n}',
    "graph_options.optimizer_options.cpu_global_jit": "chains of ops are compiled anyway",
    "graph_options.optimizer_options.global_jit_level": "chains of ops are compiled anyway",
    "graph_options.timeline_step": "use RunOptions(trace_level=RunOptions.FULL_TRACE)",
    "placement_period": "use SessionConfig.replace_after",
    "rpc_options": "use CommOptions of train.Server",
    "session_inter_op_thread_pool": "use SessionConfig.threads",
    "use_per_session_threads": "sessions with equal SessionConfig.threads share their threads",
}


def _without_counterpart(message: Message, prefix: str = "") -> Iterator[str]:
    """Yield the fields that are set and neither used nor asking for what happens anyway."""
    fields: Any = message.ListFields()
    for field, value in fields:
        name = prefix + field.name
        if name in _USED:
            continue
        if field.name in _NESTED and name not in _INSTEAD:
            yield from _without_counterpart(value, f"{name}.")
        else:
            yield name


_NESTED: Final = ("gpu_options", "graph_options", "optimizer_options", "rewrite_options", "experimental")
