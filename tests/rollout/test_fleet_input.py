# SPDX-License-Identifier: GPL-2.0-only
"""faultline-rollout and bad input: credentials, answers of Prometheus, files and command lines.

The fuzzer has a fixed seed: each run tries the same.
"""
from __future__ import annotations

import base64
import contextlib
import http.server
import json
import os
import pathlib
import random
import re
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from rollout import fleet_lab
from rollout.prometheus_lab import answer_of

from faultline_rollout import Error, config, design, experiment, hosts, planning
from faultline_rollout.prometheus import Prometheus

STATUSES = {0, 2, 10, 20, 30, 40, 130, 141}
HOSTS = fleet_lab.fleet(4)
GOOD = answer_of([{"metric": {"instance": "host00:9100"}, "values": [[0, "1"], [60, "2"]]}])


@contextlib.contextmanager
def server(answer: Callable[[http.server.BaseHTTPRequestHandler], None],
           tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server that answers by itself; gives its address."""
    class Handler(http.server.BaseHTTPRequestHandler):
        """One question."""

        def do_POST(self) -> None:
            """Answer a query."""
            self.rfile.read(int(self.headers["Content-Length"]))
            answer(self)

        def log_message(self, *_: object) -> None:
            """Keep requests out of the test's output."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as found:
        if tls:
            # The handshake is in the thread of the connection, which ends with it.
            found.socket = tls.wrap_socket(found.socket, True, do_handshake_on_connect=False)
            setattr(found, "handle_error", lambda *_: None)
        threading.Thread(target=found.serve_forever, daemon=True,
                         kwargs={"poll_interval": 0.01}).start()
        yield f"http{'s' if tls else ''}://127.0.0.1:{found.server_port}"
        found.shutdown()


def send(handler: http.server.BaseHTTPRequestHandler, status: int, text: bytes = b"",
         **headers: str) -> None:
    """Send an answer."""
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(text)


@pytest.fixture(name="conf")
def fixture_conf(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """The operator's configuration, which does not exist yet."""
    path = tmp_path / "rollout.toml"
    monkeypatch.setenv("FAULTLINE_ROLLOUT_CONFIG", str(path))
    config._load.cache_clear()
    return path


def table(url: str) -> Any:
    """The values of a query."""
    return Prometheus(url).table("latency", HOSTS, 0, 2, 60)


# --- Credentials

@pytest.mark.parametrize("lines,name,value", [
    ('bearer_token = "abc"', "Authorization", "Bearer abc"),
    ('bearer_token_file = "token"', "Authorization", "Bearer from-a-file"),
    ('username = "u"\npassword = "p:w"', "Authorization",
     "Basic " + base64.b64encode(b"u:p:w").decode()),
    ('headers = { X-Scope-OrgID = "team" }', "X-Scope-OrgID", "team")])
def test_credentials(conf: pathlib.Path, lines: str, name: str, value: str) -> None:
    """Credentials of the configuration go to the server that they are for, and to no other."""
    seen: list[str | None] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        seen.append(handler.headers[name])
        send(handler, 200 if seen[-1] == value else 401, GOOD)

    token = conf.parent / "token"
    token.write_text("from-a-file\n")
    token.chmod(0o600)
    with server(answer) as url, server(answer) as other:
        conf.write_text(f'[[prometheus]]\nurl = "{url}/prefix"\n{lines}\n')
        conf.chmod(0o600)
        assert table(url)[0].tolist() == [1, 2]
        with pytest.raises(Error, match=r"refuses access \(HTTP status 401\): put the credentials"):
            table(other)
    assert seen == [value, None]


@pytest.fixture(name="certificates", scope="module")
def fixture_certificates(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """An authority ca, a server and a client that it has signed, and a stranger."""
    folder = tmp_path_factory.mktemp("certificates")
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2")
    for name in ("ca", "server", "client", "stranger"):
        words = ["req", "-x509", "-noenc", *curve, "-subj", f"/CN={name}", "-keyout",
                 f"{name}.key", "-out", f"{name}.pem"]
        if name in ("server", "client"):
            words += ["-CA", "ca.pem", "-CAkey", "ca.key", "-addext", "subjectAltName=IP:127.0.0.1",
                      "-addext", "basicConstraints=critical,CA:FALSE"]
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)
    subprocess.run(["openssl", "ec", "-in", "client.key", "-aes128", "-passout", "pass:word",
                    "-out", "locked.key"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("files,problem", [
    ("ca_file = ca.pem; cert_file = client.pem; key_file = client.key", ""),
    ("ca_file = ca.pem", "TLS: .*give ca_file or cert_file"),
    ("ca_file = ca.pem; cert_file = stranger.pem; key_file = stranger.key",
     "TLS: .*give ca_file or cert_file"),
    ("cert_file = client.pem; key_file = client.key", "TLS: .*self.signed certificate"),
    ("ca_file = ca.pem; cert_file = client.pem; key_file = locked.key",
     "cannot read the certificates for https://127.0.0.1")])
def test_client_certificate(conf: pathlib.Path, certificates: pathlib.Path,
                            version: ssl.TLSVersion, files: str, problem: str) -> None:
    """A server that asks for a certificate gets it; another one, or none, is named at once."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(certificates / "ca.pem"))
    tls.load_cert_chain(certificates / "server.pem", certificates / "server.key")
    tls.verify_mode = ssl.CERT_REQUIRED
    tls.minimum_version = tls.maximum_version = version
    asked: list[str] = []

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        peer: Any = handler.connection.getpeercert()
        asked.append(peer["subject"][0][0][1])
        send(handler, 200, GOOD)

    with server(answer, tls) as url:
        lines = re.sub(r"(\w+) = ([^;]+)(; |$)", rf'\1 = "{certificates}/\2"\n', files)
        conf.write_text(f'[[prometheus]]\nurl = "{url}"\n{lines}')
        conf.chmod(0o600)
        if not problem:
            assert table(url)[0].tolist() == [1, 2] and asked == ["client"]
            return
        with pytest.raises(Error, match=problem):
            table(url)
    assert not asked


@pytest.mark.parametrize("status", [401, 403])
def test_access_is_refused(conf: pathlib.Path, status: int) -> None:
    """Refused access is not taken for a server that is down, and is asked for once."""
    count = [0]

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        count[0] += 1
        send(handler, status)

    with server(answer) as url, pytest.raises(Error) as caught:
        table(url)
    assert str(conf) in str(caught.value) and "start it" not in str(caught.value)
    assert count[0] == 1


def test_redirect(conf: pathlib.Path) -> None:
    """A redirect to a page that asks to sign in is named, and not followed."""
    conf.unlink(missing_ok=True)
    with server(lambda handler: send(
            handler, 302, Location="https://sso.example/login?next=x")) as url, \
            pytest.raises(Error, match="redirects to https://sso.example/login, as a page to sign"):
        table(url)


@pytest.mark.parametrize("warning,good", [
    ("a store is down: no route to host", False),
    ("PromQL info: metric might not be a counter", True)])
def test_answer_with_a_warning(conf: pathlib.Path, warning: str, good: bool) -> None:
    """An answer for a part of the hosts is refused, with what the server says about it."""
    conf.unlink(missing_ok=True)
    text = json.dumps({**json.loads(GOOD), "warnings": [warning]}).encode()
    with server(lambda handler: send(handler, 200, text)) as url:
        if good:
            assert table(url)[0].tolist() == [1, 2]
            return
        with pytest.raises(Error, match=f"its answer is not complete: {warning}"):
            table(url)


@pytest.mark.parametrize("text,mode,reason", [
    ('[[prometheus]]\nurl = "http://x"\nbearer_token = "t"', 0o644, "is readable by all"),
    ('[transport]\nparallel = 3', 0o666, "can be changed by others"),
    ('[[prometheus]]\nurl = "http://x"\nbearer_token_file = "open"', 0o600, "is readable by all"),
    ('[[prometheus]]\nurl = "http://x"\nbearer_token_file = "none"', 0o600, "cannot read"),
    ('[[prometheus]]\nurl = "http://x"\nusername = "u"', 0o600, "needs a password"),
    ('[[prometheus]]\nurl = "http://x"\nheaders = { "A B" = "c" }', 0o600, "must be a table"),
    ('[prometheus]\nurl = "http://x"', 0o600, "with two brackets"),
    ('[[prometheus]]\nurl = "http://x"\nca_file = "none"', 0o600, "cannot read the certificates"),
    ('[transport]\ncommand = ["ssh"]', 0o600, 'has no "{command}"'),
    ('[transport]\nparallel = 0', 0o600, "must be from 1 to 1000"),
    ('[transports]', 0o600, "do you mean 'transport'"), ("{", 0o600, "Invalid statement")])
def test_configuration(conf: pathlib.Path, text: str, mode: int, reason: str) -> None:
    """A configuration with a mistake, or that others can read or write, gives one clear error."""
    (conf.parent / "open").write_text("t")
    (conf.parent / "open").chmod(0o644)
    conf.write_text(text)
    conf.chmod(mode)
    with pytest.raises(Error, match=re.escape(reason)) as caught:
        table("http://x")
    assert str(conf) in str(caught.value) and "\n" not in str(caught.value)


def test_configuration_of_the_manual(conf: pathlib.Path) -> None:
    """The configuration that the manual shows can be read."""
    page = (fleet_lab.FLEET / "faultline-experiment.5").read_text()
    text = page.split(".Ss Configuration")[1].split(".Bd -literal -offset indent\n")[1]
    conf.write_text(text.split(".Ed")[0])
    conf.chmod(0o600)
    (conf.parent / "token").write_text("t")
    (conf.parent / "token").chmod(0o600)
    found = config.load()
    assert found.parallel == 64 and found.persist == 300
    assert dict(config.server("https://prometheus.example:9090/x").headers) == {
        "X-Scope-OrgID": "team", "Authorization": "Bearer t"}


# --- Histories and files with one mistake

@pytest.mark.parametrize("values,reason", [
    ("0", "gives no values above 0, and the effect is a ratio"),
    ("-3", "gives no values above 0, and the effect is a ratio"),
    ("NaN", "all are NaN or infinite, as those of a histogram without traffic"),
    ("+Inf", "all are NaN or infinite, as those of a histogram without traffic")])
def test_history_without_a_value(conf: pathlib.Path, monkeypatch: pytest.MonkeyPatch, values: str,
                                 reason: str) -> None:
    """A primary metric that has no logarithm anywhere is named as that."""
    del conf
    monkeypatch.setattr(Prometheus, "table", lambda *_: np.full(
        (4, 20), float(values) if values not in ("NaN", "+Inf") else np.nan))
    monkeypatch.setattr(Prometheus, "series", lambda *_: [
        {"metric": {"instance": "host00:9100"}, "values": [[0, values]]}])
    with pytest.raises(Error, match=reason):
        planning.history(experiment.parse(fleet_lab.source("x"), ""), HOSTS, 6000, 1e6)


@pytest.mark.parametrize("changes,reason", [
    ({"expires": "9000d"}, "expires: is more than 30 d"),
    ({"washout": "1s"}, "washout: is shorter than 5 s"),
    ({"slot": "\u0661\u0660min"}, "is not a duration"),
    ({"selector": 'job="x'}, "selector: 'job=\"x' is not a list of label matchers"),
    ({"selector": '{job="x"}'}, "without braces"),
    ({"max_hosts": 10 ** 15}, "max_hosts: is more than 100000"),
    ({"primary": {"query": "x[$slot]", "better": "lower", "margin": "99.99%"}}, "more than 50%"),
    ({"primary": {"query": 'x{a="$slot"}', "better": "lower", "margin": "1%"}},
     "does not contain [$slot]"),
    ({"transport": {"command": ["ssh", "{command}"]}}, 'has no "{address}"'),
    ({"prometheus": "http://u:p@host"}, "prometheus: has a password, and everybody can read"),
    ({"prometheus": "prometheus:9090"}, "is not an address: write https://HOST:PORT"),
    ({"prometheus": "http://host:port"}, "is not an address: write https://HOST:PORT"),
    ({"alerts": ["High Error"]}, "'High Error' is not an alert"),
    ({"canary": ["60%"]}, "canary: '60%' is neither a number of hosts nor a percentage"),
    ({"allow_missing": "30%"}, "allow_missing: is more than 20%")])
def test_odd_values(changes: dict[str, Any], reason: str) -> None:
    """A value that makes no sense is refused with its key."""
    with pytest.raises(Error, match=re.escape(reason)):
        experiment.parse(fleet_lab.source("x") | changes, "")


def test_nested_brackets(tmp_path: pathlib.Path) -> None:
    """Files with thousands of nested brackets give one clear error."""
    path = tmp_path / "x.toml"
    path.write_text("a = " + "[" * 5000)
    with pytest.raises(Error, match="x.toml: "):
        experiment.load(path)
    plan = tmp_path / "x.json"
    plan.write_text("[" * 100000)
    with pytest.raises(Error, match="is not a plan"):
        design.read(plan)


def test_byte_order_mark(tmp_path: pathlib.Path) -> None:
    """A file of an editor that writes a byte order mark is read."""
    page = (fleet_lab.FLEET / "faultline-experiment.5").read_text()
    path = tmp_path / "x.toml"
    path.write_text("\ufeff" + page.split(".Bd -literal -offset indent\n")[1].split(".Ed")[0])
    assert experiment.load(path)[0].name == "jvm-spf-1"


# --- Fuzzing

class Caller:
    """Runs faultline-rollout here, and checks how it ends."""

    def __init__(self, capsys: pytest.CaptureFixture[str],
                 monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys = capsys
        self._monkeypatch = monkeypatch

    def __call__(self, *words: object) -> int:
        """Run it: a documented status, an error of one line, and nothing for the terminal."""
        status, out, errors = fleet_lab.call(self._capsys, self._monkeypatch, words)
        assert status in STATUSES, words
        assert "Traceback" not in errors, (words, errors)
        if status == 2:
            first, *more = errors.splitlines()
            assert first.startswith("faultline-rollout"), (words, errors)
            # A list of hosts is indented.
            assert all(line.startswith("  ") for line in more), (words, errors)
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", errors + out), words
        return status


@pytest.fixture(name="call")
def fixture_call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
                 conf: pathlib.Path) -> Caller:
    """No host is reached, and no time passes."""
    conf.write_text("")
    conf.chmod(0o600)
    monkeypatch.setattr(hosts.Transport, "run", lambda _, host, *rest: hosts.Answer(
        host, 1, "", "error: \033[2J"))
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(planning, "REPLAYS", 2)
    monkeypatch.chdir(conf.parent)
    return Caller(capsys, monkeypatch)


def mutated(chance: random.Random, text: str) -> str:
    """The text with a few characters or lines changed, lost, repeated or swapped."""
    odd = ("\0", "\033[2J", "\u202e", "'", '"', "[", "]", "{", "}", "=", "-1", "1e999", "nan", "#",
           "\ud800", "$slot", "\n", "\u0661", "999999999999999999999", "../", "true", "--all")
    for _ in range(chance.randint(1, 3)):
        place, kind = chance.randrange(len(text) + 1), chance.randrange(5)
        if kind == 0:
            text = text[:place] + chance.choice(odd) + text[place:]
        elif kind == 1:
            text = text[:place] + text[place + chance.randint(1, 9):]
        else:
            lines = text.split("\n")
            line = chance.randrange(len(lines))
            if kind == 2:
                del lines[line]
            elif kind == 3:
                lines.insert(chance.randrange(len(lines)), lines[line])
            else:
                key, equals, _ = lines[line].partition("=")
                lines[line] = key + equals + " " + chance.choice(odd)
            text = "\n".join(lines)
    return text


def write(path: pathlib.Path, text: str) -> None:
    """Write text that need not be Unicode."""
    path.write_bytes(text.encode("utf-8", "surrogatepass"))


def test_fuzzed_files(call: Caller) -> None:
    """No experiment file, inventory, plan or run file gives a traceback."""
    chance = random.Random(38)
    page = (fleet_lab.FLEET / "faultline-experiment.5").read_text()
    toml = page.split(".Bd -literal -offset indent\n")[1].split(".Ed")[0].replace(
        "http://prometheus:9090", "http://127.0.0.1:9")
    rows = "".join(f"h{number} machine_type=x role=y\n" for number in range(8))
    plan = fleet_lab.make_plan("x", prometheus="http://127.0.0.1:9").text()
    run = json.dumps({"plan": "0", "start": 1, "complete": 2, "name": "x", "hosts": []})
    path, inventory = pathlib.Path("x.toml"), pathlib.Path("inventory.ini")
    other = pathlib.Path("p.json")
    # The time of a process is not what is tested.
    os.environ["PATH"], old = "/nowhere", os.environ["PATH"]
    try:
        for number in range(60):
            write(path, toml if number % 3 == 0 else mutated(chance, toml))
            write(inventory, mutated(chance, rows) if number % 3 == 0 else rows)
            assert call("plan", path, "-o", "out.json", "--force") == 2
            write(other, mutated(chance, plan))
            write(pathlib.Path("p.run.json"), mutated(chance, run))
            for verb in ("start", "status", "verdict", "stop"):
                call(verb, other)
    finally:
        os.environ["PATH"] = old


WORDS = ("plan", "trial", "start", "status", "verdict", "stop", "x.toml", "p.json", "/", "",
         "--at", "--start", "--every", "--lead", "--rings", "--soak", "--allow-missing", "--blind",
         "--parallel", "--json", "--watch", "--dry", "--force", "--history", "--seed", "--html",
         "--plot", "--inventory", "--name", "--all", "-o", "--", "-1", "0", "1", "5%", "101%",
         "nan", "1e999", "2026-11-27", "2026-11-27T00:00Z", "x; reboot", "\033[2J", "\udcff",
         "\u0661", "6.12.118-faultline1", "--wait", "1s", "--no-hosts", "--detach", "--reboot")


def test_fuzzed_command_lines(call: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """No command line gives a traceback, and a part of an option is not that option."""
    monkeypatch.setenv("PATH", "/nowhere")
    chance = random.Random(38)
    pathlib.Path("p.json").write_text(
        fleet_lab.make_plan("x", prometheus="http://127.0.0.1:9").text())
    pathlib.Path("x.toml").write_text("name = 1\n")
    for _ in range(400):
        call(*chance.choices(WORDS[:6], k=1), *chance.choices(WORDS, k=chance.randint(0, 5)))
    assert call("start", "p.json", "--dry") == 2
    for moment in ("-5", "2026-10-25T02:30", "\u0661"):
        assert call("verdict", "p.json", "--at", moment) == 2


def values_of(chance: random.Random, depth: int = 0) -> Any:
    """A value of JSON."""
    kind = chance.randrange(8 if depth < 3 else 5)
    if kind < 5:
        return chance.choice([None, True, 0, -1, 1e308, "", "1", "NaN", "+Inf", "\033[2J", "x",
                              10 ** 400, "1e999", "instance"])
    if kind < 7:
        return [values_of(chance, depth + 1) for _ in range(chance.randrange(3))]
    return {chance.choice(["metric", "values", "value", "data", "result", "instance", "warnings",
                           "status"]): values_of(chance, depth + 1)
            for _ in range(chance.randrange(3))}


def test_fuzzed_answers(call: Caller) -> None:
    """No answer of Prometheus gives a traceback: in plan, start, status, or verdict."""
    chance = random.Random(38)
    text = [b""]

    def answer(handler: http.server.BaseHTTPRequestHandler) -> None:
        send(handler, chance.choice([200] * 9 + [400, 404, 422, 500]), text[0])

    def damaged() -> bytes:
        series = {"metric": {"instance": "host00:9100", "release": "6.12"},
                  "values": [[fleet_lab.START + 300, "1"]]}
        kind = chance.randrange(6)
        if kind == 0:
            return json.dumps(values_of(chance)).encode()
        if kind == 1:
            series[chance.choice(["metric", "values"])] = values_of(chance)
        elif kind == 2:
            series["metric"] = {"instance": values_of(chance)}
        elif kind == 3:
            series["values"] = [[values_of(chance), values_of(chance)]]
        elif kind == 4:
            whole = bytearray(answer_of([series]))
            whole[chance.randrange(len(whole))] = chance.randrange(256)
            return bytes(whole)
        return json.dumps({"data": {"result": [series] * chance.randint(1, 2)},
                           "warnings": values_of(chance)}).encode()

    with server(answer) as url:
        pathlib.Path("inventory.ini").write_text("".join(
            f"{host.name} instance={host.instance}\n" for host in HOSTS))
        source = fleet_lab.source("x", prometheus=url, alerts=["High"])
        pathlib.Path("p.json").write_text(
            fleet_lab.make_plan("x", prometheus=url, alerts=["High"]).text())
        lines = {key: value for key, value in source.items() if not isinstance(value, dict | list)}
        pathlib.Path("x.toml").write_text(
            "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
            + 'primary = {query = "x[$slot]", better = "lower", margin = "1%"}\n'
            'mechanism = {query = "x[$slot]", min = 1}\n')
        for _ in range(30):
            text[0] = damaged()
            assert call("plan", "x.toml", "-o", "out.json", "--force") == 2
            call("start", "p.json", "--dry-run")
            for verb in ("status", "verdict"):
                call(verb, "p.json", "--start", fleet_lab.START, "--at", fleet_lab.START + 700)
