"""The stage ``authorise``: who has published a message, in its headers and, if wanted, in its payload.

The headers are the terminal's own on a topic with this stage: what a producer has put there is taken away
first. So a consumer of the topic can rely on them.
"""

from __future__ import annotations

from collections.abc import Mapping

from landbridge.core.log.batch import HeaderValue
from landbridge.core.middleware.rows import BatchRows
from landbridge.core.middleware.spec import AuthoriseStage
from landbridge.errors import Forbidden

#: The header that has the subject, and what the names of the others begin with.
PRODUCER, CLAIM = "lb-producer", "lb-claim-"
#: Characters of a claim that go into a message.
LONGEST_CLAIM = 2_000


class Authorisation:
    """The stage at work."""

    def __init__(self, spec: AuthoriseStage) -> None:
        self._spec = spec

    def check(self, claims: Mapping[str, str]) -> None:
        """Forbidden where the publisher has not what is demanded."""
        for name, values in self._spec.require.items():
            held = claims.get(name, "")
            if not held:
                raise Forbidden(
                    f"the topic's middleware demands the claim {name}, and the publisher has none",
                    hint="publish by a service that has it: 'landbridge service update' sets its metadata",
                )
            if values and held not in values:
                raise Forbidden(
                    f"the topic's middleware demands another {name} of publishers",
                    hint=f"one of {', '.join(values[:10])}",
                )

    def headers_of(self, claims: Mapping[str, str]) -> dict[str, HeaderValue]:
        """The headers that say who publishes."""
        found: dict[str, HeaderValue] = {PRODUCER: claims["subject"]}
        for name in self._spec.claims:
            if name in claims:
                found[CLAIM + name] = claims[name][:LONGEST_CLAIM]
        return found

    def work(self, rows: BatchRows, lo: int, hi: int) -> None:
        """InvalidMessage where the payload is to have a member, and is no JSON object."""
        claims = rows.claims
        if lo == 0:
            self.check(claims)
        said = self.headers_of(claims)
        for at in range(lo, hi):
            kept = {name: value for name, value in rows.headers(at).items() if not _is_own(name)}
            rows.set_headers(at, {**kept, **said})
        if not self._spec.payload:
            return
        member = {"subject": claims["subject"]}
        member |= {name: claims[name][:LONGEST_CLAIM] for name in self._spec.claims if name in claims}
        for at, value in enumerate(rows.values(lo, hi), lo):
            if not isinstance(value, dict):
                rows.refuse(
                    at, "", "the payload is no JSON object, so the publisher can't be put into it",
                    hint="publish JSON objects to this topic",
                )  # fmt: skip
            value[self._spec.payload] = member
            rows.value_changed(at, value)


def _is_own(name: str) -> bool:
    # Letters of headers may change their case on the way through HTTP.
    lowered = name.lower()
    return lowered == PRODUCER or lowered.startswith(CLAIM)
