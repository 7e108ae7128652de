"""The rule by which a release decides whether it can read a file; it is the same for all of aioflow's own formats.

A file states the `version` of its format. A release reads every version that has existed so far. A file of a newer
version may also state

- `min_reader`: an earlier version, by whose rules it may be read as well;
- `requires`: features that its reader must support, each with the first release that does;
- `min_release`: the first release that reads it.

A release may ignore fields that it does not know, since required features are listed in `requires`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from aioflow.arguments import brief
from aioflow.errors import DataLossError, UnimplementedError
from aioflow.release import RELEASE


def readable_version(
    what: str, content: Mapping[str, Any], known: Collection[int], features: Collection[str] = ()
) -> int:
    """Return the version by whose rules to read a file.

    Args:
        what: The file, for errors.
        content: Its fields, of which `version` is an integer.
        known: Versions that this release reads.
        features: Features that this release supports.

    Raises:
        UnimplementedError: a later release is needed; the error states which.
        DataLossError: the fields have the wrong types.
    """
    version, least, release = content["version"], content.get("min_reader"), content.get("min_release")
    required = content.get("requires") or {}
    # The file comes from outside, so the types of its fields are checked before they are compared.
    kinds = isinstance(required, dict) and all(isinstance(since, str) for since in required.values())
    if not kinds or not isinstance(release, str | None) or type(least) not in (int, type(None)):
        raise DataLossError(
            f"{what} is damaged", expected="valid types of min_reader, min_release and requires", actual=brief(required)
        )
    unknown = {feature: since for feature, since in required.items() if feature not in features}
    if unknown:
        names = ", ".join(f"{feature!r} (since {since})" for feature, since in sorted(unknown.items()))
        raise UnimplementedError(
            f"{what} requires features unknown to this release: {names}",
            expected=f"aioflow {_latest(unknown.values())} or later",
            actual=f"aioflow {RELEASE}",
        )
    if version in known:
        return int(version)
    if least is not None and least in known:
        return int(least)
    raise UnimplementedError(
        f"{what} has version {version}, newer than this release reads: at most {max(known)}",
        expected=f"aioflow {release} or later" if release else "a later release of aioflow",
        actual=f"aioflow {RELEASE}",
    )


def _latest(releases: Collection[str]) -> str:
    """Return the latest of some releases; text that is not a release comes first."""
    # Compared as numbers, since 0.10 is later than 0.9.
    return max(releases, key=lambda text: [int(part) for part in text.split(".") if part.isdecimal()])
