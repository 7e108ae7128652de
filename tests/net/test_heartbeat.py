"""The rule by which a silent peer counts as dead: a table of ticks."""

from __future__ import annotations

from aioflow.net.heartbeat import Heartbeat


def test_silent_peer_is_dead_after_the_misses() -> None:
    heartbeat = Heartbeat(3)
    assert [heartbeat.tick(True, 0, False) is None for _ in range(4)] == [True, True, True, False]


def test_received_bytes_restart_the_count() -> None:
    heartbeat = Heartbeat(2)
    for _ in range(20):
        heartbeat.heard()
        assert heartbeat.tick(True, 0, False) is None
        assert heartbeat.tick(True, 0, False) is None


def test_silence_does_not_count_while_reading_is_paused() -> None:
    heartbeat = Heartbeat(2)
    assert all(heartbeat.tick(False, 0, True) is None for _ in range(50))
    assert heartbeat.tick(True, 0, False) is None
    assert heartbeat.tick(True, 0, False) is not None


def test_single_frame_must_end_in_time() -> None:
    heartbeat = Heartbeat(3, frame_ticks=5)
    reasons = []
    for _ in range(7):
        heartbeat.heard()
        reasons.append(heartbeat.tick(True, 8, True))
    assert [r is None for r in reasons] == [True] * 5 + [False] * 2
    assert "one frame" in str(reasons[-1])


def test_many_frames_in_a_row_are_allowed() -> None:
    heartbeat = Heartbeat(3, frame_ticks=2)
    for frames in range(50):
        heartbeat.heard()
        assert heartbeat.tick(True, frames, True) is None
