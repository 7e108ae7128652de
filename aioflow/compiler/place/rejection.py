"""The error for nodes that no device can run, with the reason for every device and the users' source lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from aioflow.compiler.ir import Node
from aioflow.compiler.place.cluster import ClusterView
from aioflow.errors import InternalError, InvalidArgumentError, OpError, UnimplementedError
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.dtypes import DType
from aioflow.graph.opdef import traits_of
from aioflow.kernels.registry import KERNELS

_LISTED: Final = 8  # members, or tasks, that an error names
_ALONE: Final = "/job:localhost/task:0"  # a session without a cluster


def rejection(members: Sequence[Node], wanted: Mapping[str, DeviceSpec], cluster: ClusterView) -> OpError:
    """Return the error that states why no device of the cluster fits all `members`, which must share one.

    Args:
        members: The nodes of the group.
        wanted: The effective requests of members, by name.
        cluster: The devices that the plan may use.

    Returns:
        An UnimplementedError if a device matches the requests but lacks a kernel, otherwise an InvalidArgumentError.

    Raises:
        InternalError: a device fits all members.
    """
    reasons: list[str] = []
    lacking: tuple[Node, str] | None = None
    homebound = next((m for m in members if traits_of(m.op).stays_home), None)
    for name in _offered(cluster, homebound):
        spec = DeviceSpec.from_string(name)
        asking = next((m for m in members if m.name in wanted and not wanted[m.name].matches(spec)), None)
        if asking is not None:
            who = f"{name} (this program, with its Python functions)" if name == cluster.own else name
            reasons.append(f"  {who}: node {asking.name!r} asks for {wanted[asking.name]}{_line(asking)}")
            continue
        if homebound is not None and cluster.home is not None and name not in cluster.home:
            reasons.append(
                f"  {name}: node {homebound.name!r} {traits_of(homebound.op).stays_home}, and that task is in another "
                f"process{_line(homebound)}"
            )
            continue
        device_type = spec.device_type or ""
        missing = next((m for m in members if not _runs(m, device_type)), None)
        if missing is None:
            raise InternalError(f"{_subject(members)}, although all have kernels for {name}")
        lacking = lacking or (missing, device_type)
        reasons.append(
            f"  {name}: no kernel of op {missing.op} for {device_type}{_types(missing)}"
            f" (node {missing.name!r}{_line(missing, ', ')})"
        )
    text = "\n".join([_subject(members), *reasons, *_together(members, wanted)])
    if lacking is not None:
        return _unimplemented(text, *lacking)
    asking = next((m for m in members if m.name in wanted), members[0])
    return _refused(text, asking, wanted.get(asking.name), cluster)


def conflict(
    members: Sequence[Node], wanted: Mapping[str, DeviceSpec], pair: tuple[Node, Node], cluster: ClusterView
) -> OpError:
    """Return the error for two of `members` whose device requests exclude each other."""
    one, other = pair
    clash = wanted[one.name].conflict(wanted[other.name])
    header = (
        f"nodes {one.name!r} and {other.name!r} must be together and ask for different devices: "
        f"{wanted[one.name]} and {wanted[other.name]}"
    )
    reasons = []
    for name in _offered(cluster):
        spec = DeviceSpec.from_string(name)
        # The two requests exclude each other, so no device matches both.
        node = next(m for m in (one, other) if not wanted[m.name].matches(spec))
        reasons.append(f"  {name}: node {node.name!r} asks for {wanted[node.name]}{_line(node)}")
    text = "\n".join([header, *reasons, *_together(members, wanted)])
    soft = clash in ("device_type", "device_index")
    return _refused(text, other, wanted[other.name], cluster, soft_helps=soft)


def _refused(
    text: str, node: Node, wanted: DeviceSpec | None, cluster: ClusterView, soft_helps: bool = True
) -> OpError:
    asked = wanted or DeviceSpec.from_string(node.device)
    return InvalidArgumentError(text, expected=_possible(asked, cluster, soft_helps), actual=str(asked)).at(
        node.name, node.op, node.source
    )


def _offered(cluster: ClusterView, homebound: Node | None = None) -> list[str]:
    """Return the devices that can be requested. The client's own is listed only for nodes bound to its process."""
    return [name for name in cluster.devices if homebound or name != cluster.own] or list(cluster.devices)


def _possible(asked: DeviceSpec, cluster: ClusterView, soft_helps: bool) -> str:
    """Return the alternatives to a request, for an error that has already listed the devices."""
    specs = [DeviceSpec.from_string(name) for name in _offered(cluster)]
    if not any(DeviceSpec(asked.job, asked.replica, asked.task).matches(spec) for spec in specs):
        tasks = list(dict.fromkeys(f"/job:{spec.job}/task:{spec.task}" for spec in specs))
        if tasks == [_ALONE]:
            return f"a device of {_ALONE}; the tasks of a cluster are those of a Session('aioflow://HOST:PORT')"
        more = f" and {len(tasks) - _LISTED} more" if len(tasks) > _LISTED else ""
        return f"a task of the cluster: {', '.join(tasks[:_LISTED])}{more}"
    way_out = ", or SessionConfig(allow_soft_placement=True)" if soft_helps and not cluster.allow_soft_placement else ""
    return f"one of these devices{way_out}"


def _unimplemented(text: str, node: Node, device_type: str) -> OpError:
    """Return the error for a missing kernel, with the kernels that the registry lists."""
    # The registry's own error lists the kernels of the op: reuse its details.
    try:
        KERNELS.get(node.op, device_type, node.attrs)
    except UnimplementedError as error:
        return UnimplementedError(text, expected=error.expected, actual=error.actual).at(
            node.name, node.op, node.source
        )
    return UnimplementedError(text).at(node.name, node.op, node.source)


def _runs(node: Node, device_type: str) -> bool:
    return traits_of(node.op).is_control_flow or KERNELS.find(node.op, device_type, node.attrs) is not None


def _subject(members: Sequence[Node]) -> str:
    first = repr(members[0].name)
    if len(members) == 1:
        return f"cannot assign a device for operation {first}"
    return f"cannot assign a device for {len(members)} operations that must be together, {first} and others"


def _together(members: Sequence[Node], wanted: Mapping[str, DeviceSpec]) -> list[str]:
    if len(members) == 1:
        return []
    # Members with a request first: those are the ones that the user can change.
    listed = sorted(members, key=lambda m: m.name not in wanted)[:_LISTED]
    lines = ["  together:"]
    for node in listed:
        asks = f" asks for {wanted[node.name]}" if node.name in wanted else ""
        lines.append(f"    {node.name!r} (op {node.op}){asks}{_line(node)}")
    if len(members) > _LISTED:
        lines.append(f"    and {len(members) - _LISTED} more")
    return lines


def _types(node: Node) -> str:
    types = ", ".join(f"{name}={value.name}" for name, value in node.attrs.items() if isinstance(value, DType))
    return f" with {types}" if types else ""


def _line(node: Node, before: str = " (") -> str:
    if node.source is None:
        return ""
    return f"{before}{node.source})" if before == " (" else f"{before}{node.source}"
