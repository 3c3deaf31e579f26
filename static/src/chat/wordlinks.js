// Makes each word of a finished answer a quiet link to the iteration that made it. For staff, who may follow it.
// One tab stop an answer; the arrow keys go from word to word.
import { t } from "../i18n/index.js";
import { finder, iterationLink, pieces } from "./words.js";

const LEFT_ALONE = "a, button, figcaption";

function textNodes(root) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT, (node) =>
    node.parentElement.closest(LEFT_ALONE) ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT,
  );
  const found = [];
  while (walker.nextNode()) found.push(walker.currentNode);
  return found;
}

function link(word, n, place) {
  const node = document.createElement("a");
  node.className = "word";
  node.href = iterationLink(place, n);
  node.tabIndex = -1;
  node.draggable = false; // a drag selects text, as anywhere
  node.textContent = word;
  node.title = t("receipt.iteration", { n });
  return node;
}

/** Links the words under `root`, whose source and marks are given. place: {engine, epoch}. */
export function linkWords(root, source, marks, place) {
  const iterationOf = finder(source, marks);
  for (const node of textNodes(root)) {
    const parts = pieces(node.data).map(({ text, isWord }) => {
      const n = isWord ? iterationOf(text) : null;
      return n ? link(text, n, place) : document.createTextNode(text);
    });
    if (parts.some((part) => part.nodeType === Node.ELEMENT_NODE)) node.replaceWith(...parts);
  }
  const first = root.querySelector("a.word");
  if (first) first.tabIndex = 0;
}

const STEPS = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 };

/** Moves the one tab stop among the words under `root`. */
export function onWordKey(event) {
  const here = event.target.closest?.("a.word");
  if (!here || event.ctrlKey || event.metaKey || event.altKey || event.shiftKey) return;
  const words = [...event.currentTarget.querySelectorAll("a.word")];
  const at = words.indexOf(here);
  const to = event.key === "Home" ? 0 : event.key === "End" ? words.length - 1 : at + (STEPS[event.key] ?? 0);
  const next = words[Math.max(0, Math.min(words.length - 1, to))];
  if (next === here || !next) return;
  event.preventDefault();
  here.tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}
