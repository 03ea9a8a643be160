from xml.etree import ElementTree

from landbridge.plots.topology import TopologyLink, TopologyNode, svg

NODES = [
    TopologyNode(id="t1", name="ams", mode="server", region="eu"),
    TopologyNode(id="t2", name="fra", mode="server", region="eu", draining=True),
    TopologyNode(id="t3", name="till-7", mode="client", region="eu"),
    TopologyNode(id="t4", name="nyc", mode="server", region="us"),
    TopologyNode(id="t5", name="sfo", mode="server", region="us", up=False),
]
LINKS = [
    TopologyLink("t1", "t2", 8.25),
    TopologyLink("t1", "t4", 92.0),
    TopologyLink("t3", "t1", 31.0),
    TopologyLink("t4", "t5", None),
]
SPACE = "{http://www.w3.org/2000/svg}"


def parts(picture: str, kind: str) -> list[ElementTree.Element]:
    return list(ElementTree.fromstring(picture).iter(SPACE + kind))


def words(picture: str) -> list[str]:
    return [text.text or "" for text in parts(picture, "text")]


def test_picture_shows_terminals_links_and_costs():
    shown = words(svg(NODES, LINKS))
    for word in (
        "eu",
        "us",
        "ams",
        "till-7",
        "8.2 ms",
        "92 ms",
        "down",
        "server · draining",
        "server · down",
    ):
        assert word in shown


def test_clients_are_dashed_and_lost_links_dotted():
    picture = svg(NODES, LINKS)
    dashed = [box for box in parts(picture, "rect") if box.get("stroke-dasharray")]
    dotted = [line for line in parts(picture, "path") if line.get("stroke-dasharray")]
    assert (len(dashed), len(dotted)) == (1, 1)


def test_route_lies_over_its_links():
    before, after = svg(NODES, LINKS), svg(NODES, LINKS, [["t3", "t1", "t4"]])
    assert len(parts(after, "path")) - len(parts(before, "path")) == 2


def test_picture_does_not_depend_on_the_order():
    assert svg(NODES[::-1], LINKS[::-1]) == svg(NODES, LINKS)


def test_no_terminal_lies_on_another():
    nodes = [
        TopologyNode(id=f"{m}{n}", name=f"{m}{n}", mode=m, region=str(n % 3))
        for n in range(9)
        for m in ("server", "client")
    ]
    boxes = [box for box in parts(svg(nodes, []), "rect") if box.get("rx") == "9"]
    assert len({(box.get("x"), box.get("y")) for box in boxes}) == len(nodes)


def test_label_lies_on_no_terminal():
    """The link from a to c passes behind b, right in its middle."""
    nodes = [TopologyNode(id=id, name=id, mode="server", region=id) for id in "abc"]
    picture = svg(nodes, [TopologyLink("a", "c", 77.0)])
    (label,) = (text for text in parts(picture, "text") if text.text == "77 ms")
    x, y = float(label.get("x", 0)), float(label.get("y", 0))
    for box in (box for box in parts(picture, "rect") if box.get("rx") == "9"):
        left, top, width, height = (float(box.get(side, 0)) for side in ("x", "y", "width", "height"))
        assert not (left < x < left + width and top < y < top + height)


def test_name_can_not_break_out():
    picture = svg(
        [TopologyNode(id='"><script>', name="<script>&", mode="server", region="<b>")],
        [TopologyLink("x", "y", 1.0)],
    )
    assert parts(picture, "script") == []
    assert "<script>&" in words(picture)


def test_nothing_is_a_picture_too():
    assert parts(svg([], []), "svg")
