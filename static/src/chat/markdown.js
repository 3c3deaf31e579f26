// Markdown to HTML text, block by block. Raw HTML in it is shown as text, and images become links: nothing is ever
// loaded from elsewhere because a model said so. Knows no DOM; sanitise.js is the second lock on the same door.
import { Marked } from "marked";

const SAFE_LINK = /^(?:https?:\/\/|mailto:)/i;

const ENTITIES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;" };
export const escapeHtml = (text) => text.replace(/[&<>"']/g, (c) => ENTITIES[c]);

/** A link if the scheme is allowed (http, https, mailto), else its words alone. `inner` is HTML already. */
function link(href, inner) {
  // Browsers drop tabs, newlines and control characters before they read the scheme; so do we.
  const bare = href.replace(/[\u0000-\u0020\u007f]/g, "");
  return SAFE_LINK.test(bare) ? `<a href="${escapeHtml(bare)}">${inner}</a>` : inner;
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escapeHtml(text),
    link({ href, tokens }) {
      return link(href, this.parser.parseInline(tokens));
    },
    image: ({ href, text }) => link(href, escapeHtml(text || href)),
    code: ({ text, lang }) => {
      const name = /^[\w+#.-]{1,30}/.exec(lang ?? "")?.[0] ?? "";
      return `<pre><code class="language-${escapeHtml(name)}">${escapeHtml(text)}\n</code></pre>`;
    },
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

/**
 * The top-level blocks of a text, in order: [{raw, html}]. `previous` is what the last call gave: a block whose source
 * has not changed keeps its object, so that a growing answer costs its last block only.
 */
export function toBlocks(text, previous = []) {
  const tokens = marked.lexer(text);
  const links = Object.keys(tokens.links).length; // a new link definition may change any block
  return tokens
    .filter((token) => token.type !== "space" && token.type !== "def")
    .map((token, i) => {
      const before = previous[i];
      if (before && before.raw === token.raw && before.links === links) return before;
      return { raw: token.raw, links, html: marked.parser([token]) };
    });
}
