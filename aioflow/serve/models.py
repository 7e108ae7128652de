"""One version of a model: opened, initialized and warmed up, in its own session.

The sessions of one process share the threads of their devices, but no variables.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Final

from aioflow.concurrency.threads import in_thread
from aioflow.errors import InvalidArgumentError, OpError, UnavailableError, UnimplementedError
from aioflow.graph.dtypes import as_dtype
from aioflow.graph.graph import Tensor
from aioflow.graph.labelled import labels_of, values_of
from aioflow.graph.shapes import Dims
from aioflow.interop.model import DEFAULT_SIGNATURE, Model, Signature
from aioflow.memory.values import Array
from aioflow.saved.opening import open_model
from aioflow.serve.calls import SignatureCalls, SingleCalls, open_call
from aioflow.serve.classification import classified, read_labels
from aioflow.serve.options import ModelOptions
from aioflow.serve.protocol import InferRequest, InferResponse, MalformedRequestError, datatype_of, spelled
from aioflow.serve.response_cache import ResponseCache, check_repeatable, key_of
from aioflow.serve.running import beside
from aioflow.serve.tally import RequestTally
from aioflow.serve.tokens.streams import TokenStreams
from aioflow.session.session import Session

# ── requests with optional inputs: each is a step of its own, which feeds the defaults of the omitted inputs ──────────


class OptionalInputs:
    """Calls of a signature with any of its optional inputs.

    All requests share one compiled step that is fed every input, so clients cannot cause the compilation of many steps.

    Attributes:
        call: The step.
    """

    def __init__(self, session: Session, signature: Signature, options: ModelOptions) -> None:
        self._session = session
        self._signature = signature
        self._defaults: dict[str, Array] = {}
        self.call = SingleCalls(session, Signature(signature.all_inputs, signature.outputs), options)

    async def __call__(self, given: Mapping[str, Array], timeout: float | None, priority: int) -> dict[str, Array]:
        """Return the outputs by name. Raises as `SingleCalls`."""
        if not self._defaults:
            # Two first requests may both compute them; either result may stay, so no lock is needed.
            self._defaults = await self._session.run(dict(self._signature.optional))
        values = {**self._defaults, **given}
        return await self.call([values[name] for name in self._signature.all_inputs], timeout, priority)


# ── the model ─────────────────────────────────────────────────────────────────────────────────────────────────────────


_LOG: Final = logging.getLogger("aioflow.serve")
_SMALL: Final = 1 << 12  # bytes of an output whose classes are chosen on the event loop
SIGNATURE: Final = "signature"  # the request parameter that selects a signature other than the default

ModelOpener = Callable[..., Model]  # of a path, and of shapes= if the source has shapes


class ServedModel:
    """A version of a model that answers requests. Created by `open_served`; the creator must call `close`.

    Attributes:
        name, version: Name and version of the model.
        model: The opened model.
        session: The session that runs its steps.
        calls: Calls by signature.
        optional: Calls with optional inputs, by signature, for signatures that have optional inputs.
        tally: The outcomes of its requests.
        cache: Its responses, if they are cached.
        labels: The labels of classes, by index; empty if the options name no file with them.
        streams: The streams of tokens; None if the model declares no loop over tokens.
    """

    def __init__(
        self,
        name: str,
        version: int,
        model: Model,
        session: Session,
        calls: Mapping[str, SignatureCalls],
        options: ModelOptions,
    ) -> None:
        self.name = name
        self.version = version
        self.model = model
        self.session = session
        self.calls = calls
        self.options = options
        self.optional = {
            name: OptionalInputs(session, _plain(model.signatures[name]), options)
            for name in calls
            if model.signatures[name].optional
        }
        self.tally = RequestTally()
        self.cache = ResponseCache(options.response_cache) if options.response_cache else None
        self.labels: tuple[str, ...] = ()
        self.streams = TokenStreams.of(session, model, options)
        self.weight_bytes = 0  # its share of the repository's memory budget
        self.signature_name = _default_signature(model)
        self._users = 0
        self._is_retired = False
        self._unused = asyncio.Event()
        self._unused.set()

    def __repr__(self) -> str:
        return f"<aioflow.serve.ServedModel {self.name!r} version {self.version}, {self._users} requests>"

    # -- requests -----------------------------------------------------------------------------------------------------

    @property
    def users(self) -> int:
        """The number of requests that are being answered."""
        return self._users

    @contextmanager
    def used(self) -> Iterator[ServedModel]:
        """Keep the version open inside the block. Raises UnavailableError if it is being closed."""
        if self._is_retired:
            raise UnavailableError(f"model {self.name!r} version {self.version} is being unloaded")
        # No await lies between the check and this line, so `close` never misses a request.
        self._users += 1
        self._unused.clear()
        try:
            yield self
        finally:
            self._users -= 1
            if not self._users:
                self._unused.set()

    async def infer(self, request: InferRequest) -> InferResponse:
        """Answer a request. The request's arrays must not change until it is answered.

        Raises:
            MalformedRequestError: the inputs do not match the model's, or an unknown output is requested.
            OpError: as for `Batched`.
        """
        name = self._checked(request.parameters.get(SIGNATURE, self.signature_name))
        signature = self.model.signatures[name]
        arrays = _arrays(request.inputs, signature)
        wanted = list(signature.outputs) if request.outputs is None else [each.name for each in request.outputs]
        for key in wanted:
            if key not in signature.outputs:
                raise MalformedRequestError(
                    f"the model has no output {key!r}", expected=f"one of {list(signature.outputs)}", actual=key
                )
        if self.cache is None:
            values = await self._compute(name, arrays, request, self.options.limited(request.timeout))
        else:
            values = await self._cached(self.cache, name, arrays, wanted, request)
        outputs = {key: values[key] for key in wanted}
        for each in request.outputs or ():
            if each.classes:
                labels = self.labels or labels_of(signature.outputs[each.name]) or ()
                array, is_batched = outputs[each.name], self.calls[name].is_batched
                classify = partial(classified, array, each.name, each.classes, labels, is_batched)
                is_small = array.nbytes <= _SMALL
                outputs[each.name] = classify() if is_small else await in_thread(classify, effects=False)
        return InferResponse(self.name, str(self.version), outputs, request.id)

    async def _compute(
        self, name: str, arrays: Mapping[str, Array], request: InferRequest, limit: float | None
    ) -> Mapping[str, Array]:
        # `_arrays` requires all mandatory inputs, so a surplus consists of optional ones.
        if len(arrays) > len(self.model.signatures[name].inputs):
            return await self.optional[name](arrays, limit, request.priority)
        return await self.calls[name](list(arrays.values()), limit, request.priority)

    async def _cached(
        self, cache: ResponseCache, name: str, arrays: Mapping[str, Array], wanted: list[str], request: InferRequest
    ) -> Mapping[str, Array]:
        """Return the outputs from the cache, or compute and store them."""
        begun = perf_counter()
        key = await beside(sum(array.nbytes for array in arrays.values()), key_of, name, arrays, wanted)
        found = cache.get(key)
        looked = perf_counter()
        if found is not None:
            cache.hits += 1
            cache.hit_seconds += looked - begun
            return found
        # A request shares no computation that is less urgent than itself.
        values, is_shared = await cache.shared(
            (key, request.priority),
            partial(self._compute, name, arrays, request),
            self.options.limited(request.timeout),
        )
        computed = perf_counter()
        if is_shared:
            cache.hits += 1
            cache.hit_seconds += looked - begun
            return values
        cache.put(key, {each: values[each] for each in wanted})
        cache.misses += 1
        cache.miss_seconds += looked - begun + perf_counter() - computed
        return values

    def signature_of(self, name: str | None) -> Signature:
        """Return the signature with a name, or the default one. Raises MalformedRequestError."""
        return self.model.signatures[self.signature_name if name is None else self._checked(name)]

    def _checked(self, name: object) -> str:
        if not isinstance(name, str) or name not in self.calls:
            raise MalformedRequestError(
                "no such signature", expected=f"one of {sorted(self.calls)}", actual=repr(name)[:60]
            )
        return name

    @property
    def signature(self) -> Signature:
        """The default signature."""
        return self.model.signatures[self.signature_name]

    @property
    def all_calls(self) -> list[SignatureCalls]:
        """The calls of all signatures, with and without optional inputs."""
        return [*self.calls.values(), *(each.call for each in self.optional.values())]

    # -- closing ------------------------------------------------------------------------------------------------------

    async def close(self, patience: float | None = None) -> None:
        """Refuse new requests, wait until pending ones are answered, and close the session.

        Args:
            patience: Seconds to wait; requests that are still pending then are stopped.
        """
        self._is_retired = True
        try:
            async with asyncio.timeout(patience):
                await self._unused.wait()
        except TimeoutError:
            _LOG.warning("%s version %d is closed with %d requests unanswered", self.name, self.version, self._users)
        finally:
            if self.streams is not None:
                await self.streams.close()
            # Closing stops the steps of requests that are still pending.
            await self.session.close()

    def hurry(self) -> None:
        """End the wait in `close` and stop the pending requests."""
        self._unused.set()


def _arrays(given: Mapping[str, Array], signature: Signature) -> dict[str, Array]:
    """Return the arrays in the order of the signature, after checking names, dtypes and shapes."""
    known = signature.all_inputs
    # Mandatory ⊆ given ⊆ known.
    if not signature.inputs.keys() <= given.keys() <= known.keys():
        raise MalformedRequestError(
            "the request has other inputs than the model",
            expected=[*signature.inputs, *(f"{name} (optional)" for name in signature.optional)],
            actual=[each[:60] for each in given],
        )
    found = {}
    for name, tensor in known.items():
        if name not in given:
            continue
        array = given[name]
        if array.dtype != tensor.dtype.np_dtype:
            raise MalformedRequestError(
                f"input {name!r} has another datatype than the model",
                expected=spelled(tensor.dtype),
                actual=spelled(as_dtype(array.dtype)),
            )
        if not _fits(array.shape, tensor.dims):
            raise MalformedRequestError(
                f"input {name!r} has another shape than the model",
                expected=[-1 if size is None else size for size in tensor.dims or ()],
                actual=list(array.shape),
            )
        found[name] = array
    return found


def _fits(shape: tuple[int, ...], dims: Dims) -> bool:
    if dims is None:
        return True
    return len(shape) == len(dims) and all(
        size is None or size == given for given, size in zip(shape, dims, strict=True)
    )


def _default_signature(model: Model) -> str:
    if not model.signatures:
        raise InvalidArgumentError("the model has no signature: there is nothing to call", actual=model.source)
    return DEFAULT_SIGNATURE if DEFAULT_SIGNATURE in model.signatures else next(iter(model.signatures))


def _servable(model: Model) -> dict[str, Signature]:
    """Return the signatures whose dtypes the protocol supports, without optional inputs of other dtypes.

    Raises:
        UnimplementedError: the default signature has other dtypes.
    """
    default, found = _default_signature(model), {}
    for key, signature in model.signatures.items():
        try:
            for what, tensors in (("input", signature.inputs), ("output", signature.outputs)):
                for name, tensor in tensors.items():
                    datatype_of(tensor.dtype, f"{what} {name!r}")
        except UnimplementedError as error:
            if key == default:
                raise
            _LOG.info("signature %s of %s is not served: %s", key, model.source, error.message)
        else:
            optional = {name: tensor for name, tensor in signature.optional.items() if _is_servable(tensor)}
            found[key] = replace(signature, optional=optional)
    return found


def _is_servable(tensor: Tensor) -> bool:
    try:
        datatype_of(tensor.dtype, tensor.name)
    except UnimplementedError:
        return False
    return True


def _plain(signature: Signature) -> Signature:
    """Return the signature with plain tensors for labelled outputs, because the protocol supports arrays only."""
    outputs = {name: values_of(tensor) for name, tensor in signature.outputs.items()}
    return replace(signature, outputs=outputs)


async def open_served(
    name: str, version: int, path: str | os.PathLike[str], options: ModelOptions, opener: ModelOpener = open_model
) -> ServedModel:
    """Open a model, initialize its variables, and warm it up if `options.warmup`.

    Raises:
        OpError: the model cannot be opened, or its dtypes cannot be served.
    """
    # Opening reads files and builds the graph, which would block the requests of other models.
    model = await in_thread(opener, path, effects=False)
    if options.response_cache:
        await in_thread(check_repeatable, model, effects=False)
    signatures = _servable(model)
    model = replace(model, signatures={**model.signatures, **signatures})
    session = Session(graph=model.graph, config=options.config)
    try:
        await model.initialize(session)
        calls = {key: await open_call(session, _plain(each), options, name) for key, each in signatures.items()}
        served = ServedModel(name, version, model, session, calls, options)
        if options.labels is not None:
            served.labels = await in_thread(read_labels, os.fspath(options.labels), effects=False)
        if options.warmup:
            await _warm(served)
        if served.streams is not None:
            await served.streams.start()
    # Also on a cancellation, since no other code has this session.
    except BaseException:
        await session.close()
        raise
    return served


async def _warm(served: ServedModel) -> None:
    for key, call in served.calls.items():
        try:
            await call.warmup()
        except OpError as error:
            # Some models reject zeros, for example as an encoded image or as a sentence.
            _LOG.warning("%s version %d, signature %s, is not warmed up: %s", served.name, served.version, key, error)
    # Compilation in the background finishes first, so the first requests do not compete with it.
    await served.session.prepared()
