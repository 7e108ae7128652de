"""Digits, in FastAPI: pydantic models for input and output, a dependency with `yield`, a background task, a stream.

    uvicorn examples.web.with_fastapi:app

`/predict` answers from steps that callers share. `/learn` runs a training step on the same variables: a dependency
admits one request at a time, and a background task saves a checkpoint, which the service restores when it is restarted.
`/predict/lines` responds with some rows at a time, as they are computed.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any

from fastapi import BackgroundTasks, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

import aioflow as af
from aioflow.errors import ClientDisconnectedError, DeadlineExceededError, InvalidArgumentError, ResourceExhaustedError
from examples.web.digits import FOLDER, build, restore_or_train

model = build()

Pixels = Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=64, max_length=64)]
Rows = Annotated[list[Pixels], Field(min_length=1, max_length=1000)]


class Images(BaseModel):
    """Digits to recognize."""

    pixels: Rows


class Lesson(Images):
    """Digits with known labels."""

    labels: Annotated[list[Annotated[int, Field(ge=0, le=9)]], Field(min_length=1)]


class Answer(BaseModel):
    """The likeliest digit of each row, and its probability."""

    digits: list[int]
    probabilities: list[float]


class Learnt(BaseModel):
    """The loss before the step, and the number of the step."""

    loss: float
    step: int


class Trainer:
    """Training steps and checkpoints of their results."""

    def __init__(self, session: af.Session) -> None:
        self._session = session
        self._learning, self._saving = asyncio.Lock(), asyncio.Lock()
        self._saved = -1

    @contextlib.asynccontextmanager
    async def turn(self) -> AsyncIterator[Trainer]:
        """Enter a block that is exclusive to one caller at a time."""
        async with self._learning:
            yield self

    async def learn(self, lesson: Lesson) -> Learnt:
        """Run one training step."""
        feeds = {model.images: af.web.rows_of(lesson.pixels, model.images), model.labels: lesson.labels}
        _, loss = await self._session.run([model.train, model.loss], feeds)
        return Learnt(loss=float(loss), step=int(await self._session.run(model.global_step)))

    async def save(self, step: int) -> None:
        """Save a checkpoint that includes this step.

        Steps may run meanwhile; the checkpoint is a consistent snapshot.
        """
        async with self._saving:
            if step > self._saved:  # else a newer checkpoint includes it
                now = int(await self._session.run(model.global_step))
                await model.saver.save(self._session, FOLDER / "model", now)
                self._saved = now


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load and warm up the model before the server listens; background tasks end before the session does."""
    async with af.Session(graph=model.graph) as session:
        await restore_or_train(session, model)
        app.state.trainer = Trainer(session)
        async with session.batched(model.probabilities, [model.images], max_batch_size=64) as app.state.predict:
            await session.warmup(app.state.predict)
            yield


app = FastAPI(lifespan=lifespan)


def predictor(request: Request) -> af.Batched[Any]:
    """Return the batched call that all requests share."""
    found: af.Batched[Any] = request.app.state.predict
    return found


async def trainer(request: Request) -> AsyncIterator[Trainer]:
    """Yield the trainer to one request at a time; the next request waits until this one's function has returned."""
    async with request.app.state.trainer.turn() as found:
        yield found


@app.post("/predict")
async def predict(images: Images, request: Request, call: Annotated[af.Batched[Any], Depends(predictor)]) -> Answer:
    """Return the predictions for all rows at once."""
    rows = af.web.rows_of(images.pixels, model.images)
    return _answer(await af.web.until_disconnect(request.receive, call(rows, timeout=30.0)))


def _answer(probabilities: Any) -> Answer:
    return Answer(digits=probabilities.argmax(1).tolist(), probabilities=probabilities.max(1).tolist())


@app.post("/predict/lines")
async def predict_lines(images: Images, call: Annotated[af.Batched[Any], Depends(predictor)]) -> StreamingResponse:
    """Stream a line of JSON for each 16 rows as they are computed, with lower priority than other requests."""
    rows = af.web.rows_of(images.pixels, model.images)
    parts = [rows[begin : begin + 16] for begin in range(0, len(rows), 16)]
    return StreamingResponse(_lines(parts, call), media_type="application/x-ndjson")


async def _lines(parts: Sequence[Any], call: af.Batched[Any]) -> AsyncIterator[str]:
    for part in parts:
        yield _answer(await call(part, priority=1)).model_dump_json() + "\n"


@app.post("/learn")
async def learn(
    lesson: Lesson, tasks: BackgroundTasks, turn: Annotated[Trainer, Depends(trainer, scope="function")]
) -> Learnt:
    """Run one training step; a checkpoint is written after the response has been sent."""
    learnt = await turn.learn(lesson)
    tasks.add_task(turn.save, learnt.step)
    return learnt


# -- error responses ------------ ------------------------------------------------------------------------------------


@app.exception_handler(RequestValidationError)
async def unfit(request: Request, error: RequestValidationError) -> Response:
    """Return the errors without the input."""
    # FastAPI's own response repeats the input, and fails if that contains NaN.
    detail = [{"where": list(each["loc"]), "what": each["msg"]} for each in error.errors()[:10]]
    return JSONResponse({"detail": detail}, 422)


@app.exception_handler(InvalidArgumentError)
async def wrong(request: Request, error: InvalidArgumentError) -> Response:
    """Return an error that only the model could detect."""
    # Not `str(error)`, which would also reveal where in this program it was raised.
    return JSONResponse({"detail": error.message}, 400)


@app.exception_handler(ResourceExhaustedError)
async def full(request: Request, error: ResourceExhaustedError) -> Response:
    """Return 429 because the queue is full; the client may retry later."""
    after = math.ceil(error.retry_after or 1.0)
    return JSONResponse({"detail": "too many requests"}, 429, {"Retry-After": str(after)})


@app.exception_handler(DeadlineExceededError)
async def late(request: Request, error: DeadlineExceededError) -> Response:
    """Return 504 because the deadline has passed."""
    return JSONResponse({"detail": "not answered in time"}, 504)


@app.exception_handler(ClientDisconnectedError)
async def gone(request: Request, error: ClientDisconnectedError) -> Response:
    """Return a response that the disconnected client does not read."""
    return Response(status_code=499)
