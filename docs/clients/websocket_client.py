"""Ask Batchscope over its WebSocket API, print the answer as it comes, and go on after a broken connection.

    pip install websockets
    BATCHSCOPE_KEY=... python websocket_client.py "Why is the sky blue?"

BATCHSCOPE_URL is ws://127.0.0.1:8000 if unset. Ctrl-C cancels the request. The protocol: docs/websocket.md.
"""

import asyncio
import json
import os
import signal
import sys

from websockets import ConnectionClosed, connect

URL = os.environ.get("BATCHSCOPE_URL", "ws://127.0.0.1:8000") + "/ws/v1/"
HEADERS = {"Authorization": f"Bearer {os.environ['BATCHSCOPE_KEY']}"}
FOR_GOOD = (4401, 4403, 1008)  # close codes after which coming back is of no use


async def ask(question: str) -> str:
    request_id, seq = None, 0
    messages = [{"role": "user", "content": question}]
    generate = {"type": "generate", "ref": "1", "messages": messages, "params": {"max_tokens": 512}}
    async for socket in connect(URL, additional_headers=HEADERS):  # again and again, until we return

        def send(socket=socket, **message):
            return asyncio.ensure_future(socket.send(json.dumps(message)))

        def cancel():
            send(type="cancel", request_id=request_id)

        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, cancel)  # Ctrl-C
        try:
            # For several answers at once, send several, each with a ref of its own: `accepted` has the ref and the
            # request_id, and all that follows has the request_id.
            resume = {"type": "resume", "request_id": request_id, "after_seq": seq}
            await send(**resume if request_id else generate)
            async for frame in socket:
                match json.loads(frame):
                    case {"type": "accepted", "request_id": request_id}:
                        pass
                    case {"type": "delta", "seq": seq, "text": text}:
                        print(text, end="", flush=True)
                        await send(type="ack", request_id=request_id, seq=seq)
                    case {"type": "finished", "finish_reason": reason}:
                        return reason
                    case {"type": "error", "message": message}:
                        sys.exit(message)
        except ConnectionClosed:
            if socket.close_code in FOR_GOOD:
                sys.exit(socket.close_reason)
            print(socket.close_reason or "", file=sys.stderr)  # such as: too many sockets
            await asyncio.sleep(1)


if __name__ == "__main__":
    print(f"\n[{asyncio.run(ask(' '.join(sys.argv[1:])))}]", file=sys.stderr)
