"""Real clients through the network ``proxy``: curl, pip, npm, git, Node and Python, from a server with TLS."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from forkwise import Branch, Confinement
from tests.need import need

pytestmark = pytest.mark.integration

SERVER = "127.0.0.9"
DENIED = "127.0.0.10"


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make what the server serves: a Python package, one for Node, and a repository."""
    root = tmp_path_factory.mktemp("site")
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "VALUE = 7\n")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "tiny.py,,\n")
    (root / "simple/tiny").mkdir(parents=True)
    (root / "simple/tiny/tiny-1.0-py3-none-any.whl").write_bytes(wheel.getvalue())
    (root / "simple/tiny/index.html").write_text('<a href="tiny-1.0-py3-none-any.whl">tiny-1.0-py3-none-any.whl</a>')
    source = tmp_path_factory.mktemp("source")
    subprocess.run(["git", "init", "-q", str(source)], check=True)
    (source / "a.txt").write_text("one\n")
    git = ["git", "-C", str(source), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run([*git, "add", "."], check=True)
    subprocess.run([*git, "commit", "-qm", "one"], check=True)
    subprocess.run(["git", "clone", "-q", "--bare", str(source), str(root / "repo.git")], check=True)
    subprocess.run(["git", "-C", str(root / "repo.git"), "update-server-info"], check=True)
    return root


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need(shutil.which("openssl") is not None, "openssl is not installed")
    path = tmp_path_factory.mktemp("certificate") / "server.pem"
    words = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=test"
    public = path.with_suffix(".crt")
    command = [
        *words.split(),
        "-addext",
        f"subjectAltName=IP:{SERVER},DNS:localhost",
        "-keyout",
        str(path),
        "-out",
        str(public),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture
def address(site: Path, certificate: Path) -> Iterator[str]:
    """Serve the site over TLS, with the Node package that needs the address in its description."""
    server = ThreadingHTTPServer((SERVER, 0), partial(Handler, directory=str(site)))
    server.daemon_threads = True
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.with_suffix(".crt"), certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    url = f"https://{SERVER}:{server.server_port}"
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in {"package.json": '{"name":"tiny","version":"1.0.0"}', "index.js": "module.exports=7"}.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    (site / "tiny.tgz").write_bytes(packed.getvalue())
    digest = base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
    version = {
        "name": "tiny",
        "version": "1.0.0",
        "dist": {"tarball": f"{url}/tiny.tgz", "integrity": f"sha512-{digest}"},
    }
    (site / "tiny").write_text(
        json.dumps({"name": "tiny", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}})
    )
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield url
    server.shutdown()
    server.server_close()
    thread.join()


PIP = "{python} -m pip install -q --target got --no-deps --index-url $URL/simple --cert $CERT tiny && cat got/tiny.py"
NPM = (
    "npm install --no-audit --no-fund --fetch-retries 0 --registry $URL --cafile $CERT --cache /tmp/npm tiny "
    "&& cat node_modules/tiny/index.js"
)
PYTHON = (
    "{python} -c \"import os, ssl, urllib.request as r; print(r.urlopen(os.environ['URL'] + '/simple/tiny/', "
    "context=ssl.create_default_context(cafile=os.environ['CERT'])).status)\""
)
CLIENTS = {
    "curl": ("curl", "curl -sS --cacert $CERT $URL/repo.git/HEAD", "ref: refs/heads/"),
    "pip": ("python3", PIP, "VALUE = 7"),
    "npm": ("npm", NPM, "module.exports=7"),
    "git": ("git", "git -c http.sslCAInfo=$CERT clone -q $URL/repo.git got && cat got/a.txt", "one"),
    "python": ("python3", PYTHON, "200"),
}
BARE = Confinement.standard(network="proxy", allowed_hosts=(SERVER,), passed=("PATH",))


@pytest.mark.parametrize("name", CLIENTS)
def test_clients_work_and_are_denied(
    branch: Branch, address: str, certificate: Path, name: str, tmp_path: Path
) -> None:
    program, line, expected = CLIENTS[name]
    need(shutil.which(program) is not None, f"{program} is not installed")
    public = str(certificate.with_suffix(".crt"))
    given = {"URL": address, "CERT": public, "HOME": "/tmp", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_RETRIES": "0"}
    confinement = replace(BARE, given=given, shown=(public,))
    command = ["sh", "-c", line.replace("{python}", sys.executable)]
    done = branch.run(command, confinement=confinement, text=True)
    assert expected in done.stdout, done
    given = {**given, "URL": address.replace(SERVER, DENIED)}
    refused = replace(BARE, given=given, shown=(public,))
    done = branch.run(["sh", "-c", f"rm -rf got node_modules; {command[2]}"], confinement=refused, text=True)
    assert done.returncode != 0


def test_node_fetch_is_redirected(branch: Branch, address: str, certificate: Path) -> None:
    need(shutil.which("node") is not None, "node is not installed")
    public = str(certificate.with_suffix(".crt"))
    given = {"URL": address, "NODE_EXTRA_CA_CERTS": public}
    confinement = replace(BARE, given=given, shown=(public,))
    script = "fetch('https://name.invalid/').catch(e => console.log(e.cause.code))"
    done = branch.run(["node", "-e", script], confinement=confinement, text=True)
    assert "ECONNRESET" in done.stdout or "UND_ERR_SOCKET" in done.stdout, done  # resolved, connected, then denied
    through = (
        "const t = require('tls'), h = require('http');"
        "const u = new URL(process.env.URL), p = new URL(process.env.HTTPS_PROXY);"
        "h.request({host: p.hostname, port: p.port, method: 'CONNECT', path: u.host}).on('connect', (r, socket) => {"
        "const c = t.connect({socket, host: u.hostname}, () => c.write('GET /simple/tiny/ HTTP/1.0\\r\\n\\r\\n'));"
        "c.on('data', d => console.log(d.toString().split('\\n')[0]))}).end()"
    )
    done = branch.run(["node", "-e", through], confinement=confinement, text=True)
    assert "200" in done.stdout, done
