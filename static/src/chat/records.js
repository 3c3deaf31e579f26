// What the HTTP API gives, made into what the chat page holds. The one place that knows the API's field names. Pure.
import { newAnswer } from "./answer.js";

/** A row of the conversation list. */
export function toConversation(raw) {
  return { id: String(raw.id), title: raw.title ?? "", updatedAt: Date.parse(raw.updated_at ?? raw.created_at ?? "") || 0 };
}

const OVER = new Set(["completed", "finished", "cancelled", "failed", "expired"]);

/** One turn of a conversation: the user's words and the answer as far as the server's row knows it. */
export function toTurn(raw) {
  const answer = newAnswer(raw.ref ?? `row:${raw.request_id}`);
  answer.requestId = String(raw.request_id);
  if (OVER.has(raw.state)) {
    answer.phase = raw.state === "failed" || raw.state === "expired" ? "failed" : "finished";
    answer.text = raw.text ?? "";
    answer.finishReason = raw.finish_reason || null;
    answer.usage = raw.usage ?? null;
    answer.receipt = raw.receipt ?? null;
    answer.tokens = raw.usage?.completion_tokens ?? 0;
    answer.error = answer.phase === "failed" ? (raw.error ?? { code: "internal", message: "" }) : null;
  } else {
    answer.phase = "queued"; // its log has the rest: resume from 0
  }
  return { user: raw.user ?? "", answer, depth: raw.depth ?? null };
}

/** The turns of a conversation, oldest first. An answer that was made again hides the one it replaces. */
export function toTurns(rawTurns) {
  const turns = [];
  for (const turn of rawTurns.map(toTurn)) {
    while (turns.length && turn.depth !== null && turns.at(-1).depth >= turn.depth) turns.pop();
    turns.push(turn);
  }
  return turns;
}

/** Conversations by day: [[group, rows]] with group "today", "yesterday" or "older", newest first. */
export function byDay(conversations, now = new Date()) {
  const today = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  const yesterday = new Date(now.getFullYear(), now.getMonth(), now.getDate() - 1).getTime();
  const groups = { today: [], yesterday: [], older: [] };
  for (const row of [...conversations].sort((a, b) => b.updatedAt - a.updatedAt)) {
    groups[row.updatedAt >= today ? "today" : row.updatedAt >= yesterday ? "yesterday" : "older"].push(row);
  }
  return Object.entries(groups).filter(([, rows]) => rows.length);
}

/** A title from the first words of a message, one line, at most `longest` characters. */
export function titleFrom(text, longest = 60) {
  const line = text.trim().replace(/\s+/g, " ");
  const characters = [...line];
  return characters.length <= longest ? line : `${characters.slice(0, longest - 1).join("")}…`;
}
