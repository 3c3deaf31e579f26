// HTML text to DOM that cannot run, load or disguise anything; then the code blocks get their frame.
import DOMPurify from "dompurify";
import { t } from "../i18n/index.js";
import { highlight, languageName } from "./highlight.js";

const ALLOWED = {
  ALLOWED_TAGS: [
    ..."p br hr strong em del a ul ol li blockquote pre code span".split(" "),
    ..."h1 h2 h3 h4 h5 h6 table thead tbody tr th td".split(" "),
  ],
  ALLOWED_ATTR: ["href", "start", "align", "class"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_DATA_ATTR: false,
  ALLOW_ARIA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") {
    node.setAttribute("rel", "noopener noreferrer nofollow");
    node.setAttribute("target", "_blank");
  }
  // Classes come from the highlighter and the fence alone; a page's own are not for a model to wear.
  if (node.hasAttribute("class") && !/^(?:hljs|language-)[\w +#.-]*$/.test(node.className)) node.removeAttribute("class");
});

function element(tag, className, text) {
  const node = document.createElement(tag);
  node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

/** <pre><code class="language-…"> becomes a figure: the language's name, a copy button, highlighted code. */
function frameCode(pre) {
  const code = pre.querySelector("code");
  if (!code) return;
  const lang = code.className.replace(/^language-/, "");
  code.removeAttribute("class");
  const coloured = highlight(code.textContent, lang);
  if (coloured !== null) code.replaceChildren(DOMPurify.sanitize(coloured, ALLOWED));
  const copy = element("button", "code-copy", t("chat.copyCode"));
  copy.type = "button";
  copy.dataset.copyCode = "";
  const bar = element("figcaption", "code-bar");
  bar.append(element("span", "code-lang", lang ? languageName(lang) : t("chat.plainCode")), copy);
  const figure = element("figure", "code");
  pre.replaceWith(figure);
  pre.tabIndex = 0; // so that the keyboard can scroll it
  figure.append(bar, pre);
}

/** A DocumentFragment of clean nodes. */
export function toNodes(html) {
  const fragment = DOMPurify.sanitize(html, ALLOWED);
  for (const pre of fragment.querySelectorAll("pre")) frameCode(pre);
  for (const table of fragment.querySelectorAll("table")) {
    const box = element("div", "table-box");
    table.replaceWith(box);
    box.append(table);
  }
  return fragment;
}
