"use strict";
/* What ops read and write: who made a block, who reads it next, and what having its value again would take.
 *
 * Prices follow the rules of works.rs, which explains a profile in the terminal, for any moment: the time by formula of the ops
 * that lead from what is alive to the value. A work runs at a moment, before whatever happens next. */

/** Longer chains of ops are not followed: nobody would run them. */
const MOST_OPS = 4096;
/** For all blocks of a moment together no more ops are followed than this. */
const MOST_FOLLOWED = 1 << 20;

class Works {
  constructor(run, columns) {
    this.run = run;
    this.moment = addUp(columns.work_moment);
    this.site = columns.work_site;
    this.ns = columns.work_ns;
    this.repeats = columns.work_repeats;
    this.nReads = columns.work_reads;
    const n = this.moment.length;
    this.start = new Uint32Array(n + 1);
    for (let w = 0; w < n; w++) this.start[w + 1] = this.start[w] + columns.work_reads[w] + columns.work_writes[w];
    this.operand = new Int32Array(columns.operand.length);
    for (let w = 0, begun = 0; w < n; w++) {
      while (begun < run.nLives && run.born[begun] <= this.moment[w]) begun++;
      for (let i = this.start[w]; i < this.start[w + 1]; i++) {
        this.operand[i] = columns.operand[i] === 0 ? -1 : begun - columns.operand[i];
      }
    }
    this.held = new Map();
    const moments = addUp(columns.held_moment);
    moments.forEach((moment, i) => {
      const life = columns.held_life[i] === 0 ? -1 : lastAtMost(run.born, moment) + 1 - columns.held_life[i];
      const said = { moment, by: run.meta.names[columns.held_by[i]], frees: columns.held_frees[i] };
      if (life >= 0) this.held.set(life, [...(this.held.get(life) ?? []), said]);
    });
  }

  /** For each block the works that read it, and those that write it, in order, one list after the other. */
  index() {
    const n = this.run.nLives;
    const list = (isRead) => {
      const each = (see) => {
        for (let w = 0; w < this.moment.length; w++) {
          const middle = this.start[w] + this.nReads[w];
          const end = isRead ? middle : this.start[w + 1];
          for (let i = isRead ? this.start[w] : middle; i < end; i++) if (this.operand[i] >= 0) see(this.operand[i], w);
        }
      };
      const start = new Uint32Array(n + 1);
      each((block) => start[block + 1]++);
      addUp(start);
      const works = new Uint32Array(start[n]), next = start.slice();
      each((block, w) => (works[next[block]++] = w));
      return { start, works };
    };
    return (this.lists ??= { reads: list(true), writes: list(false) });
  }

  readsOf(block) {
    const { start, works } = this.index().reads;
    return works.subarray(start[block], start[block + 1]);
  }

  writesOf(block) {
    const { start, works } = this.index().writes;
    return works.subarray(start[block], start[block + 1]);
  }

  reads(work) {
    return this.operand.subarray(this.start[work], this.start[work] + this.nReads[work]);
  }

  writesOver(work) {
    const written = this.operand.subarray(this.start[work] + this.nReads[work], this.start[work + 1]);
    return this.reads(work).some((block) => block >= 0 && written.includes(block));
  }

  /** The first work from a moment on that reads a block; nothing if there is none. */
  readNext(block, moment) {
    return this.readsOf(block).find((work) => this.moment[work] >= moment);
  }

  /** How often a block was written before a moment, and by which work last. A block that is being made has its maker. */
  written(block, moment) {
    const writes = this.writesOf(block);
    let n = 0;
    while (n < writes.length && this.moment[writes[n]] < moment) n++;
    return { n, work: writes[Math.max(0, n - 1)] };
  }

  /** How often a block had been written when a work read it. */
  writtenWhenRead(block, work) {
    return lastAtMost(this.writesOf(block), work - 1) + 1;
  }

  /** Who keeps a block alive: the last answer before a moment, or else the first one after it. */
  heldBy(block, moment) {
    const said = this.held.get(block);
    return said && (said.findLast((one) => one.moment <= moment) ?? said[0]);
  }

  /** What having the value of a life again would take at a moment: { ns, ops }, or { never }, which says why. */
  price(life, moment) {
    const { run } = this;
    const block = run.firstLife(life);
    const never = NEVER[run.owners[run.owner[life]]];
    if (never) return { never };
    const isAlive = (first) => {
      let last = first;
      while (run.later[last]) last = run.later[last];
      return run.born[first] <= moment && run.until[last] > moment;
    };
    if (this.followedAt !== moment) [this.followedAt, this.followed] = [moment, 0];
    let ns = 0, ops = 0;
    const since = run.keptSince(moment);
    const open = [block], seen = new Set();
    while (open.length > 0) {
      const next = open.pop();
      if (++this.followed > MOST_FOLLOWED) return { never: "more ops would have to be followed than there is time for" };
      if (seen.has(next)) continue;
      seen.add(next);
      const { work } = this.written(next, moment);
      // What was done to its inputs in between is not known.
      if (work === undefined || this.moment[work] < since) return { never: next === block ? "no op of this recording has made it" : "what it was computed from is gone" };
      const at = run.siteSaid(this.site[work]);
      if (!this.repeats[work]) return { never: at + " has an effect, or sums in any order" };
      if (this.writesOver(work)) return { never: at + " wrote over what it read" };
      [ns, ops] = [ns + this.ns[work], ops + 1];
      if (ops > MOST_OPS) return { never: "more than " + grouped(MOST_OPS) + " ops would have to run again" };
      for (const read of this.reads(work)) {
        if (read < 0) return { never: "what it was computed from is gone" };
        const isSame = this.written(read, moment).n === this.writtenWhenRead(read, work);
        if (isAlive(read) && read !== block) {
          if (!isSame) return { never: at + " read what was written again since" };
        } else {
          if (!isSame) return { never: "what it was computed from is gone" };
          open.push(read);
        }
      }
    }
    return { ns, ops };
  }
}

/** Why values of some owners cannot be recomputed. */
const NEVER = {
  parameters: "it is a variable's value",
  optimizer: "it is a variable's value",
  data: "it was read from data",
  workspace: "it is scratch memory, which goes with its op",
};

/** A price in words. */
function priceSaid({ never, ns, ops }) {
  return never ? "cannot be recomputed, because " + never : (ns / 1e6).toFixed(3) + " ms to recompute (" + grouped(ops) + (ops === 1 ? " op)" : " ops)");
}
