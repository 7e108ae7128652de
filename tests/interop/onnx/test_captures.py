"""Subgraphs that read values of the graphs around them, at any depth."""

from __future__ import annotations

import numpy as np
import pytest

from tests.interop.onnx.test_loading import parse, run

X = np.array([1, 2], np.float32)


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_nested_loop_reads_outer_values(count: int) -> None:
    model = parse("""g (int64 n, bool c, float[2] x) => (float[2] y) {
        y = Loop <body = outer (int64 i, bool k, float[2] v) => (bool l, float[2] w) {
            l = Identity (k)
            f = Cast <to = 1> (i)
            w = Loop <body = inner (int64 j, bool p, float[2] a) => (bool q, float[2] b) {
                q = Identity (p)
                m = Mul (a, f)
                b = Add (m, x) }> (n, k, v) }> (n, c, x) }""")
    expected = X
    for i in range(count):
        for _ in range(count):
            expected = expected * i + X
    [y] = await run(model, np.array(count), np.array(True), X)
    np.testing.assert_allclose(y, expected)


async def test_a_nested_scan_reads_outer_values() -> None:
    model = parse("""g (float[N, 2] x, float s) => (float y, float[N, 2] z) {
        y, z = Scan <num_scan_inputs = 1, body = outer (float a, float[2] row) => (float b, float[2] made) {
            b, made = Scan <num_scan_inputs = 1, body = inner (float p, float q) => (float r, float o) {
                t = Mul (q, s)
                r = Add (p, t)
                o = Identity (r) }> (a, row) }> (s, x) }""")
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    y, z = await run(model, x, np.array(2, np.float32))
    np.testing.assert_allclose(z, (2 + np.cumsum(2 * x.reshape(-1))).reshape(3, 2))
    np.testing.assert_allclose(y, z[-1, -1])


@pytest.mark.parametrize("condition", [False, True])
async def test_both_branches_in_a_loop_read_outer_values(condition: bool) -> None:
    model = parse("""g (int64 n, bool c, bool b, float[2] x) => (float[2] y) {
        y = Loop <body = outer (int64 i, bool k, float[2] v) => (bool l, float[2] w) {
            l = Identity (k)
            w = If <then_branch = t () => (float[2] r) {
                        r = Loop <body = inner (int64 j, bool p, float[2] a) => (bool q, float[2] d) {
                            q = Identity (p)
                            d = Add (a, x) }> (n, k, v) },
                    else_branch = e () => (float[2] r) { r = Mul (v, x) }> (b) }> (n, c, x) }""")
    [y] = await run(model, np.array(2), np.array(True), np.array(condition), X)
    np.testing.assert_allclose(y, 5 * X if condition else X**3)
