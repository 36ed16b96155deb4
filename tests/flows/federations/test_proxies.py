"""Runs of a federation through real proxies: tinyproxy on the way out, nginx and haproxy that end TLS at the relay."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from fedcore.errors import RelayError
from fedcore.identity.invitation import Invitation
from fedcore.identity.keys import Identity
from fedcore.relay.members import COORDINATOR
from fedcore.relay.relay import Quotas
from fedcore.relay.sessions import FORM
from tasks.relay.client import RelayClient
from tests.doors import issued
from tests.flows.federations import proxies
from tests.flows.federations.parties import Heart, free_port
from tests.flows.federations.test_federation import answers, result
from tests.patience import HANGS

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

ELSEWHERE = "127.0.0.2"
"""An address of this machine that a client takes for another one: it exempts only 127.0.0.1 from proxies."""
ROUNDS = 200


@pytest.fixture
def authority(tmp_path):
    """The certificate of an authority that no machine knows by itself."""
    return issued(tmp_path, "authority", None)


def joined(heart: Heart) -> Heart:
    heart.carry()
    for name in heart.names:
        heart.join(name)
    heart.serve()
    return heart


def interrupted(heart: Heart, stop, start) -> None:
    """A run during which `stop` and `start` are called; each release has to be charged once."""
    heart.config(rounds=ROUNDS)
    driver = heart.coordinator.start("run", "heart.yaml")
    try:
        until = time.monotonic() + HANGS
        while heart.silos["hungary"].log("silo").count("answer of run") < 10:
            assert time.monotonic() < until and driver.poll() is None, heart.coordinator.log("run")
            time.sleep(0.05)
        stop()
        time.sleep(5.0)
        start()
        assert driver.wait(timeout=HANGS) == 0, heart.coordinator.log("run")
    finally:
        driver.kill()
        driver.wait(timeout=HANGS)
    assert result(heart)["w"]
    for name in heart.names:
        assert answers(heart, name) == [(1, number) for number in range(1, ROUNDS + 1)]
        assert "Traceback" not in heart.silos[name].log("silo")


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_silos_and_driver_go_out_through_a_proxy_that_asks_for_a_password(tmp_path, authority, scheme):
    certificate = issued(tmp_path, "relay", authority, hosts=[ELSEWHERE])
    pair = ("--certificate", str(certificate), "--private-key", str(certificate.with_suffix(".key")))
    port = free_port()
    proxy = proxies.tinyproxy(tmp_path / "proxy", port)
    through = f"http://hospital:secret@127.0.0.1:{proxy.port}"
    heart = Heart(
        tmp_path / "heart",
        address=f"{scheme}://{ELSEWHERE}:{port}",
        added={"SSL_CERT_FILE": str(authority), "HTTP_PROXY": through, "HTTPS_PROXY": through},
        host=ELSEWHERE,
        port=port,
        carrying=pair if scheme == "https" else (),
    )
    proxy.start()
    try:
        interrupted(joined(heart), proxy.stop, proxy.start)
        # Every connection to the relay is one of the proxy's: what was not sent through it waited until it was back.
        log = (proxy.folder / "tinyproxy.log").read_text()
        word = "CONNECT" if scheme == "https" else "POST"
        assert log.count(f"{word} ") >= 3 and f"{ELSEWHERE}:{heart.port}" in log
        assert all("none answers" in heart.silos[name].log("silo") for name in heart.names)
    finally:
        heart.close()
        proxy.stop()


@pytest.mark.parametrize("made", [proxies.nginx, proxies.haproxy], ids=["nginx", "haproxy"])
def test_tls_ends_at_a_proxy_before_a_relay_without_it(tmp_path, authority, made, monkeypatch):
    """With the recipe's settings, which the deployment page shows. The relay is killed meanwhile."""
    monkeypatch.setenv("SSL_CERT_FILE", str(authority))
    certificate = issued(tmp_path, "localhost", authority, hosts=["localhost"])
    port = free_port()
    proxy = made(tmp_path / "proxy", port, certificate)
    heart = Heart(
        tmp_path / "heart",
        address=f"https://localhost:{proxy.port}",
        added={"SSL_CERT_FILE": str(authority)},
        port=port,
    )
    proxy.start()
    try:
        joined(heart)
        keys = heart.coordinator.folder / "home" / "federations" / "heart" / "coordinator.keys"
        federation = Invitation.read(Path(heart.invitation)).federation
        chief = RelayClient(heart.address, federation, COORDINATOR, Identity.stored(keys))
        with pytest.raises(RelayError) as found:
            chief.deposit(b"x" * Quotas().one)
        assert found.value.code == FORM, found.value  # the relay has read the largest body
        interrupted(heart, lambda: heart.kill("relay"), heart.carry)
        for name in heart.names:
            log = heart.silos[name].log("silo")
            assert "a proxy on the way, answered with status 50" in log and "status 4" not in log
    finally:
        heart.close()
        proxy.stop()
