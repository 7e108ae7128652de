"""A task of a cluster as a Ray actor: the worker runs in the actor's own process.

So the process that Ray counts, limits, kills and restarts is the worker, and its GPUs are those of the actor. No child
process can outlive the actor. The worker is the ordinary `train.Server`, on the actor's event loop.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, Final

from aioflow.config import SessionConfig
from aioflow.errors import OpError, UnavailableError
from aioflow.net.addresses import PortReservation, join_host, split_host
from aioflow.net.cluster_spec import ClusterSpec, TaskId
from aioflow.net.credentials import Credentials
from aioflow.net.errors_codec import encode_error
from aioflow.net.server import Server
from aioflow.net.tls import Tls

_AGAIN: Final = "leave the block and start the cluster again: training continues from the last checkpoint"


class WorkerActor:
    """One task. Ray creates the actor again if its process dies; it then has no state until `begin` is called.

    Args:
        job: Job of the task.
        number: Number of the task in its job.
        imports: Modules that register ops.
    """

    def __init__(self, job: str, number: int, imports: Sequence[str]) -> None:
        self._task = TaskId(job, number)
        self._reservation: PortReservation | None = None
        self._server: Server | None = None
        # In the constructor: an actor whose modules are missing must not count as placed.
        for module in imports:
            import_module(module)

    def __repr__(self) -> str:  # the prefix of Ray's log lines
        return f"{self._task.job}:{self._task.number}"

    async def place(self, bind: str | None) -> str:
        """Return the task's address: the node's host with a free port, which is reserved until the worker begins.

        Args:
            bind: Host to listen at, if it is not the node's address.
        """
        host = _node_address()
        # Once: a repeated call must return the same address.
        if self._reservation is None:
            self._reservation = PortReservation(bind or host, anywhere=True)
        return join_host(host, split_host(self._reservation.place)[1])

    async def begin(self, orders: Mapping[str, Any]) -> dict[str, object]:
        """Start serving, unless the worker serves already.

        Returns:
            The node and the process ("node", "pid"), or the encoded error ("error").
        """
        try:
            if self._server is None:
                self._server = await self._serving(orders)
        except OpError as error:
            # As data: Ray would wrap the error and lose its class.
            return {"error": encode_error(error)}
        return {"node": _node_address(), "pid": os.getpid()}

    async def _serving(self, orders: Mapping[str, Any]) -> Server:
        cluster = ClusterSpec(orders["cluster"])
        address, here = cluster.task_address(*self._task), _node_address()
        # The placement group keeps an actor on its node; after the loss of the node Ray may choose another.
        if split_host(address)[0] != here:
            raise UnavailableError(
                f"{self._task.name} is lost with its node: Ray restarted it on {here}, but other tasks "
                f"expect it at {address}",
                expected=_AGAIN,
                actual=here,
            )
        tls = None if orders["tls"] is None else Tls(*orders["tls"])
        server = Server(
            cluster,
            self._task.job,
            self._task.number,
            config=SessionConfig(device_count=orders["device_count"]),
            allow_dirs=orders["allow_dirs"],
            credentials=Credentials(orders["secret"], tls, orders["seals_loopback"]),
            bind=orders["bind"],
        )
        try:
            await server.start()
        except BaseException:
            await server.stop()  # otherwise the server would keep the address within this process
            raise
        return server

    async def ended(self) -> None:
        """Wait until the worker has stopped serving."""
        if self._server is not None:
            await self._server.join()

    async def drain(self, seconds: float) -> None:
        """Drain the server, as `Server.drain` does."""
        if self._server is not None:
            await self._server.drain(seconds)


def _node_address() -> str:
    address: str = import_module("ray").util.get_node_ip_address()
    return address
