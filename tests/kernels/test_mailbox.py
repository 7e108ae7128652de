"""The core of mailboxes: a take receives the value put last under its key, also when the step is repeated."""

from __future__ import annotations

from aioflow.sync.mailbox import LetterRequest, MailboxCore


def test_take_waits_for_its_key() -> None:
    box = MailboxCore("box")
    woken: list[str] = []
    early, other = LetterRequest(1, lambda: woken.append("early")), LetterRequest(2, lambda: woken.append("other"))
    assert box.submit(early) == box.submit(other) == []
    assert box.describe() == "mailbox 'box' (letters: none; waited for: 1, 2)"
    assert box.put(1, "one") == [early]
    assert (early.value, other.resolved) == ("one", False)
    assert box.put(2, "two") == [other]
    assert other.value == "two"


def test_letter_stays_until_a_later_one_is_taken() -> None:
    box = MailboxCore("box")
    box.put(1, "one")
    box.put(2, "two")
    for _ in range(2):
        assert box.submit(take := LetterRequest(1)) == [take]
        assert take.value == "one"
    box.submit(LetterRequest(2))
    assert len(box) == 1
    assert box.submit(LetterRequest(1)) == []


def test_repeated_put_replaces_the_letter() -> None:
    box = MailboxCore("box")
    box.put(1, "first try")
    box.put(1, "second try")
    box.submit(take := LetterRequest(1))
    assert take.value == "second try"


def test_put_of_an_earlier_key_discards_later_letters() -> None:
    box = MailboxCore("box")
    box.put(7, "of a former life")
    box.put(8, "of a former life")
    box.put(3, "new")
    assert box.submit(LetterRequest(7)) == []
    assert box.submit(LetterRequest(8)) == []
    assert box.put(7, "new") != []


def test_withdrawn_take_consumes_no_letter() -> None:
    box = MailboxCore("box")
    take = LetterRequest(1)
    box.submit(take)
    assert box.withdraw(take) == []
    assert box.put(1, "one") == []
    box.submit(taken := LetterRequest(1))
    box.withdraw(taken)
    box.submit(again := LetterRequest(1))
    assert again.value == "one"
