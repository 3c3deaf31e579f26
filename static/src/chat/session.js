// The socket and the answers that are on their way. Knows the protocol's flow: generate, accepted, deltas, resume.
import { t } from "../i18n/index.js";
import { count } from "../lib/format.js";
import { Socket } from "../lib/socket.js";
import { concerns, isOver, newAnswer, reduceAnswer, resumeMessage } from "./answer.js";
import { fetchTurns, touch } from "./conversations.js";
import { toMessages, toParams } from "./params.js";
import * as store from "./store.js";

// How much is read between two acknowledgements; the server sends at most 256 KiB beyond the last.
const ACK_FRAMES = 32;
const ACK_LENGTH = 32 << 10;
const RESTARTS = 1012; // code of a close

/** Turns with an unfinished answer, of any conversation: leaving a conversation does not stop its answer. */
const active = new Set();
const unacknowledged = { frames: 0, length: 0 };
/** Answers that are over and read once more, by request id. Each is asked for once. */
const rereading = new Map();

/** The server takes nothing new any more: what is asked from now on waits for the next connection. */
let draining = false;

export const socket = new Socket("/ws/chat/", {
  onMessage: hear,
  onLive: resumeAll,
  onDown: (code) => code === RESTARTS && drain(),
});

/** Follows a turn whose answer is not over, from the seq it has. */
export function follow(turn) {
  active.add(turn);
  const message = resumeMessage(turn.latest);
  if (message) socket.send(message);
}

/** Asks for an answer to `text` after `before` (the turns it follows). The turn shows at once. */
export function ask(conversation, before, text) {
  const settings = store.settings.value;
  const ref = crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;
  const plain = before.map((turn) => ({ user: turn.user, answer: turn.latest }));
  const message = {
    type: "generate",
    ref,
    messages: toMessages(settings, plain, text),
    params: toParams(settings),
    conversation,
  };
  const turn = store.makeTurn(text, newAnswer(ref, performance.now()), { message, maxTokens: settings.max_tokens });
  active.add(turn);
  if (draining) drain(); // the words again: sending has taken them away
  else if (socket.live) turn.sent = socket.send(message); // else it is sent when there is a connection
  store.news.value = "";
  return turn;
}

export function stop(turn) {
  const answer = turn.latest;
  if (isOver(answer)) return;
  if (answer.requestId === null && !(socket.live && turn.sent)) {
    store.setAnswer(turn, { ...answer, phase: "finished", finishReason: "cancelled" }); // it never left this page
    active.delete(turn);
    return;
  }
  store.setAnswer(turn, { ...answer, stopping: true });
  if (answer.requestId) socket.send({ type: "cancel", request_id: answer.requestId });
}

/** An answer from before this page was loaded: which iteration made what is in its log, for as long as that is kept. */
export function findMarks(turn) {
  const { requestId, marks } = turn.latest;
  if (!requestId || marks.length || rereading.has(requestId)) return;
  if (socket.send({ type: "resume", request_id: requestId, after_seq: 0 })) rereading.set(requestId, { turn, read: newAnswer("") });
}

function reread(message) {
  const entry = rereading.get(message.request_id);
  entry.read = reduceAnswer({ ...entry.read, requestId: message.request_id }, message);
  if (!isOver(entry.read)) return;
  const { turn, read } = entry;
  if (read.text === turn.latest.text) store.setAnswer(turn, { ...turn.latest, marks: read.marks });
}

function hear(message, length = 0) {
  acknowledge(message, length);
  if (rereading.has(message.request_id)) {
    reread(message);
    return;
  }
  if (message.type === "hello") {
    store.model.value = message.model ?? "";
    return;
  }
  if (message.type === "draining") {
    drain();
    return;
  }
  for (const turn of active) {
    if (concerns(turn.latest, message)) {
      if (isTooLate(turn, message)) turn.sent = false;
      else apply(turn, message);
      return;
    }
  }
  if (message.type === "error" && !message.request_id) store.notice.value = message;
}

function drain() {
  draining = true;
  store.notice.value = { code: "draining", message: t("chat.draining") };
}

/** It was sent before this page heard that the server drains, and not taken: it is sent again over the next connection. */
function isTooLate(turn, { type, code }) {
  return type === "error" && code === "draining" && turn.latest.requestId === null && !turn.latest.stopping;
}

function apply(turn, message) {
  const before = turn.latest;
  const after = reduceAnswer(before, message, performance.now());
  if (after === before) return;
  store.setAnswer(turn, after, { soon: message.type === "delta" });
  if (after.gap && !before.gap) socket.send(resumeMessage(after));
  if (after.requestId && !before.requestId && after.stopping) {
    socket.send({ type: "cancel", request_id: after.requestId });
  }
  if (after.phase === "streaming" && before.phase !== "streaming") store.news.value = t("news.answering");
  if (isOver(after)) settle(turn, after);
}

function settle(turn, answer) {
  active.delete(turn);
  touch(turn.message?.conversation ?? null);
  store.news.value =
    answer.phase === "failed" ? t("news.failed") : t("news.finished", { tokens: count(answer.tokens) });
}

/** Flow control: tells the server how far this page has read. One `ack` stands for all that came before it. */
function acknowledge({ type, request_id, seq }, length) {
  if (type !== "delta" && type !== "finished") return;
  unacknowledged.frames += 1;
  unacknowledged.length += length;
  if (type === "delta" && unacknowledged.frames < ACK_FRAMES && unacknowledged.length < ACK_LENGTH) return;
  Object.assign(unacknowledged, { frames: 0, length: 0 });
  socket.send({ type: "ack", request_id, seq });
}

/** The connection is back: every answer that was on its way goes on from the last seq this page has. */
function resumeAll() {
  draining = false;
  for (const [id, { read }] of rereading) if (!isOver(read)) rereading.delete(id);
  store.notice.value = store.notice.value?.code === "draining" ? null : store.notice.value;
  for (const turn of active) {
    store.setAnswer(turn, { ...turn.latest, gap: false });
    const message = resumeMessage(turn.latest);
    if (message) {
      socket.send(message);
      if (turn.latest.stopping) socket.send({ type: "cancel", request_id: message.request_id });
    } else {
      void recover(turn);
    }
  }
}

/** The line broke between `generate` and `accepted`: was it taken? The server's rows know; if not, send it again. */
async function recover(turn) {
  const { message } = turn;
  try {
    const rows = turn.sent && message.conversation ? await fetchTurns(message.conversation) : [];
    const row = rows.find((candidate) => candidate.answer.ref === message.ref);
    if (isOver(turn.latest) || turn.latest.requestId) return;
    if (row) {
      apply(turn, { type: "accepted", ref: message.ref, request_id: row.answer.requestId });
      follow(turn);
      return;
    }
  } catch {
    return; // the next reconnection asks again
  }
  turn.sent = socket.send(message) || turn.sent;
}
