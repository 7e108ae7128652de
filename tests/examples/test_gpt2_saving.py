"""`python -m examples.gpt2.saving` writes a folder whose streams equal those of the example itself."""

from __future__ import annotations

from pathlib import Path

import aioflow as af
from examples.gpt2 import saving
from examples.gpt2.generation import generate
from examples.gpt2.model import Config, Model
from tests.serve.service import serving


def test_command_writes_a_folder_with_a_token_loop(tmp_path: Path) -> None:
    saving.main([str(tmp_path / "m"), "--seed", "3"])
    loop = af.saved.load(tmp_path / "m").token_loop
    assert loop is not None
    assert (loop.max_length, loop.encoding) == (Config().n_positions, "utf-8")


async def test_a_served_folder_generates_what_the_example_does(tmp_path: Path) -> None:
    await saving.convert(None, tmp_path / "m", 3)
    model, prompt = Model(Config(), 3), list(b"Once")
    async with af.Session(graph=model.graph) as session:
        await session.run(model.initializer)
        expected = [token async for token in generate(session, model, prompt, most=20, temperature=0)]
    async with serving({"gpt2": tmp_path / "m"}) as (_, client):
        data = {"text_input": "Once", "parameters": {"max_tokens": 20}}
        assert (await client.post("/v2/models/gpt2/generate", json=data)).json()["tokens"] == expected
