"""``landbridge service``, for people and for programs."""

from __future__ import annotations

from tests.cli.conftest import Place


def test_a_service_from_its_registration_to_its_end(shared: Place, topic: str) -> None:
    scope = ("--scope", f"publish:{topic}")
    register = ("service", "register", "shop-1", *scope, "--version", "1.4.0", "--owner", "sales")
    made = shared.call(*register, "--metadata", "team=x", "--save-as", "shop-1", "--json").json
    assert (made["context"], made["options"]["metadata"]) == ("shop-1", {"team": "x"})
    assert "credential" not in made
    assert shared.call("publish", topic, "x", "--context", "shop-1").status == 0
    assert shared.call("publish", "other", "x", "--context", "shop-1", "--json").error["code"] == "forbidden"
    again = shared.call(*register, "--metadata", "team=x")
    assert again.out == ""  # a script would take it for the credential
    assert again.err.startswith("the service shop-1 is there; its credential was shown once")
    assert shared.call(*register, "--json").error["code"] == "service_exists"
    [row] = [row for row in shared.call("service", "list", "--json").json if row["name"] == "shop-1"]
    assert (row["state"], row["version"], row["scopes"]) == ("active", "1.4.0", [f"publish:{topic}"])
    assert shared.call("service", "list").out.split()[:3] == ["SERVICE", "STATE", "VERSION"]
    assert shared.call("service", "token", "shop-1", "--context", "shop-1").out.startswith("eyJ")
    traded = shared.call("service", "token", "shop-1", "--context", "shop-1", *scope, "--json").json
    assert traded["scopes"] == [f"publish:{topic}"]
    assert shared.call("service", "update", "shop-1", "--version", "1.5.0").out
    shown = shared.call("service", "show", "shop-1").out
    assert "1.5.0" in shown
    assert f"publish:{topic}" in shown
    note = "floods"
    assert (
        shared.call("service", "suspend", "shop-1", "--note", note).out == "the service shop-1 is suspended\n"
    )
    assert note in shared.call("service", "show", "shop-1").out
    assert shared.call("publish", topic, "x", "--context", "shop-1").status == 30
    assert shared.call("service", "resume", "shop-1").out == "the service shop-1 is active\n"
    assert shared.call("publish", topic, "x", "--context", "shop-1").status == 0
    rotated = shared.call("service", "rotate", "shop-1").out
    assert rotated.startswith("lbsc1_")
    assert shared.call("publish", topic, "x", "--context", "shop-1").status == 30
    assert shared.call("service", "token", "shop-1", "--credential", rotated.strip()).out.startswith("eyJ")
    assert "no endpoints told of" not in shared.call("service", "stats", "shop-1", "--json").out
    assert shared.call("service", "stats", "shop-1").status == 0
    assert shared.call("service", "remove", "shop-1").out == "the service shop-1 is removed\n"
    assert shared.call("service", "show", "shop-1", "--json").error["code"] == "unknown_service"


def test_the_credential_is_printed_alone(shared: Place) -> None:
    out = shared.call("service", "register", "printer", "--scope", "publish:a").out
    assert out.startswith("lbsc1_")
    assert len(out.split()) == 1
    made = shared.call("service", "register", "quiet", "--no-credential", "--json").json
    assert made["credential"] is None
    assert "credential" in shared.call("service", "register", "--help").out
    create = ("service", "register", "thief", "--scope", "publish:#", "--save-as", "local", "--json")
    assert shared.call(*create).error["code"] == "context_taken"
