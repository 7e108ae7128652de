"""Placement constraints: groups of nodes that share a device, each with the devices that fit all members.

Device requests and kernels of each node are bit masks over the cluster's devices; a group's mask is their intersection
(TensorFlow whitepaper, 4.3). Only if that is empty, the requests themselves are examined: one request may yield, soft
placement may drop one, or the error states why each device was rejected.

Control flow nodes have no kernels and run anywhere. Their device requests count only if they are in a group of their
own: a Switch goes to its data, whatever it requests.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from aioflow.compiler.ir import ClientGraph, Node
from aioflow.compiler.place.cluster import ClusterView
from aioflow.compiler.place.colocation import (
    DisjointSets,
    followers,
    joined_by_handles,
    joined_by_name,
    makes_handle,
    preferred,
    takes_handle,
)
from aioflow.compiler.place.rejection import conflict, rejection
from aioflow.graph.boundary import BOUNDARY
from aioflow.graph.device_spec import DeviceSpec
from aioflow.graph.opdef import traits_of
from aioflow.graph.traits import Role
from aioflow.kernels.registry import KERNELS, read_by_kernels

_TYPE_ORDER: Final[Mapping[str, int]] = {"GPU": 0, "CPU": 2}  # other types rank between them
_TASK: Final = ("job", "replica", "task")
# The parts of a request that soft placement leaves open if members disagree about the key.
_SOFT: Final = {"device_type": ("device_type", "device_index"), "device_index": ("device_index",)}

# The devices that have a kernel for a node, and the kernel's priority on each device type (None if the node needs no
# kernel).
Offer: TypeAlias = tuple[int, tuple[int, ...] | None]


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes that share a device, and the devices that they may use, preferred ones first.

    Attributes:
        members: Names of the nodes.
        devices: Full names of the devices.
    """

    members: tuple[str, ...]
    devices: tuple[str, ...]


class Offers:
    """The devices of a cluster that can run a node, cached by op and request for one placement."""

    def __init__(self, cluster: ClusterView) -> None:
        self.cluster = cluster
        self.specs = [DeviceSpec.from_string(name) for name in cluster.devices]
        self.everywhere = (1 << len(self.specs)) - 1
        self.anything: Offer = (self.everywhere, None)
        self._home = self._mask(cluster.home is None or name in cluster.home for name in cluster.devices)
        self._own = self._mask(name == cluster.own for name in cluster.devices)
        self._on_request = self._mask(name in cluster.on_request for name in cluster.devices)
        self.files = self._mask(cluster.files is None or name in cluster.files for name in cluster.devices)
        tasks = [(spec.job, spec.replica, spec.task) for spec in self.specs]
        self.target_files = self.files & self._mask(task == tasks[0] for task in tasks)
        self._types = list(dict.fromkeys(spec.device_type or "" for spec in self.specs))
        self._of_type = [self._mask(spec.device_type == kind for spec in self.specs) for kind in self._types]
        self._requests: dict[str, int] = {"": self.everywhere}
        self._kernels: dict[Hashable, Offer] = {}
        self._orders: dict[Offer, tuple[str, ...]] = {}

    def elsewhere(self, mask: int) -> int:
        """Return the devices without the client's own, unless it is the only one."""
        return mask & ~self._own or mask

    def unasked(self, mask: int) -> int:
        """Return the devices that a group may get without a request, or all of `mask` if none of them remains."""
        mask = self.elsewhere(mask)
        return mask & ~self._on_request or mask

    def request(self, device: str) -> int:
        """Return the devices that match a request."""
        found = self._requests.get(device)
        if found is None:
            found = self._requests[device] = self.matching(DeviceSpec.from_string(device))
        return found

    def matching(self, wanted: DeviceSpec) -> int:
        """Return the devices that match a parsed request."""
        return self._mask(wanted.matches(spec) for spec in self.specs)

    def kernels(self, node: Node) -> Offer:
        """Return the devices with a kernel for the node."""
        if traits_of(node.op).is_control_flow or node.op in BOUNDARY:
            return self.anything
        key = (node.op, read_by_kernels(node.attrs))
        found = self._kernels.get(key)
        if found is None:
            found = self._kernels[key] = self._find(node)
        return found

    def order(self, offer: Offer) -> tuple[str, ...]:
        """Return the devices of an offer by kernel priority, then GPUs before CPUs, then in the cluster's order.

        Without kernels, only the cluster's order counts.
        """
        names = self._orders.get(offer)
        if names is None:
            mask, priorities = offer
            possible = [i for i in range(len(self.specs)) if mask >> i & 1]
            if priorities is not None:
                ranks = [(-p, _TYPE_ORDER.get(kind, 1)) for p, kind in zip(priorities, self._types, strict=True)]
                possible.sort(key=lambda i: ranks[self._types.index(self.specs[i].device_type or "")])
            names = self._orders[offer] = tuple(self.cluster.devices[i] for i in possible)
        return names

    def _find(self, node: Node) -> Offer:
        found = [KERNELS.find(node.op, kind, node.attrs) for kind in self._types]
        mask = sum(bits for bits, kernel in zip(self._of_type, found, strict=True) if kernel is not None)
        if traits_of(node.op).stays_home:
            mask &= self._home
        return mask, tuple(0 if kernel is None else kernel.priority for kernel in found)

    @staticmethod
    def _mask(fits: Iterable[bool]) -> int:
        return sum(1 << i for i, fit in enumerate(fits) if fit)


def feasible_groups(graph: ClientGraph, cluster: ClusterView) -> list[Group]:
    """Return the groups of the graph in the order of their first members. Every node is in one group.

    Raises:
        InvalidArgumentError: no device matches the requests of a group.
        UnimplementedError: no device has all kernels of a group.
    """
    return _Constraints(graph, Offers(cluster)).groups()


class _Constraints:
    """The constraints of one graph on one cluster.

    Attributes:
        graph: The graph to place.
        offers: The devices that can run a node.
        nodes: The nodes, by position.
        positions: The positions of the nodes, by name.
        sets: The groups, as sets of positions.
        masks: For the representative of a group: the devices that fit it.
        priorities: For the representative of a group: the kernels' priorities; None for a group without kernels.
        homes: For the representative of a group: the devices of its existing resources.
        wishes: Control flow nodes with a device request, and the requested devices.
    """

    def __init__(self, graph: ClientGraph, offers: Offers) -> None:
        self.graph = graph
        self.offers = offers
        self.nodes = list(graph.nodes.values())
        self.positions = {name: i for i, name in enumerate(graph.nodes)}
        self.sets = DisjointSets(len(self.nodes))
        self.masks: list[int] = []
        self.priorities: list[tuple[int, ...] | None] = []
        self.homes: dict[int, int] = {}
        self.wishes: list[tuple[int, int]] = []

    def groups(self) -> list[Group]:
        self._read_nodes()
        for one, other in joined_by_handles(self.graph, self.positions):
            self._unite(one, other)
        # After the handles, because `_would_part` compares the resources of whole groups.
        for one, other in joined_by_name(self.graph, self.positions):
            if not self._would_part(one, other):
                self._unite(one, other)
        self._resolve_empty()
        self._go_to_files()
        # Preferences come after all constraints, so that they cannot make a group infeasible.
        for one, other in preferred(self.graph, self.positions):
            self._unite_if_possible(one, other)
        self._grant_wishes()
        self._follow()
        members: dict[int, list[str]] = {}
        for i, node in enumerate(self.nodes):
            members.setdefault(self.sets.find(i), []).append(node.name)
        order, unasked = self.offers.order, self.offers.unasked
        return [
            Group(tuple(names), order((unasked(self.masks[i]), self.priorities[i]))) for i, names in members.items()
        ]

    def _read_nodes(self) -> None:
        offers = self.offers
        for i, node in enumerate(self.nodes):
            mask, priorities = offers.kernels(node)
            if node.device and node.op not in BOUNDARY:
                if traits_of(node.op).is_control_flow:
                    self.wishes.append((i, self._wish(node)))
                else:
                    mask &= offers.request(node.device)
            # Nodes with kernels leave the client's own device to those that can run nowhere else.
            self.masks.append(mask if priorities is None else offers.elsewhere(mask))
            self.priorities.append(priorities)
            if _keeps_state(self.graph, node, offers.cluster):
                self.homes[i] = offers.request(node.device)

    def _unite(self, one: int, other: int) -> None:
        a, b = self.sets.find(one), self.sets.find(other)
        if a == b:
            return
        kept = self.sets.union(a, b)
        self.masks[kept] = self.masks[a] & self.masks[b]
        homes = [self.homes[root] for root in (a, b) if root in self.homes]
        if homes:
            # `homes` has one or two masks.
            self.homes[kept] = homes[0] & homes[-1]
        pa, pb = self.priorities[a], self.priorities[b]
        if pa is None or pb is None or pa == pb:
            self.priorities[kept] = pb if pa is None else pa
        else:
            self.priorities[kept] = (0,) * len(pa)  # as in TensorFlow: if members disagree, no priority counts

    def _would_part(self, one: int, other: int) -> bool:
        """Return whether soft placement keeps two groups apart.

        That is so if each has an existing resource, and these are on different devices.
        """
        # -1 has all bits set: a group without a resource fits any device.
        first, second = (self.homes.get(self.sets.find(member), -1) for member in (one, other))
        return self.offers.cluster.allow_soft_placement and not first & second

    def _unite_if_possible(self, one: int, other: int) -> None:
        if self.masks[self.sets.find(one)] & self.masks[self.sets.find(other)]:
            self._unite(one, other)

    def _resolve_empty(self) -> None:
        """Resolve the groups whose mask is empty."""
        empty: dict[int, list[Node]] = {}
        for i, node in enumerate(self.nodes):
            root = self.sets.find(i)
            if not self.masks[root] and node.op not in BOUNDARY:
                empty.setdefault(root, []).append(node)
        for root, members in empty.items():
            self.masks[root] = _relaxed(members, self.graph, self.offers)

    def _go_to_files(self) -> None:
        """Restrict groups that open files to tasks with file access, preferably to the session's target.

        A program's paths mean files of the target. A group that can go to none of these tasks fails when it runs.
        """
        offers = self.offers
        if offers.cluster.files is None:
            return
        for i, node in enumerate(self.nodes):
            if any(kernel.opens_files for kernel in KERNELS.for_op(node.op)):
                root = self.sets.find(i)
                mask = self.masks[root]
                self.masks[root] = mask & offers.target_files or mask & offers.files or mask

    def _wish(self, node: Node) -> int:
        """Return the devices that a control flow node requests."""
        spec = DeviceSpec.from_string(node.device)
        found = self.offers.request(node.device)
        if not found and self.offers.cluster.allow_soft_placement:
            found = self.offers.matching(_softened(spec))
        if not found:
            raise rejection([node], {node.name: spec}, self.offers.cluster)
        return found

    def _grant_wishes(self) -> None:
        """Grant device requests of control flow nodes if their group has no kernels; requests of Merges come first."""
        for i, wish in sorted(self.wishes, key=lambda wish: self.nodes[wish[0]].role is not Role.MERGE):
            root = self.sets.find(i)
            wanted = self.masks[root] & wish
            if wanted and self.priorities[root] is None:
                self.masks[root] = wanted

    def _follow(self) -> None:
        readers: dict[str, list[int]] = {n.name: [] for n in self.nodes if n.role in (Role.FEED, Role.CONSTANT)}
        for i, node in enumerate(self.nodes):
            for edge in node.inputs:
                if edge.node in readers:
                    readers[edge.node].append(i)
        for i, leaders in followers(self.graph, self.positions, readers):
            roots = {self.sets.find(leader) for leader in leaders}
            if len(roots) == 1:
                (root,) = roots
                # A follower that cannot run on all of the leader's devices must not restrict them.
                if not self.masks[root] & ~self.masks[self.sets.find(i)]:
                    mask, priorities = self.masks[root], self.priorities[root]
                    kept = self.sets.union(i, root)
                    self.masks[kept], self.priorities[kept] = mask, priorities


def _relaxed(members: Sequence[Node], graph: ClientGraph, offers: Offers) -> int:
    """Return the devices for a group whose mask is empty.

    Args:
        members: The nodes of the group.
        graph: The graph that contains them.
        offers: The devices that can run a node.

    Raises:
        InvalidArgumentError, UnimplementedError: no device fits.
    """
    cluster = offers.cluster
    merged, wanted = _merge(members, graph, cluster)
    kernels = offers.everywhere
    for node in members:
        kernels &= offers.kernels(node)[0]
    mask = offers.elsewhere(offers.matching(merged) & kernels)
    if not mask and cluster.allow_soft_placement and not any(_keeps_state(graph, n, cluster) for n in members):
        mask = offers.elsewhere(offers.matching(_softened(merged)) & kernels)
        wanted = {name: _softened(spec) for name, spec in wanted.items()}
    if not mask:
        raise rejection(members, wanted, cluster)
    return mask


def _merge(
    members: Sequence[Node], graph: ClientGraph, cluster: ClusterView
) -> tuple[DeviceSpec, dict[str, DeviceSpec]]:
    """Return the request of a group as a whole, and the effective request of each member.

    Nodes that make handles come first, and a node that uses a handle yields to them, as in TensorFlow. If members
    disagree about type or index, soft placement leaves that part open; about job, replica and task they must agree. An
    existing resource stays on its device: under soft placement other members yield to it, and so do members that were
    only placed there by an earlier step.

    Raises:
        InvalidArgumentError: members request different devices.
    """
    asking = [n for n in members if n.device and not traits_of(n.op).is_control_flow]
    # Existing resources come first, so that later requests yield to them.
    makers = sorted((n for n in asking if makes_handle(graph, n)), key=lambda n: n.name not in cluster.pins)
    existing = [n for n in makers if _keeps_state(graph, n, cluster)]
    merged = DeviceSpec()
    wanted: dict[str, DeviceSpec] = {}
    opened: dict[str, None] = {}  # the parts that soft placement has left open
    for node in [*makers, *(n for n in asking if n not in makers)]:
        spec = DeviceSpec.from_string(node.device).replace(**opened)
        if takes_handle(graph, node) and any(wanted[m.name].conflict(spec) for m in makers if m.name in wanted):
            continue
        yields = cluster.allow_soft_placement or node.name in cluster.pins
        if existing and node not in existing and yields and merged.conflict(spec) is not None:
            continue
        while (clash := merged.conflict(spec)) is not None:
            if clash in _TASK or existing or not cluster.allow_soft_placement:
                wanted[node.name] = spec
                other = next(n for n in asking if n.name in wanted and wanted[n.name].conflict(spec))
                raise conflict(members, wanted, (other, node), cluster)
            opened |= dict.fromkeys(_SOFT[clash])
            merged, spec = merged.replace(**opened), spec.replace(**opened)
        merged = merged.override(spec)
        wanted[node.name] = spec
    return merged, {name: spec.replace(**opened) for name, spec in wanted.items()}


def _keeps_state(graph: ClientGraph, node: Node, cluster: ClusterView) -> bool:
    """Return whether the node stands for a resource that an earlier step made."""
    return node.name in cluster.pins and makes_handle(graph, node)


def _softened(spec: DeviceSpec) -> DeviceSpec:
    """Return the part of a request that soft placement keeps."""
    return DeviceSpec(spec.job, spec.replica, spec.task)
