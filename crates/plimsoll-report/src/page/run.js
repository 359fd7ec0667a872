"use strict";
/* A recorded run, as the page holds it: columns of numbers, and what can be asked of them.
 *
 * A moment is a number: 0 is the beginning of the recording, n is after the nth event. A life is a block between two
 * changes of its label. Whoever asks what is alive at a moment gets it by going through all lives once, which takes
 * a few milliseconds for a million events, so nothing else has to be kept. */

const GRANULE = 512;
/** Marks with which a segment begins, beside those of steps. */
const SEGMENT_MARKS = new Set(["evaluate", "save"]);

/** Reads the data of a script element; nothing if it is empty. */
async function readRun(element) {
  const text = element.textContent.trim();
  if (text === "") return null;
  const binary = atob(text);
  const packed = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) packed[i] = binary.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const raw = new Uint8Array(await new Response(stream).arrayBuffer());
  const metaLength = new DataView(raw.buffer).getUint32(0, true);
  const meta = JSON.parse(new TextDecoder().decode(raw.subarray(4, 4 + metaLength)));
  const columns = {};
  let at = 4 + metaLength;
  for (const [name, count, length] of meta.columns) {
    columns[name] = readNumbers(raw.subarray(at, at + length), count);
    at += length;
  }
  element.textContent = "";
  return new Run(meta, columns);
}

/** Numbers of seven bits a byte, the lowest first. */
function readNumbers(bytes, count) {
  const numbers = new Float64Array(count);
  let at = 0;
  for (let i = 0; i < count; i++) {
    let number = 0, scale = 1, byte;
    do {
      byte = bytes[at++];
      number += (byte & 127) * scale;
      scale *= 128;
    } while (byte >= 128);
    numbers[i] = number;
  }
  return numbers;
}

function addUp(numbers) {
  for (let i = 1; i < numbers.length; i++) numbers[i] += numbers[i - 1];
  return numbers;
}

/** The last index whose number is at most the given one; -1 if there is none. */
function lastAtMost(sorted, number) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= number) low = middle + 1; else high = middle;
  }
  return low - 1;
}

class Run {
  constructor(meta, columns) {
    this.meta = meta;
    this.about = meta.about;
    this.last = meta.last;
    this.owners = [...meta.owners, "rounding"];
    this.nRows = this.owners.length;
    this.born = addUp(columns.born);
    this.nLives = this.born.length;
    this.until = columns.lasts.map((lasts, i) => (lasts === 0 ? Infinity : this.born[i] + lasts));
    this.requested = columns.requested;
    this.bytes = columns.requested.map((bytes) => Math.ceil(bytes / GRANULE) * GRANULE);
    this.owner = Uint8Array.from(columns.owner);
    this.site = Uint32Array.from(columns.site);
    this.region = Uint8Array.from(columns.region);
    this.offset = columns.offset.map((granules) => granules * GRANULE);
    this.earlier = Uint32Array.from(columns.earlier);
    this.later = new Uint32Array(this.nLives);
    for (let i = 0; i < this.nLives; i++) if (this.earlier[i]) this.later[i - this.earlier[i]] = i;
    this.marks = {
      moment: addUp(columns.mark_moment),
      name: Array.from(columns.mark_name, (name) => meta.names[name]),
      number: columns.mark_number,
      ns: addUp(columns.mark_ns),
    };
    this.commits = { moment: addUp(columns.commit_moment), bytes: columns.commit_bytes };
    this.readBuckets(columns);
    this.readSteps();
    this.works = new Works(this, columns);
  }

  readBuckets(columns) {
    const size = this.meta.bucket_size;
    this.buckets = {
      size,
      at: columns.bucket_at.map((at, i) => at + i * size),
      least: columns.bucket_least,
      committed: columns.bucket_committed,
      rows: Array.from({ length: this.nRows }, (_, row) => columns["bucket_row_" + row]),
    };
  }

  /** Steps (number, first moment, time), and segments: steps, and what lies between them, each with a name of its own. */
  readSteps() {
    const { moment, name, number, ns } = this.marks;
    this.steps = { number: [], moment: [], ns: [], count: [] };
    const leftOut = new Map(this.meta.left_out);
    this.segments = { start: [0], name: ["setup"], step: [0], index: new Map([["setup 0 0 0", 0]]) };
    const alike = new Map();
    let step = 0;
    for (let i = 0; i < name.length; i++) {
      if (name[i] === ":step") {
        step = number[i];
        this.steps.number.push(number[i]);
        this.steps.moment.push(moment[i]);
        this.steps.ns.push(ns[i]);
        // Where the profile has left steps out, one mark stands for several.
        this.steps.count.push(leftOut.get(i) ?? 1);
      } else if (!SEGMENT_MARKS.has(name[i])) continue;
      // Batches of an evaluation have numbers, by which they are found again in a dry run that leaves others out.
      const key = name[i] + " " + step + " " + number[i];
      const nth = alike.get(key) ?? 0;
      alike.set(key, nth + 1);
      this.segments.index.set(key + " " + nth, this.segments.start.length);
      this.segments.start.push(moment[i]);
      this.segments.name.push(name[i]);
      this.segments.step.push(step);
    }
    this.segments.keys = [...this.segments.index.keys()];
  }

  /** The last moment of a segment. */
  segmentEnd(segment) {
    return (this.segments.start[segment + 1] ?? this.last + 1) - 1;
  }

  /** Whether the blocks of a moment are in the page. */
  isKept(moment) {
    return this.meta.kept.some(([from, to]) => from <= moment && moment <= to);
  }

  /** The first of the moments up to this one between which nothing is missing. */
  keptSince(moment) {
    const range = this.meta.kept.find(([from, to]) => from <= moment && moment <= to);
    return range ? range[0] : moment;
  }

  /** The nearest moment whose blocks are in the page. */
  nearestKept(moment) {
    let best = 0, distance = Infinity;
    for (const [from, to] of this.meta.kept) {
      const near = Math.min(Math.max(moment, from), to);
      if (Math.abs(near - moment) < distance) [best, distance] = [near, Math.abs(near - moment)];
    }
    return best;
  }

  /** The lives that a moment has. */
  alive(moment) {
    const found = [];
    const end = lastAtMost(this.born, moment);
    for (let i = 0; i <= end; i++) if (this.until[i] > moment) found.push(i);
    return found;
  }

  /** The bytes of a moment by owner, with rounding as the last row; they add up to what is in use. */
  rowsAt(moment) {
    const rows = new Float64Array(this.nRows);
    for (const i of this.alive(moment)) {
      rows[this.owner[i]] += this.requested[i];
      rows[this.nRows - 1] += this.bytes[i] - this.requested[i];
    }
    return rows;
  }

  committedAt(moment) {
    const at = lastAtMost(this.commits.moment, moment);
    return at < 0 ? 0 : this.commits.bytes[at];
  }

  /** Step, phase and nanoseconds of a moment; between two marks time is shared out by events. */
  whereIs(moment) {
    const { number, moment: begins } = this.steps;
    const step = lastAtMost(begins, moment);
    let mark = lastAtMost(this.marks.moment, moment), phase = "setup";
    for (let i = mark; i >= 0; i--) {
      if (this.marks.name[i] === ":step") continue;
      phase = this.marks.name[i];
      break;
    }
    return { step: step < 0 ? 0 : number[step], phase, ns: this.timeAt(moment) };
  }

  timeAt(moment) {
    const { moment: moments, ns } = this.marks;
    const mark = lastAtMost(moments, moment);
    if (mark < 0) return moments.length && moments[0] > 0 ? (ns[0] * moment) / moments[0] : 0;
    if (mark + 1 >= moments.length) return ns[mark];
    const share = (moment - moments[mark]) / Math.max(1, moments[mark + 1] - moments[mark]);
    return ns[mark] + share * (ns[mark + 1] - ns[mark]);
  }

  /** The moment of a time, as far as marks tell. */
  momentAt(time) {
    const { moment: moments, ns } = this.marks;
    const mark = lastAtMost(ns, time);
    if (mark < 0) return 0;
    if (mark + 1 >= moments.length) return this.last;
    const share = (time - ns[mark]) / Math.max(1, ns[mark + 1] - ns[mark]);
    return Math.round(moments[mark] + share * (moments[mark + 1] - moments[mark]));
  }

  /** The moments from `from` to `to` as at most `most` points, each of which is the one of its bucket at which most is in use. */
  points(from, to, most) {
    const perPoint = Math.max(1, Math.ceil((to - from + 1) / most));
    const isKept = this.meta.kept.some(([a, b]) => a <= from && to <= b);
    return isKept && (perPoint < this.buckets.size || this.buckets.size === 1)
      ? this.exactPoints(from, to, perPoint)
      : this.bucketPoints(from, to, perPoint);
  }

  bucketPoints(from, to, perPoint) {
    const { size, at, least, committed, rows } = this.buckets;
    const group = Math.max(1, Math.ceil(perPoint / size));
    const points = emptyPoints(this.nRows);
    const end = Math.min(at.length - 1, Math.floor(to / size));
    for (let first = Math.floor(from / size); first <= end; first += group) {
      let best = first, bestTotal = -1, low = Infinity, high = 0;
      for (let b = first; b <= Math.min(end, first + group - 1); b++) {
        let total = 0;
        for (const row of rows) total += row[b];
        if (total > bestTotal) [best, bestTotal] = [b, total];
        low = Math.min(low, least[b]);
        high = Math.max(high, committed[b]);
      }
      points.at.push(at[best]);
      points.least.push(low);
      points.committed.push(high);
      rows.forEach((row, r) => points.rows[r].push(row[best]));
    }
    return points;
  }

  exactPoints(from, to, perPoint) {
    const n = to - from + 1, rounding = this.nRows - 1;
    const changes = Array.from({ length: this.nRows }, () => new Float64Array(n + 1));
    const end = lastAtMost(this.born, to);
    for (let i = 0; i <= end; i++) {
      if (this.until[i] <= from) continue;
      const start = Math.max(0, this.born[i] - from);
      const stop = Math.min(n, this.until[i] - from);
      const spare = this.bytes[i] - this.requested[i];
      changes[this.owner[i]][start] += this.requested[i];
      changes[this.owner[i]][stop] -= this.requested[i];
      changes[rounding][start] += spare;
      changes[rounding][stop] -= spare;
    }
    changes.forEach(addUp);
    const points = emptyPoints(this.nRows);
    for (let first = 0; first < n; first += perPoint) {
      let best = first, bestTotal = -1, low = Infinity;
      for (let m = first; m < Math.min(n, first + perPoint); m++) {
        let total = 0;
        for (const row of changes) total += row[m];
        if (total > bestTotal) [best, bestTotal] = [m, total];
        low = Math.min(low, total);
      }
      points.at.push(from + best);
      points.least.push(low);
      points.committed.push(this.committedAt(from + Math.min(n, first + perPoint) - 1));
      changes.forEach((row, r) => points.rows[r].push(row[best]));
    }
    return points;
  }

  /** The segment that corresponds to one of another run: that of the same name, or the last of its kind before. A dry run
   * leaves out what repeats. */
  segmentLike(other, segment) {
    const known = this.segments.index.get(other.segments.keys[segment]);
    if (known !== undefined) return known;
    const { name, step } = this.segments;
    for (let i = name.length - 1; i >= 0; i--) {
      if (name[i] === other.segments.name[segment] && step[i] <= other.segments.step[segment]) return i;
    }
    return 0;
  }

  /** The moment that corresponds to one of another run: as far into the segment like it. */
  correspondingTo(other, moment) {
    const theirs = lastAtMost(other.segments.start, moment);
    const ours = this.segmentLike(other, theirs);
    return Math.min(this.segmentEnd(ours), this.segments.start[ours] + moment - other.segments.start[theirs]);
  }

  /** The bytes in use at every moment, where all blocks are known; nothing otherwise. */
  inUse() {
    if (this.total === undefined) {
      this.total = null;
      if (this.isWhole()) {
        const total = new Float64Array(this.last + 2);
        for (let i = 0; i < this.nLives; i++) {
          total[this.born[i]] += this.bytes[i];
          if (this.until[i] !== Infinity) total[this.until[i]] -= this.bytes[i];
        }
        this.total = addUp(total);
      }
    }
    return this.total;
  }

  isWhole() {
    return this.meta.kept.length === 1 && this.meta.kept[0][1] - this.meta.kept[0][0] >= this.last;
  }

  /** The most in use from one moment to another. */
  mostInUse(from, to) {
    const total = this.inUse();
    let most = 0;
    if (total && to - from < 4 * this.buckets.size) {
      for (let m = from; m <= to; m++) most = Math.max(most, total[m]);
      return most;
    }
    const { size, rows, at } = this.buckets;
    for (let b = Math.floor(from / size); b <= Math.min(at.length - 1, Math.floor(to / size)); b++) {
      let sum = 0;
      for (const row of rows) sum += row[b];
      most = Math.max(most, sum);
    }
    return most;
  }

  /** Bytes and blocks of a moment by owner and site. */
  holders(moment) {
    const held = new Map();
    for (const i of this.alive(moment)) {
      const key = this.owner[i] * 4294967296 + this.site[i];
      let row = held.get(key);
      if (!row) held.set(key, (row = { owner: this.owners[this.owner[i]], site: this.site[i], bytes: 0, blocks: 0, ns: 0 }));
      row.bytes += this.bytes[i];
      row.blocks += 1;
      row.ns += this.works.price(i, moment).ns ?? Infinity;
    }
    return [...held.values()].map((row) => ({ ...row, ...this.siteTexts(row.site) }));
  }

  siteTexts(site) {
    return siteTexts(this.meta.sites[site]);
  }

  /** Layer, op and line in one text. */
  siteSaid(site) {
    const { layer, op, line } = this.siteTexts(site);
    return [layer, op].filter(Boolean).join(" ") + (line ? " (" + line + ")" : "");
  }

  /** The first life of a block, by which ops and holders know it. */
  firstLife(life) {
    let first = life;
    while (this.earlier[first]) first -= this.earlier[first];
    return first;
  }
}

function siteTexts([file, line, layer, op, describedFile, describedLine]) {
  const call = file ? file + ":" + line : "";
  const described = describedLine ? describedFile + ":" + describedLine : "";
  return { layer, op, line: described || call, call: described && described !== call ? call : "" };
}

function emptyPoints(nRows) {
  return { at: [], least: [], committed: [], rows: Array.from({ length: nRows }, () => []) };
}
