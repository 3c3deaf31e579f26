// Ask Batchscope over its WebSocket API, print the answer as it comes, and go on after a broken connection.
//
//     BATCHSCOPE_KEY=... node websocket_client.mjs "Why is the sky blue?"
//
// Node 22 or newer; nothing to install: its own WebSocket takes headers (a browser's does not).
// BATCHSCOPE_URL is ws://127.0.0.1:8000 if unset. Ctrl-C cancels the request. The protocol: docs/websocket.md.
const url = `${process.env.BATCHSCOPE_URL ?? "ws://127.0.0.1:8000"}/ws/v1/`;
const headers = { Authorization: `Bearer ${process.env.BATCHSCOPE_KEY}` };
const forGood = [4401, 4403, 1008]; // close codes after which coming back is of no use
const messages = [{ role: "user", content: process.argv.slice(2).join(" ") }];
let socket, requestId, seq = 0;

const send = (type, message) => socket.send(JSON.stringify({ type, ...message }));
const end = (status, words) => (console.error(words), process.exit(status));

// What to do with each type of frame. For several answers at once, send several `generate`, each with a ref of its own:
// `accepted` has the ref and the request_id, and all that follows has the request_id.
const on = {
  hello() {
    if (requestId) send("resume", { request_id: requestId, after_seq: seq });
    else send("generate", { ref: "1", messages, params: { max_tokens: 512 } });
  },
  accepted: (frame) => (requestId = frame.request_id),
  delta(frame) {
    process.stdout.write(frame.text);
    seq = frame.seq;
    send("ack", { request_id: requestId, seq });
  },
  finished: (frame) => end(0, `\n[${frame.finish_reason}]`),
  error: (frame) => end(1, frame.message),
};

function connect() {
  socket = new WebSocket(url, { headers });
  socket.onmessage = ({ data }) => {
    const frame = JSON.parse(data);
    on[frame.type]?.(frame);
  };
  socket.onclose = ({ code, reason }) => {
    if (forGood.includes(code)) end(1, reason);
    console.error(reason); // such as: too many sockets
    setTimeout(connect, 1000);
  };
}

process.on("SIGINT", () => send("cancel", { request_id: requestId }));
connect();
