"""What is tried from within containers: each a script whose last line says what came of it."""

_REQUEST = """
import http.client, ssl, sys
host, port, path, length = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
context = ssl.create_default_context(cafile="/keys/ca.crt")
try:
    if sys.argv[5:]:
        line = http.client.HTTPConnection(host, port, timeout=8)
    else:
        line = http.client.HTTPSConnection(host, port, timeout=8, context=context)
    line.putrequest("POST", path, skip_accept_encoding=True)
    line.putheader("Content-Type", "application/protobuf")
    line.putheader("Content-Length", length)
    line.endheaders()
    print(line.getresponse().status)
except OSError as error:
    print("unreachable")
"""
_RAW = """
import socket, ssl, sys
context = ssl.create_default_context(cafile="/keys/ca.crt")
line = context.wrap_socket(socket.create_connection(("gate", 8443), 8), server_hostname="gate")
line.sendall(sys.argv[1].encode().decode("unicode_escape").encode("latin-1"))
said = b""
try:
    while data := line.recv(65536):
        said += data
except OSError:
    pass
print(" ".join(word.split()[0].decode() for word in said.split(b"HTTP/1.1")[1:]))
"""
_FLOOD = """
import http.client, socket, ssl
context = ssl.create_default_context(cafile="/keys/ca.crt")
held = []
for _ in range(31):
    line = context.wrap_socket(socket.create_connection(("gate", 8443), 8), server_hostname="gate")
    head = "POST /v1/fleet/push-object HTTP/1.1\\r\\nHost: gate\\r\\nContent-Length: 16000000"
    line.sendall(head.encode() + b"\\r\\n\\r\\n")
    try:
        for _ in range(15):
            line.sendall(bytes(1000000))
    except OSError:
        pass
    held.append(line)
try:
    line = http.client.HTTPSConnection("gate", 8443, timeout=60, context=context)
    kind = {"Content-Type": "application/protobuf"}
    line.request("POST", "/v1/fleet/push-object", bytes(5000000), kind)
    print(line.getresponse().status)
except OSError as error:
    print("unreachable")
"""
_LIST = "POST {}/v1/control/list-runs HTTP/1.1\\r\\nHost: gate\\r\\nContent-Length: 0"
_END = "\\r\\nConnection: close\\r\\n\\r\\n"
_PULL = (
    "POST /v1/fleet/pull-messages HTTP/1.1\\r\\nHost: gate\\r\\n"
    "Content-Type: application/protobuf\\r\\n"
)

#: Name: service, script, arguments, what it must print.
PROBES: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "a node reaches no SuperLink but through the gate": (
        "supernode-1", _REQUEST, ("superlink", "8000", "/v1/control/list-runs", "0"), "unreachable",
    ),
    "a client app does not reach the gate": (
        "client-1", _REQUEST, ("gate", "8443", "/v1/fleet/pull-messages", "0"), "unreachable",
    ),
    "a client app does not reach another node": (
        "client-1", _REQUEST, ("supernode-2", "9094", "/health", "0"), "unreachable",
    ),
    "the gate is a gate: without a key the fleet API says no": (
        "supernode-1", _REQUEST, ("gate", "8443", "/v1/fleet/pull-messages", "0"), "401",
    ),
    "the gate speaks TLS alone": (
        "supernode-1", _REQUEST, ("gate", "8443", "/v1/fleet/pull-messages", "0", "plain"), "400",
    ),
    "the gate reads no path of an address": (
        "supernode-1", _RAW, (_LIST.format("https://superlink:8000") + _END,), "403",
    ),
    "the gate looks at the second request of a connection too": (
        "supernode-1", _RAW,
        (f"{_PULL}Content-Length: 0\\r\\n\\r\\n{_LIST.format('')}{_END}",), "401 403",
    ),
    "the gate takes no body with two lengths": (
        "supernode-1", _RAW,
        (f"{_PULL}Content-Length: 5\\r\\nTransfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\n"
         f"{_LIST.format('')}{_END}",), "400",
    ),
    # By the SuperLink, which finds no message in five million zeros.
    "bodies that never end leave others' requests answered": ("supernode-1", _FLOOD, (), "400"),
    "the gate takes no body of a gigabyte": (
        "supernode-1", _REQUEST, ("gate", "8443", "/v1/fleet/push-object", str(1 << 30)), "413",
    ),
    **{
        f"the gate lets nobody through to {path}": (
            "supernode-1", _REQUEST, ("gate", "8443", path, "0"), "403",
        )
        for path in (
            "/v1/control/list-runs", "/v1/control/register-node", "/v1/runtime/acquire-task",
            "/v1/fleet/../control/list-runs", "/v1/fleet/%2e%2e/control/list-runs",
            "/v1/control/../fleet/pull-messages", "//v1/control/list-runs",
            "/v1/fleet/..%2fcontrol/list-runs", "/V1/control/list-runs", "/v1/fleet/",
        )
    },
}  # fmt: skip
