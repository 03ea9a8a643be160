"""The guide for MQTT: its commands and its program run against a terminal with the port of MQTT."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.waiting import LIMIT

GUIDE = Path(__file__).parents[2] / "docs" / "mqtt.md"
UP = "landbridge up --mqtt 1883\n"


@pytest.mark.timeout(180)
def test_a_reader_follows_the_guide(tmp_path: Path) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LANDBRIDGE_")},
        "LANDBRIDGE_HOME": str(tmp_path / "home"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }

    def run(command: str | list[str]) -> str:
        done = subprocess.run(
            command, shell=isinstance(command, str), check=False, capture_output=True, text=True,
            timeout=LIMIT, env=environment, cwd=tmp_path,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    blocks = re.findall(r"^```(\w+)\n(.*?)^```", GUIDE.read_text(), re.S | re.M)
    assert ("sh", UP) in blocks
    options = ["--data", str(tmp_path / "data"), "--port", "0", "--http-port", "0", "--mqtt", "0", "--json"]
    with subprocess.Popen(
        ["landbridge", "up", *options], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as up:
        try:
            assert up.stdout is not None
            port = str(urlsplit(json.loads(up.stdout.readline())["mqtt"]).port)
            for language, text in blocks:
                text = text.replace("1883", port)
                if language == "python":
                    (tmp_path / "device.py").write_text(text)
                    run([sys.executable, "device.py"])
                elif language == "console":
                    for line in text.splitlines():
                        run(line.removeprefix("$ "))
                elif text.startswith("export TOKEN="):
                    environment["TOKEN"] = run(f'{text}printf %s "$TOKEN"')
                elif language == "sh" and text != UP.replace("1883", port) and shutil.which("mosquitto_pub"):
                    assert "21.5" in run(text)
        finally:
            up.terminate()
            up.wait(LIMIT)
