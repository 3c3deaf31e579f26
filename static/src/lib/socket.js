// A WebSocket that comes back. Knows how to connect, wait and try again; must not know what the messages mean.
import { signal } from "@preact/signals";
import { retryDelay } from "./backoff.js";

const PING_EVERY_MS = 20_000;
const HELLO_WITHIN_MS = 10_000;
const SILENCE_MS = 45_000; // nothing heard for so long, pongs included: the line is dead
export const SIGNED_OUT = 4401;
const FORBIDDEN = 4403;
export const LATER = 1013; // too many sockets, mostly

/**
 * `onMessage` gets each message and how long its frame was.
 * `state` is one of: {name: "connecting"}, {name: "live"}, {name: "waiting", until, code}, {name: "offline"} (the browser
 * has no network), {name: "closed", code} (signed out or forbidden: it will not come back by itself).
 */
export class Socket {
  constructor(path, { onMessage, onLive, onDown }) {
    this.url = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}${path}`;
    this.handlers = { onMessage, onLive, onDown };
    this.state = signal({ name: "connecting" });
    this.attempt = 0;
    this.timer = null;
    this.connection = null;
    addEventListener("online", () => this.retryNow());
    addEventListener("offline", () => this.state.value.name === "waiting" && this.#set({ name: "offline" }));
    addEventListener("pagehide", () => this.connection?.close(1000));
    addEventListener("pageshow", (event) => event.persisted && this.retryNow());
    this.#connect();
  }

  get live() {
    return this.state.value.name === "live";
  }

  /** Sends a message; false when there is no connection to send it on. */
  send(message) {
    if (this.connection?.readyState !== WebSocket.OPEN) return false;
    this.connection.send(JSON.stringify(message));
    return true;
  }

  retryNow() {
    if (this.live || this.state.value.name === "connecting") return;
    this.attempt = 0;
    this.#connect();
  }

  #set(state) {
    this.state.value = state;
  }

  #connect() {
    clearTimeout(this.timer);
    this.#set({ name: "connecting" });
    const connection = new WebSocket(this.url);
    this.connection = connection;
    connection.onmessage = (event) => {
      if (this.connection === connection) this.#hear(event.data);
    };
    connection.onclose = (event) => {
      if (this.connection === connection) this.#down(event.code);
    };
    this.timer = setTimeout(() => {
      if (this.connection === connection && !this.live) this.#abandon();
    }, HELLO_WITHIN_MS);
  }

  #hear(data) {
    this.heardAt = Date.now();
    const message = JSON.parse(data);
    if (message.type === "hello") {
      this.attempt = 0;
      clearTimeout(this.timer);
      this.#set({ name: "live" });
      clearInterval(this.pinger);
      this.pinger = setInterval(() => this.#ping(), PING_EVERY_MS);
      this.handlers.onMessage(message);
      this.handlers.onLive?.();
    } else if (message.type !== "pong") {
      this.handlers.onMessage(message, data.length);
    }
  }

  #ping() {
    if (Date.now() - this.heardAt > SILENCE_MS) this.#abandon();
    else this.send({ type: "ping", t: Date.now() });
  }

  /** A connection that says nothing is taken for dead at once: its own close may be minutes away. */
  #abandon() {
    const dead = this.connection;
    this.#down(1006);
    dead.close();
  }

  #down(code) {
    clearInterval(this.pinger);
    clearTimeout(this.timer);
    this.connection = null;
    this.handlers.onDown?.(code);
    if (code === SIGNED_OUT || code === FORBIDDEN) {
      this.#set({ name: "closed", code });
      return;
    }
    const delay = retryDelay(this.attempt++);
    this.#set(navigator.onLine ? { name: "waiting", until: Date.now() + delay, code } : { name: "offline" });
    this.timer = setTimeout(() => this.#connect(), delay);
  }
}
