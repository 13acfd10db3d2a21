"""Runs a cell in a Jupyter kernel for each line of standard input, and prints how long it took as JSON."""

import json
import sys
import time

from jupyter_client.manager import start_new_kernel

PATIENCE = 60


def cell(client):
    """Runs print(1); spans in milliseconds until its output is there, and until the kernel is idle and has answered."""
    start = time.perf_counter()
    request = client.execute("print(1)")
    first = None
    while True:
        message = client.get_iopub_msg(timeout=PATIENCE)
        if message["parent_header"].get("msg_id") != request:
            continue
        if message["msg_type"] == "stream":
            # The line may come in two parts.
            assert message["content"]["text"] in ("1", "1\n", "\n"), message
            first = first or time.perf_counter()
        elif message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
            break
    while True:
        reply = client.get_shell_msg(timeout=PATIENCE)
        # The start may have left answers to questions about the kernel.
        if reply["parent_header"]["msg_id"] == request:
            break
    assert reply["content"]["status"] == "ok", reply
    end = time.perf_counter()
    return {"first_output_ms": (first - start) * 1e3, "finished_ms": (end - start) * 1e3}


manager, client = start_new_kernel()
try:
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps(cell(client)), flush=True)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
