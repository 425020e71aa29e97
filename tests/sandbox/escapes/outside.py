"""Attempts to reach services of the host: sockets by path, by abstract name, by port."""

from __future__ import annotations

from tests.sandbox.escapes.attempt import ISOLATED, NETLESS, attempt

OWN = "its own network namespace"

attempt(
    "abstract socket",
    "connect to an abstract Unix socket of the host, and send it a datagram",
    OWN,
    """
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    with socket.socket(socket.AF_UNIX, kind) as s:
        want("connected", s.connect, "\\0" + world["abstract"])
""",
    under=ISOLATED,
    control=True,
)
attempt(
    "path socket",
    "connect to Unix sockets of the host in visible directories",
    "with any network but the host's, the sockets bound when the sandbox starts are covered",
    """
for path in world["sockets"]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        want(path, s.connect, path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        want(path, s.connect, "/proc/self/root" + path)
""",
    under=ISOLATED,
    control=True,
)
attempt(
    "agents' sockets",
    "talk to ssh-agent, D-Bus, docker and the like in /tmp and /run",
    "/tmp and /run are its own, under every network",
    """
for path in world["agents"]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        want(path, s.connect, path)
for directory, _, names in os.walk("/run"):
    for name in names:
        if stat.S_ISSOCK(os.lstat(f"{directory}/{name}").st_mode):
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
                want(name, s.connect, f"{directory}/{name}")
""",
)
attempt(
    "loopback service",
    "connect to a port on the host's loopback, by every address that might lead there",
    OWN + "; the uplink, if there is one, maps no address to the host's loopback",
    """
import select
addresses = {"127.0.0.1", "127.0.0.2", "0.0.0.0", "10.0.2.2", "169.254.1.1", "169.254.2.1"}
for line in open("/proc/net/route").read().splitlines()[1:]:
    addresses.add(socket.inet_ntoa(struct.pack("<I", int(line.split()[2], 16))))
for address in addresses:
    with socket.socket() as s:
        s.settimeout(0.5)
        want(address, s.connect, (address, world["port"]))
with socket.socket(socket.AF_INET6) as s:
    s.settimeout(0.5)
    want("::1", s.connect, ("::ffff:127.0.0.1", world["port"]))
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    attempt(s.sendto, b"escaped", ("127.0.0.1", world["udp"]))
""",
    under=NETLESS,
    control=True,
)
attempt(
    "the world",
    "reach the internet, directly and by name",
    OWN + " with nothing but a loopback",
    """
with socket.socket() as s:
    s.settimeout(0.5)
    want("connected", s.connect, ("1.1.1.1", 53))
    if s.connect_ex(("192.0.2.1", 9)) not in (errno.ENETUNREACH, errno.EHOSTUNREACH):
        got("a way out")
if set(os.listdir("/sys/class/net")) and len(open("/proc/net/dev").read().splitlines()) > 3:
    got("another interface")
""",
    under=("none", "strict"),
)
attempt(
    "other kinds of sockets",
    "sockets that belong to no network namespace or reach the kernel: vsock, packet, raw, AF_ALG, Bluetooth, XDP",
    "the filter allows Unix, IPv4, IPv6 and netlink; raw ones need a capability",
    """
for family in (40, 17, 38, 31, 44, 29, 15, 24, 37, 39, 42, 43):
    for kind in (1, 2, 3, 5):
        want((family, kind), lambda: socket.socket(family, kind).close())
for family in (socket.AF_INET, socket.AF_INET6):
    want("raw", lambda: socket.socket(family, socket.SOCK_RAW, 1).close())
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
    s.bind((0, 0))
    s.send(struct.pack("=IHHIIBBHiII", 32, 16, 5, 1, 0, 0, 0, 0, 1, 0, 1))
    if struct.unpack_from("=i", s.recv(4096), 16)[0] == 0:
        got("changed an interface")
""",
    under=ISOLATED,
)
attempt(
    "loopback through the proxy",
    "have the proxy connect to the host's loopback, other addresses and metadata services, in many spellings",
    "the proxy checks names and addresses, and connects to the address that it checked",
    """
proxy = ("127.0.0.1", int(os.environ["http_proxy"].rpartition(":")[2]))
own = socket.gethostname()
hosts = ["127.0.0.1", "localhost", "LOCALHOST.", "127.1", "0x7f.1", "2130706433", "017700000001", "0", "0.0.0.0", own]
hosts += ["[::1]", "[::]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"]
hosts += ["a.localhost", "169.254.169.254", "metadata.google.internal", "[fe80::1]", "127.0.0.1%00.example.org"]
def ask(request):
    with socket.create_connection(proxy, 20) as s:
        s.sendall(request)
        return s.recv(4096)
for host in hosts:
    port = world["port"]
    for head in (f"CONNECT {host}:{port}", f"GET http://{host}:{port}/", f"GET http://example.org@{host}:{port}/"):
        status = ask(f"{head} HTTP/1.1\\r\\nHost: example.org\\r\\n\\r\\n".encode()).split()[1:2]
        if status not in ([b"403"], [b"400"], [b"502"]):
            got(f"{head}: {status}")
    name = host.strip("[]").encode()
    if ask(b"\\5\\1\\0\\5\\1\\0\\3" + bytes([len(name)]) + name + port.to_bytes(2, "big"))[2:4] == b"\\5\\0":
        got(f"socks {host}")
for address in ("169.254.169.254", "0.0.0.0", "198.18.0.1", "127.0.0.2"):
    with socket.socket() as s:
        s.settimeout(20)
        try:
            s.connect((address, world["port"]))
            s.sendall(b"x")
            if s.recv(1):
                got(address)
        except (ConnectionError, OSError):
            pass
""",
    under=("proxy",),
)
