"""Precise signatures of `Session.run` and related methods, for type checkers only.

The type of a result follows from the fetches:

- a tensor or variable yields an array, an operation None, a sparse tensor its value, and a name `Any`;
- a list yields a list, a tuple a tuple with one type per place, and a dictionary a dictionary;
- mixed lists and dictionaries, and anything nested deeper, yield `Any` in their places.

`Session` defines each method once; the overloads are here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Coroutine, Mapping, Sequence
    from typing import Protocol, TypeAlias, TypedDict, TypeVar, Unpack, overload

    from numpy.typing import NDArray

    from aioflow.config import RunOptions
    from aioflow.graph.fetchable import Fetchable
    from aioflow.graph.graph import Operation
    from aioflow.runtime.stats import RunMetadata
    from aioflow.session.batching.batched import Batched
    from aioflow.session.streaming import FeedSource, Stream

    A = TypeVar("A")
    A_co = TypeVar("A_co", covariant=True)
    B = TypeVar("B")
    C = TypeVar("C")
    D = TypeVar("D")
    K = TypeVar("K")
    Array: TypeAlias = NDArray[Any]
    Fetched = TypeVar("Fetched", bound=Fetchable[Array])  # keeps the element type of a list that is not a literal
    Pair: TypeAlias = tuple[Fetchable[A], Fetchable[B]]
    Triple: TypeAlias = tuple[Fetchable[A], Fetchable[B], Fetchable[C]]
    Four: TypeAlias = tuple[Fetchable[A], Fetchable[B], Fetchable[C], Fetchable[D]]
    Feeds: TypeAlias = Mapping[Any, object] | None
    BatchFeeds: TypeAlias = Sequence[object] | Mapping[str, object]

    class StepCallable(Protocol[A_co]):
        """The callable that `make_callable` returns."""

        def __call__(self, *values: object) -> Coroutine[Any, Any, A_co]: ...

    class Named(Protocol):
        """A named tuple; the result has the same type."""

        @property
        def _fields(self) -> tuple[str, ...]: ...

    class RunHow(TypedDict, total=False):
        """The keyword arguments of `Session.run`."""

        timeout: float | None
        options: RunOptions | None
        run_metadata: RunMetadata | None

    class StreamHow(TypedDict, total=False):
        """The keyword arguments of `Session.stream`."""

        prefetch: int
        timeout: float | None

    class BatchHow(TypedDict, total=False):
        """The keyword arguments of `Session.batched`."""

        max_batch_size: int
        batch_timeout: float
        max_enqueued_batches: int
        max_concurrent_batches: int
        allowed_batch_sizes: Sequence[int]
        pad: Feeds
        unchecked: bool

    class RunSignature(Protocol):
        """The signature of `Session.run`."""

        @overload
        async def __call__(self, fetches: Fetchable[A], feed_dict: Feeds = None, **how: Unpack[RunHow]) -> A: ...

        @overload
        async def __call__(
            self, fetches: list[Fetchable[Array]], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> list[Array]: ...

        @overload
        async def __call__(
            self, fetches: list[Fetched], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> list[Array]: ...

        @overload
        async def __call__(
            self, fetches: list[Operation], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> list[None]: ...

        @overload
        async def __call__(self, fetches: list[Any], feed_dict: Feeds = None, **how: Unpack[RunHow]) -> list[Any]: ...

        @overload
        async def __call__(self, fetches: str | Named, feed_dict: Feeds = None, **how: Unpack[RunHow]) -> Any: ...

        @overload
        async def __call__(
            self, fetches: tuple[Fetchable[A]], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[A]: ...

        @overload
        async def __call__(
            self, fetches: Pair[A, B], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[A, B]: ...

        @overload
        async def __call__(
            self, fetches: Triple[A, B, C], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[A, B, C]: ...

        @overload
        async def __call__(
            self, fetches: Four[A, B, C, D], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[A, B, C, D]: ...

        @overload
        async def __call__(
            self, fetches: tuple[Fetchable[A], ...], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[A, ...]: ...

        @overload
        async def __call__(
            self, fetches: tuple[object, ...], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[Any, ...]: ...

        @overload
        async def __call__(
            self, fetches: Mapping[K, Fetchable[Array]], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> dict[K, Array]: ...

        @overload
        async def __call__(
            self, fetches: Mapping[K, object], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> dict[K, Any]: ...

    class RunSync(Protocol):
        """The signature of `Session.run_sync`."""

        @overload
        def __call__(self, fetches: Fetchable[A], feed_dict: Feeds = None, **how: Unpack[RunHow]) -> A: ...

        @overload
        def __call__(
            self, fetches: list[Fetchable[Array]], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> list[Array]: ...

        @overload
        def __call__(self, fetches: list[Fetched], feed_dict: Feeds = None, **how: Unpack[RunHow]) -> list[Array]: ...

        @overload
        def __call__(self, fetches: list[Operation], feed_dict: Feeds = None, **how: Unpack[RunHow]) -> list[None]: ...

        @overload
        def __call__(self, fetches: list[Any], feed_dict: Feeds = None, **how: Unpack[RunHow]) -> list[Any]: ...

        @overload
        def __call__(self, fetches: str | Named, feed_dict: Feeds = None, **how: Unpack[RunHow]) -> Any: ...

        @overload
        def __call__(
            self, fetches: tuple[Fetchable[A]], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[A]: ...

        @overload
        def __call__(self, fetches: Pair[A, B], feed_dict: Feeds = None, **how: Unpack[RunHow]) -> tuple[A, B]: ...

        @overload
        def __call__(
            self, fetches: Triple[A, B, C], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[A, B, C]: ...

        @overload
        def __call__(
            self, fetches: Four[A, B, C, D], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[A, B, C, D]: ...

        @overload
        def __call__(
            self, fetches: tuple[Fetchable[A], ...], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[A, ...]: ...

        @overload
        def __call__(
            self, fetches: tuple[object, ...], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> tuple[Any, ...]: ...

        @overload
        def __call__(
            self, fetches: Mapping[K, Fetchable[Array]], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> dict[K, Array]: ...

        @overload
        def __call__(
            self, fetches: Mapping[K, object], feed_dict: Feeds = None, **how: Unpack[RunHow]
        ) -> dict[K, Any]: ...

    class MakeCallable(Protocol):
        """The signature of `Session.make_callable`."""

        @overload
        def __call__(self, fetches: Fetchable[A], feed_list: Sequence[object] | None = None) -> StepCallable[A]: ...

        @overload
        def __call__(
            self, fetches: list[Fetched], feed_list: Sequence[object] | None = None
        ) -> StepCallable[list[Array]]: ...

        @overload
        def __call__(
            self, fetches: list[Any], feed_list: Sequence[object] | None = None
        ) -> StepCallable[list[Any]]: ...

        @overload
        def __call__(self, fetches: str | Named, feed_list: Sequence[object] | None = None) -> StepCallable[Any]: ...

        @overload
        def __call__(
            self, fetches: Pair[A, B], feed_list: Sequence[object] | None = None
        ) -> StepCallable[tuple[A, B]]: ...

        @overload
        def __call__(
            self, fetches: Triple[A, B, C], feed_list: Sequence[object] | None = None
        ) -> StepCallable[tuple[A, B, C]]: ...

        @overload
        def __call__(
            self, fetches: tuple[object, ...], feed_list: Sequence[object] | None = None
        ) -> StepCallable[tuple[Any, ...]]: ...

        @overload
        def __call__(
            self, fetches: Mapping[K, Fetchable[Array]], feed_list: Sequence[object] | None = None
        ) -> StepCallable[dict[K, Array]]: ...

        @overload
        def __call__(
            self, fetches: Mapping[K, object], feed_list: Sequence[object] | None = None
        ) -> StepCallable[dict[K, Any]]: ...

    class StreamOf(Protocol):
        """The signature of `Session.stream`."""

        @overload
        def __call__(self, fetches: Fetchable[A], feeds: FeedSource = None, **how: Unpack[StreamHow]) -> Stream[A]: ...

        @overload
        def __call__(
            self, fetches: list[Fetched], feeds: FeedSource = None, **how: Unpack[StreamHow]
        ) -> Stream[list[Array]]: ...

        @overload
        def __call__(
            self, fetches: list[Any], feeds: FeedSource = None, **how: Unpack[StreamHow]
        ) -> Stream[list[Any]]: ...

        @overload
        def __call__(self, fetches: str | Named, feeds: FeedSource = None, **how: Unpack[StreamHow]) -> Stream[Any]: ...

        @overload
        def __call__(
            self, fetches: Pair[A, B], feeds: FeedSource = None, **how: Unpack[StreamHow]
        ) -> Stream[tuple[A, B]]: ...

        @overload
        def __call__(
            self, fetches: Triple[A, B, C], feeds: FeedSource = None, **how: Unpack[StreamHow]
        ) -> Stream[tuple[A, B, C]]: ...

        @overload
        def __call__(
            self, fetches: tuple[object, ...], feeds: FeedSource = None, **how: Unpack[StreamHow]
        ) -> Stream[tuple[Any, ...]]: ...

        @overload
        def __call__(
            self, fetches: Mapping[K, Fetchable[Array]], feeds: FeedSource = None, **how: Unpack[StreamHow]
        ) -> Stream[dict[K, Array]]: ...

        @overload
        def __call__(
            self, fetches: Mapping[K, object], feeds: FeedSource = None, **how: Unpack[StreamHow]
        ) -> Stream[dict[K, Any]]: ...

    class BatchedOf(Protocol):
        """The signature of `Session.batched`."""

        @overload
        def __call__(self, fetches: Fetchable[A], feeds: BatchFeeds, **how: Unpack[BatchHow]) -> Batched[A]: ...

        @overload
        def __call__(
            self, fetches: list[Fetched], feeds: BatchFeeds, **how: Unpack[BatchHow]
        ) -> Batched[list[Array]]: ...

        @overload
        def __call__(self, fetches: list[Any], feeds: BatchFeeds, **how: Unpack[BatchHow]) -> Batched[list[Any]]: ...

        @overload
        def __call__(self, fetches: str | Named, feeds: BatchFeeds, **how: Unpack[BatchHow]) -> Batched[Any]: ...

        @overload
        def __call__(self, fetches: Pair[A, B], feeds: BatchFeeds, **how: Unpack[BatchHow]) -> Batched[tuple[A, B]]: ...

        @overload
        def __call__(
            self, fetches: Triple[A, B, C], feeds: BatchFeeds, **how: Unpack[BatchHow]
        ) -> Batched[tuple[A, B, C]]: ...

        @overload
        def __call__(
            self, fetches: tuple[object, ...], feeds: BatchFeeds, **how: Unpack[BatchHow]
        ) -> Batched[tuple[Any, ...]]: ...

        @overload
        def __call__(
            self, fetches: Mapping[K, Fetchable[Array]], feeds: BatchFeeds, **how: Unpack[BatchHow]
        ) -> Batched[dict[K, Array]]: ...

        @overload
        def __call__(
            self, fetches: Mapping[K, object], feeds: BatchFeeds, **how: Unpack[BatchHow]
        ) -> Batched[dict[K, Any]]: ...

    class PartialRun(Protocol):
        """The signature of `Session.partial_run`."""

        @overload
        async def __call__(
            self, handle: str, fetches: Fetchable[A], feed_dict: Feeds = None, *, timeout: float | None = None
        ) -> A: ...

        @overload
        async def __call__(
            self, handle: str, fetches: list[Fetched], feed_dict: Feeds = None, *, timeout: float | None = None
        ) -> list[Array]: ...

        @overload
        async def __call__(
            self, handle: str, fetches: list[Any], feed_dict: Feeds = None, *, timeout: float | None = None
        ) -> list[Any]: ...

        @overload
        async def __call__(
            self, handle: str, fetches: str | Named, feed_dict: Feeds = None, *, timeout: float | None = None
        ) -> Any: ...

        @overload
        async def __call__(
            self, handle: str, fetches: Pair[A, B], feed_dict: Feeds = None, *, timeout: float | None = None
        ) -> tuple[A, B]: ...

        @overload
        async def __call__(
            self, handle: str, fetches: Triple[A, B, C], feed_dict: Feeds = None, *, timeout: float | None = None
        ) -> tuple[A, B, C]: ...

        @overload
        async def __call__(
            self, handle: str, fetches: tuple[object, ...], feed_dict: Feeds = None, *, timeout: float | None = None
        ) -> tuple[Any, ...]: ...

        @overload
        async def __call__(
            self,
            handle: str,
            fetches: Mapping[K, Fetchable[Array]],
            feed_dict: Feeds = None,
            *,
            timeout: float | None = None,
        ) -> dict[K, Array]: ...

        @overload
        async def __call__(
            self, handle: str, fetches: Mapping[K, object], feed_dict: Feeds = None, *, timeout: float | None = None
        ) -> dict[K, Any]: ...


def run(method: Callable[..., object]) -> RunSignature:
    """Return the method, typed with the signature of `Session.run`."""
    return cast("RunSignature", method)


def run_sync(method: Callable[..., object]) -> RunSync:
    """Return the method, typed with the signature of `Session.run_sync`."""
    return cast("RunSync", method)


def make_callable(method: Callable[..., object]) -> MakeCallable:
    """Return the method, typed with the signature of `Session.make_callable`."""
    return cast("MakeCallable", method)


def stream(method: Callable[..., object]) -> StreamOf:
    """Return the method, typed with the signature of `Session.stream`."""
    return cast("StreamOf", method)


def batched(method: Callable[..., object]) -> BatchedOf:
    """Return the method, typed with the signature of `Session.batched`."""
    return cast("BatchedOf", method)


def partial_run(method: Callable[..., object]) -> PartialRun:
    """Return the method, typed with the signature of `Session.partial_run`."""
    return cast("PartialRun", method)
