"""A Python whose large libraries are imported once, for the many jobs of a workflow.

``python`` in `command`'s folder hands its script to a process that forks. A job then starts in a
tenth of a second in place of six seconds of a core.
"""

from __future__ import annotations

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

LIBRARIES = (
    "torch",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "datasets",
    "h5py",
    "matplotlib.pyplot",
    "mteb",
    "pyarrow.parquet",
    "scipy.stats",
    "sklearn.linear_model",
)
CLIENT = """\
#!{python} -IS
import json, os, socket, sys
if not sys.argv[1].endswith(".py"):
    os.execv("{python}", ["{python}", *sys.argv[1:]])
server = socket.socket(socket.AF_UNIX)
server.connect("{address}")
socket.send_fds(server, [b"0"], [0, 1, 2])
server.sendall(json.dumps([sys.argv[1:], os.getcwd(), dict(os.environ)]).encode())
server.shutdown(socket.SHUT_WR)
sys.exit(int(server.recv(9) or 1))
"""


def command(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Write ``python`` into a folder and start the process behind it.

    Parameters
    ----------
    environment : mapping
        What libraries read when they are imported, such as HF_HOME.
    """
    address = folder / "socket"
    client = folder / "python"
    client.write_text(CLIENT.format(python=sys.executable, address=address))
    client.chmod(0o755)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(address))
    listening.listen()
    with listening:
        return subprocess.Popen(
            [sys.executable, __file__], stdin=listening.fileno(), env={**os.environ, **environment}
        )


def serve(listening: socket.socket) -> None:
    """Run each script that a client names in a fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        client, _ = listening.accept()
        if os.fork():
            client.close()
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        listening.close()
        run(client)


def run(client: socket.socket) -> None:
    """Be ``python SCRIPT`` with a client's arguments, folder, environment and streams."""
    _, streams, _, _ = socket.recv_fds(client, 1, 3)
    with client.makefile("rb") as sent:
        arguments, folder, environment = json.loads(sent.read())
    for target, stream in enumerate(streams):
        os.dup2(stream, target)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    paths = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    sys.argv, sys.path[:1] = arguments, [str(Path(arguments[0]).resolve().parent), *paths]
    status: object = 1
    try:
        runpy.run_path(arguments[0], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code or 0
    except Exception:
        traceback.print_exc()
    client.sendall(b"%d" % (status if isinstance(status, int) else 1))
    sys.exit()


if __name__ == "__main__":
    for library in LIBRARIES:
        __import__(library)
    serve(socket.socket(fileno=os.dup(0)))
