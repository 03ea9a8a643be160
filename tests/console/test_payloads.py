"""Payloads as pages show them."""

from __future__ import annotations

import pytest

from landbridge.console import payloads


def test_json_is_indented_and_coloured_and_no_markup() -> None:
    found = payloads.shown(b'{"<b>": [1.50, "a\\"<i>&", null], "n": -1e5}')
    assert found.form == "JSON"
    assert '<span class="k">&quot;&lt;b&gt;&quot;</span>:' in found.html
    assert '<span class="n">1.50</span>' in found.html
    assert '<span class="s">&quot;a\\&quot;&lt;i&gt;&amp;&quot;</span>' in found.html
    assert '<span class="w">null</span>' in found.html
    assert "<b>" not in found.html
    assert "<i>" not in found.html


@pytest.mark.parametrize(
    "payload",
    [
        b"[" * 900 + b"1," * 63_000 + b"1" + b"]" * 900,
        b"[" * 33 + b"1" + b"]" * 33,
        b"[" * 31 + b"1," * 60_000 + b"1" + b"]" * 31,
        b'{"a":' * 400 + b"[" + b"1," * 62_000 + b"1]" + b"}" * 400,
    ],
    ids=["deep and wide", "too deep", "too long", "objects"],
)
def test_json_that_makes_a_page_of_megabytes_is_text(payload: bytes) -> None:
    assert len(payload) <= payloads.MOST_SHOWN
    found = payloads.shown(payload)
    assert found.form == "text"
    assert len(found.html) < 2 * payloads.MOST_SHOWN


def test_json_as_deep_as_pages_show_it() -> None:
    assert payloads.shown(b"[" * 32 + b"1" + b"]" * 32).form == "JSON"
