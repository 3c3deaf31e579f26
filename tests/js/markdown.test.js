import assert from "node:assert/strict";
import test from "node:test";
import { toBlocks } from "../../static/src/chat/markdown.js";

const html = (text) => toBlocks(text).map((block) => block.html).join("");

test("raw HTML is text", () => {
  const payloads = [
    "<img src=x onerror=alert(1)>",
    "<svg/onload=alert(1)>",
    "a <script>alert(1)</script> b",
    "<style>*{display:none}</style>",
    "<iframe src=//evil.example>",
    "<details open ontoggle=alert(1)>",
    "- item <img src=x onerror=alert(1)>",
    "| a |\n| - |\n| <img src=x> |",
    "<div>\n\n<b onmouseover=alert(1)>x</b>\n\n</div>",
  ];
  for (const payload of payloads) {
    assert.doesNotMatch(html(payload), /<(?:img|svg|script|style|iframe|details|div|b)\b/i, payload);
  }
  assert.match(html("<img src=x onerror=alert(1)>"), /&lt;img src=x onerror=alert\(1\)&gt;/);
});

test("half a tag over two deltas is text at every length", () => {
  const payload = "x <img src=x onerror=alert(1)> y";
  for (let length = 1; length <= payload.length; length++) assert.doesNotMatch(html(payload.slice(0, length)), /<img/);
});

test("links keep http, https and mailto; other schemes keep only their words", () => {
  assert.match(html("[a](https://example.org/?q=1&r=2)"), /<a href="https:\/\/example.org\/\?q=1&amp;r=2">a<\/a>/);
  assert.match(html("[m](mailto:a@example.org)"), /href="mailto:/);
  for (const href of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "&#106;avascript:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc", "//evil.example", "/admin/", "<java\tscript:alert(1)>"]) {
    assert.doesNotMatch(html(`[words](${href})`), /<a /, href);
    assert.match(html(`[words](${href})`), /words/);
  }
});

test("images are never loaded: they become links, or their words", () => {
  assert.equal(html("![cat](https://evil.example/a.png)").includes("<img"), false);
  assert.match(html("![cat](https://evil.example/a.png)"), /<a href="https:\/\/evil.example\/a.png">cat<\/a>/);
  assert.match(html("![cat](data:image/png;base64,xx)"), /cat/);
});

test("a quote in a link or a fence can't leave its attribute", () => {
  assert.doesNotMatch(html('[a](https://e.org/"onmouseover="alert(1))'), /"onmouseover/);
  assert.match(html('```py" onload="x\n1\n```'), /class="language-py"/);
});

test("code keeps its text, closed or not", () => {
  assert.match(html("```python\nif a < b:\n    pass\n```"), /<pre><code class="language-python">if a &lt; b:\n {4}pass\n<\/code><\/pre>/);
  assert.match(html("```\nhalf"), /<pre><code class="language-">half/);
});

test("a growing text makes its last block only", () => {
  const first = toBlocks("one\n\ntwo");
  const second = toBlocks("one\n\ntwo and more", first);
  assert.equal(second[0], first[0]);
  assert.notEqual(second[1], first[1]);
  assert.equal(second[1].html, "<p>two and more</p>\n");
});

test("a link defined later reaches the blocks before it", () => {
  const before = toBlocks("see [it][1]\n\nmore");
  const after = toBlocks("see [it][1]\n\nmore\n\n[1]: https://example.org\n", before);
  assert.match(after[0].html, /href="https:\/\/example.org"/);
});
