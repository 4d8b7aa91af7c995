"""`talekeeper serve --lan`: a phone's way in, over TLS on a real socket."""

from __future__ import annotations

import re
import ssl
from pathlib import Path

import httpx

from tests.support.process import serving
from tests.support.server import ok

ADA = {"username": "Ada", "password": "a fine long password"}
PHONE = "192.168.7.20"


def test_a_phone_that_trusts_the_root_signs_in_and_streams_a_turn(tmp_path: Path) -> None:
    settings: dict[str, str | int] = {"lan": "true", "lan_port": 0, "allowed_hosts": PHONE}
    with serving(tmp_path, demo_tokens_per_second="0", **settings) as served:
        said = next(line for line in served.output if "on this network" in line)
        port = re.search(rf"on this network: https://{PHONE}:(\d+)", said)[1]  # type: ignore[index]

        with httpx.Client(base_url=served.url, trust_env=False) as here:
            root = here.get("/api/v1/lan/certificate")
        assert root.headers["content-type"] == "application/x-x509-ca-cert"
        trusting = ssl.create_default_context(cadata=root.content)
        with httpx.Client(
            base_url=f"https://localhost:{port}/api/v1", trust_env=False, verify=trusting
        ) as phone:
            made = phone.post("/accounts", json=ADA)
            ok(made, 201)
            assert "__Host-talekeeper_session" in made.cookies
            # It would hold for every port of the machine's name.
            assert "strict-transport-security" not in made.headers
            phone.headers["x-csrftoken"] = phone.cookies["csrftoken"]
            chat = ok(phone.post("/chats", json={}), 201)
            turn = phone.post(f"/chats/{chat['id']}/turns", json={"text": "/demo long 20"})
            assert "event: turn.completed" in turn.text

            view = ok(phone.get("/admin/lan"))
            assert view["page"]["url"] == f"https://{PHONE}:{port}"
            assert view["certificate"]["url"] == f"https://{PHONE}:{port}/api/v1/lan/certificate"
            by_address = phone.get(f"https://127.0.0.1:{port}/api/v1/instance")
            assert ok(by_address)["sign_up"] == "invitation"
            assert served.stop() == 0
            # The phone, which is asleep by now, has not been waited for.
            assert "shutdown exceeded" not in served.log.read_text()
