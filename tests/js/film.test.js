import assert from "node:assert/strict";
import test from "node:test";
import { Film } from "../../static/src/scheduler/film.js";
import { columnX, layout } from "../../static/src/scheduler/geometry.js";

/** As much of a page as a film needs. A canvas notes what is painted on it. */
class Element {
  style = {};
  children = [];
  painted = new Map(); // column -> where it was drawn last, CSS pixels
  append(child) {
    this.children.push(child);
    child.parent = this;
  }
  appendChild(child) {
    this.append(child);
    return child;
  }
  remove() {
    this.parent.children.splice(this.parent.children.indexOf(this), 1);
  }
  getContext() {
    return { canvas: this, setTransform() {}, fillRect: () => this.painted.clear() };
  }
}

const number = (words) => Number(/-?[\d.]+/.exec(words)[0]);

/** Shows columns up to `until`; returns how many were painted, after checking that each stands where it belongs. */
function show(film, tape, geometry, until) {
  let count = 0;
  const paint = (ctx, scene, from, to) => {
    count += to - from;
    for (let column = from; column < to; column++) ctx.canvas.painted.set(column, columnX(scene.geometry, column, scene.until));
  };
  film.show({ tape, geometry, until, theme: { colour: {} } }, 100, paint);
  const shift = number(film.film.style.transform);
  const seen = new Map();
  for (const { painted, style } of film.film.children) {
    for (const [column, x] of painted) {
      if (x >= 0 && x < number(style.width)) seen.set(column, x + number(style.left) + shift + geometry.left);
    }
  }
  for (let column = until - geometry.columns; column < until; column++) assert.equal(seen.get(column), columnX(geometry, column, until), `${column}`);
  return count;
}

test("every column shown lies where it belongs, wherever the picture is moved", () => {
  globalThis.document = { createElement: () => new Element() };
  for (const ratio of [1, 2]) {
    for (const zoom of [0, 3, 8]) {
      const geometry = layout(900, 16, zoom, ratio);
      const [film, tape] = [new Film(new Element()), {}];
      const stops = [0, 1, 5, 40, 41, 44, 300, 2000, 2001, 1990, 1200, 1201, 5000, 5003];
      for (const until of stops) show(film, tape, geometry, until);
      const tiles = film.film.children.length;
      assert.ok(tiles * 160 <= 900 + 3 * 160, `${tiles}`);
    }
  }
});

test("a picture that runs on paints a few columns a frame, and all of them only where they no longer hold", () => {
  globalThis.document = { createElement: () => new Element() };
  const geometry = layout(900, 16);
  const [film, tape] = [new Film(new Element()), {}];
  assert.ok(show(film, tape, geometry, 1000) >= geometry.columns);
  for (let until = 1001; until < 1300; until++) assert.ok(show(film, tape, geometry, until) <= 8);
  assert.equal(show(film, tape, geometry, 1299), 0);
  film.spoil();
  assert.ok(show(film, tape, geometry, 1299) >= geometry.columns);
  assert.ok(show(film, {}, geometry, 1299) >= geometry.columns); // another tape
  assert.ok(show(film, {}, layout(700, 16), 1299) >= 80);
});

test("a film that has run for hours begins anew, and nothing moves", () => {
  globalThis.document = { createElement: () => new Element() };
  const geometry = layout(900, 16);
  const [film, tape] = [new Film(new Element()), {}];
  show(film, tape, geometry, 1000);
  for (const until of [100_000, 400_000, 400_001, 10_000_000]) {
    show(film, tape, geometry, until);
    assert.ok(Math.abs(number(film.film.style.transform)) < 1_100_000);
  }
});
