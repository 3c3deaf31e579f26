// The KV cache block by block: who holds it, how often it is referenced, whether it can be found again. Pure.
import { colourIndex } from "../lib/colours.js";

export const NOBODY = 255; // in `colour`: no owner known
export const FREE = "free";
export const CACHED = "cached";
export const HELD = "held";
export const SHARED = "shared";

export class BlockMap {
  constructor(total = 0) {
    this.total = total;
    this.references = new Uint16Array(total);
    this.cached = new Uint8Array(total);
    this.owner = new Int32Array(total).fill(-1);
    this.colour = new Uint8Array(total).fill(NOBODY);
    this.owners = [];
    this.numberOf = new Map();
    this.dirty = []; // blocks changed since somebody drew
    this.allDirty = true;
  }

  /** From the answer of /scheduler/blocks/. */
  static of({ total, ...whole }) {
    return new BlockMap(total).fill(whole);
  }

  /** A stretch of blocks from `start` on, each [references, cached, index into owners or -1]. */
  fill({ start = 0, blocks, owners }) {
    blocks.forEach(([references, cached, owner], i) => this.#write(start + i, references, cached, owner < 0 ? null : owners[owner]));
    return this;
  }

  /** Changes of one iteration, each [block, references, cached, owner id or null]. */
  apply(changes) {
    if (this.owners.length > 4 * this.total + 64) this.#forgetOwners();
    for (const [block, references, cached, owner] of changes) {
      if (block < this.total) this.#write(block, references, cached, owner);
    }
    return this;
  }

  copy() {
    const map = new BlockMap(this.total);
    for (const name of ["references", "cached", "owner", "colour"]) map[name].set(this[name]);
    map.owners = [...this.owners];
    map.numberOf = new Map(this.numberOf);
    return map;
  }

  stateOf(block) {
    const references = this.references[block];
    return references > 1 ? SHARED : references > 0 ? HELD : this.cached[block] ? CACHED : FREE;
  }

  ownerOf(block) {
    return this.owner[block] < 0 ? null : this.owners[this.owner[block]];
  }

  /** How many blocks are in each state. */
  counts() {
    const counts = { [HELD]: 0, [SHARED]: 0, [CACHED]: 0, [FREE]: 0 };
    for (let block = 0; block < this.total; block++) counts[this.stateOf(block)] += 1;
    return counts;
  }

  /** Whether something changed that nobody has drawn. */
  get isDirty() {
    return this.allDirty || this.dirty.length > 0;
  }

  /** Hands over what changed since the last call: block numbers, or null for all of them. */
  takeDirty() {
    const changed = this.allDirty ? null : this.dirty;
    this.dirty = [];
    this.allDirty = false;
    return changed;
  }

  #write(block, references, cached, owner) {
    this.references[block] = references;
    this.cached[block] = cached ? 1 : 0;
    this.owner[block] = references > 0 && owner !== null ? this.#intern(owner) : -1;
    this.colour[block] = this.owner[block] < 0 ? NOBODY : colourIndex(owner);
    if (this.dirty.length < this.total) this.dirty.push(block);
    else this.allDirty = true;
  }

  #intern(id) {
    let number = this.numberOf.get(id);
    if (number === undefined) {
      number = this.owners.push(id) - 1;
      this.numberOf.set(id, number);
    }
    return number;
  }

  /** Keeps only the owners that still hold something. */
  #forgetOwners() {
    const owners = this.owners;
    this.owners = [];
    this.numberOf = new Map();
    for (let block = 0; block < this.total; block++) {
      if (this.owner[block] >= 0) this.owner[block] = this.#intern(owners[this.owner[block]]);
    }
  }
}

/** Follows a running engine: knows whether its map is the one after iteration (epoch, n), or has lost the thread. */
export class Follower {
  constructor() {
    this.map = this.coming = null;
    this.epoch = this.n = -1;
    this.later = []; // records heard of while a whole map is on its way
    this.hears = false; // records carry changes at all
  }

  get lost() {
    return this.map === null;
  }

  /** A record came over the feed. */
  hear({ epoch, n, blocks, kv }) {
    if (!blocks) return;
    this.hears = true;
    if (this.map && (epoch < this.epoch || (epoch === this.epoch && n <= this.n))) return; // older than the map: it is in it
    if (n === 1) Object.assign(this, { map: new BlockMap(kv.total), epoch, n: 0 }); // a new engine's blocks are all free
    if (this.map && this.map.total === kv.total && epoch === this.epoch && n === this.n + 1) {
      this.map.apply(blocks);
      this.n = n;
      return;
    }
    this.map = null;
    this.later.push({ epoch, n, blocks, kv });
    if (this.later.length > 512) this.later.shift();
  }

  /** A stretch of the whole map after (epoch, n) came over the feed; the last one makes it whole. */
  takePart({ epoch, n, start, total, blocks, owners }) {
    if (start === 0) this.coming = new BlockMap(total);
    if (!this.coming) return;
    this.coming.fill({ start, blocks, owners });
    if (start + blocks.length < total) return;
    this.take(this.coming, epoch, n);
    this.coming = null;
  }

  /** A whole map came, as it is after (epoch, n): takes up the thread from there, if it is not further on already. */
  take(map, epoch, n) {
    this.hears = true;
    if (this.map?.total === map.total && this.epoch === epoch && this.n >= n) return;
    Object.assign(this, { map, epoch, n });
    const later = this.later.filter((record) => record.epoch > epoch || (record.epoch === epoch && record.n > n));
    this.later = [];
    for (const record of later) this.hear(record);
  }
}
