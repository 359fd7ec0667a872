"use strict";
/* The parts of the page that are words and tables. */

/** Rows of a definition list; those without a value are left out. */
function facts(place, pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  place.replaceChildren(...shown.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)]));
}

function siteColumns() {
  return [
    { name: "owner", title: "owner", text: (row) => row.owner, mark: (row) => row.owner },
    { name: "layer", title: "layer", text: (row) => row.layer },
    { name: "op", title: "op", text: (row) => row.op },
    { name: "line", title: "line", text: (row) => row.line },
  ];
}

function bytesColumn(name, title) {
  return { name, title, number: true, text: (row) => grouped(row[name]) };
}

/** The peak, to the byte, and who held it. */
function showHead(run) {
  const { peak, peak_committed: committed, is_complete: isComplete, shortage: short } = run.meta;
  const { predicted_peak_bytes: predicted, limit_bytes: limit, is_plan: isPlan, refused } = run.about;
  byId("title").textContent = nameOf(run);
  const steps = run.steps.count.reduce((sum, n) => sum + n, 0);
  const leftOut = run.meta.left_out.reduce((sum, [, n]) => sum + n, 0);
  byId("subtitle").textContent =
    (isPlan ? "A plan: nothing was computed. " : "A recorded run. ") + grouped(run.last) + " events, " + grouped(steps) + (steps === 1 ? " step." : " steps.") +
    (isComplete || document.body.dataset.live === "live" ? "" : " The recording was cut off: what came after its last step is missing.");
  byId("peak").textContent = scaled(peak.in_use);
  byId("peak-bytes").textContent = grouped(peak.in_use) + " B";
  const site = peak.site === null ? null : run.siteTexts(peak.site);
  const comparison = predicted === undefined ? null : predicted === peak.in_use ? bothSizes(predicted) + ", equal to the byte" : bothSizes(predicted) + ", which differs by " + signed(peak.in_use - predicted) + " B";
  facts(byId("facts"), [
    ["refused", refused],
    ["out of memory", short ? bothSizes(short.bytes) + " could not be had in " + (short.step ? "step " + grouped(short.step) + ", " : "") + short.phase + ", with " + bothSizes(short.in_use) + " in use" : null],
    ["left out", leftOut ? "of " + grouped(leftOut) + " steps in the middle only summaries are there: the profile of a long run is bounded" : null],
    ["reached in", placeOf(run, peak.moment) + (site ? ": " + [site.layer, site.op].filter(Boolean).join(" ") : "")],
    ["at line", site ? site.line : null],
    ["predicted", comparison],
    ["committed", bothSizes(committed)],
    ["limit", limit === undefined ? "none" : bothSizes(limit) + ", " + share(committed, limit) + " of it taken"],
    ["least limit", run.about.least_limit_bytes ? bothSizes(run.about.least_limit_bytes) : null],
    ["recomputed", run.about.recomputed_ops ? grouped(run.about.recomputed_ops) + " ops, to keep the limit" : null],
    ["offloaded", run.about.offloaded_bytes ? bothSizes(run.about.offloaded_bytes) + ", to keep the limit" : null],
    ["outside the pool", run.about.outside_bytes === undefined ? null : bothSizes(run.about.outside_bytes) + (run.about.driver_used_bytes ? " at the end, of " + bothSizes(run.about.driver_used_bytes) + " that the driver counts as used" : " of the process at the end")],
    ["written by", run.about.version ? "plimsoll " + run.about.version : null],
  ]);
  showOwners(byId("peak-owners"), run, peak.rows, "Bytes at the peak by owner");
}

/** What would help, as whoever recorded the profile has planned it. */
function showActions(run) {
  const rows = run.meta.actions;
  byId("help").hidden = rows.length === 0;
  byId("help-said").textContent = run.meta.actions_of_trace
    ? "This is what the trace alone can tell: without these values after the last op that uses them, the peak is lower by so many bytes. train, plan and nn::plan::actions plan other changes."
    : "Each row was planned as a run of its own: with this, and no other change, the peak is lower by so many bytes. Times are by formula.";
  const table = new Table(byId("actions"), {
    caption: "What would help",
    columns: [
      bytesColumn("saved_bytes", "bytes less"),
      bytesColumn("peak_bytes", "peak then"),
      { name: "more_ms", title: "ms a step more", number: true, text: (row) => (row.more_ms > 0 ? "+" : "") + row.more_ms.toFixed(2) },
      { name: "advice", title: "options or code", text: (row) => row.advice },
    ],
    sortBy: "saved_bytes",
    pageSize: 10,
  });
  table.set(rows);
}

/** Owners of a moment: they add up to what is in use. */
function showOwners(place, run, rows, caption) {
  const total = rows.reduce((sum, bytes) => sum + bytes, 0);
  const order = run.owners.map((owner, i) => [owner, rows[i]]).filter(([, bytes]) => bytes > 0).sort((a, b) => b[1] - a[1]);
  const line = (owner, bytes) =>
    element(
      "tr",
      { "data-owner": owner, "data-bytes": bytes },
      element("th", { scope: "row" }, owner === "in use" ? "" : swatch(owner), owner),
      element("td", { class: "number" }, grouped(bytes)),
      element("td", { class: "number" }, share(bytes, total)),
    );
  const body = element("tbody", {}, ...order.map(([owner, bytes]) => line(owner, bytes)));
  const foot = element("tfoot", {}, line("in use", total));
  const head = element("thead", {}, element("tr", {}, ...["owner", "bytes", "share"].map((title, i) => element("th", { scope: "col", class: i ? "number" : "" }, title))));
  place.replaceChildren(element("table", {}, element("caption", {}, caption), head, body, foot));
}

/** What the lines of the chart mean. */
function showLegend(app) {
  const { run, other, timeline } = app;
  const key = (name, text, dashed) => {
    const line = element("span", { class: "key" + (dashed ? " dashed" : ""), "aria-hidden": "true" });
    line.style.borderColor = "var(--" + name + ")";
    return element("li", {}, line, text);
  };
  const owners = run.owners.map((owner) => element("li", {}, swatch(owner), owner));
  const limit = run.about.limit_bytes;
  const above = (bytes) => (bytes <= timeline.top() ? "" : " (" + scaled(bytes) + ", above the chart)");
  const lines = [key("line-committed", "committed" + above(run.meta.peak_committed)), key("line-least", "least in use within a pixel")];
  if (limit !== undefined) lines.push(key("line-limit", "limit" + above(limit), true));
  if (other) lines.push(key("line-other", other.meta.role === "prediction" ? "predicted in use" : "in use of " + nameOf(other), true));
  byId("legend").replaceChildren(...owners, ...lines);
}

/** The steps of a run: time, most in use, in use when they began. */
function stepRows(run) {
  const { number, moment, ns, count } = run.steps;
  const ends = run.marks;
  return number.map((step, i) => {
    const after = moment[i + 1] ?? run.last + 1;
    let end = ns[i + 1] ?? ends.ns[ends.ns.length - 1];
    for (let m = lastAtMost(ends.moment, moment[i]); m < ends.moment.length && ends.moment[m] < after; m++) {
      if (ends.name[m] === "evaluate" || ends.name[m] === "save") {
        end = ends.ns[m];
        break;
      }
    }
    const n = count[i];
    return { step, n, moment: moment[i], ms: (end - ns[i]) / n / 1e6, most: run.mostInUse(moment[i], after - 1), before: run.mostInUse(moment[i], moment[i]) };
  });
}

/** What ops and holders tell of a block at the chosen moment: who made it, who reads it, who keeps it, and what it would take to
 * have it again. */
function whyRows(app, life) {
  const { run, moment } = app;
  const { works, about } = run;
  const first = run.firstLife(life);
  const isAt = (work) => run.siteSaid(works.site[work]) + ", in " + placeOf(run, works.moment[work]);
  const [made, next, held] = [works.written(first, moment).work, works.readNext(first, moment), works.heldBy(first, moment)];
  const rate = about.offload_bytes_per_second;
  const bytes = run.bytes[life];
  return [
    ["made by", made === undefined ? null : isAt(made)],
    ["read next by", next === undefined ? "no op of this recording" : isAt(next)],
    ["kept alive by", held ? held.by : KEPT[run.owners[run.owner[life]]] ?? (next === undefined ? "a handle that no op of this recording reads again" : "whoever reads it next")],
    ["goes with it", held ? grouped(held.frees) + " B if that lets go" : grouped(bytes) + " B, the block alone"],
    ["its price", priceSaid(works.price(life, moment))],
    ["to move it away", rate ? grouped(bytes) + " B, " + ((2e3 * bytes) / rate).toFixed(3) + " ms there and back" : null],
  ];
}

/** Who keeps blocks of some owners, where nobody was asked. */
const KEPT = {
  saved: "a tape or a program, for backward",
  parameters: "a variable",
  optimizer: "a variable of the optimizer",
  data: "the input pipeline, or a tensor of the batch",
  workspace: "the op that runs",
  graph: "a program",
};

/** A block's card. */
function showCard(app, life) {
  const { run } = app;
  const first = run.firstLife(life);
  let last = life;
  while (run.later[last]) last = run.later[last];
  const { layer, op, line, call } = run.siteTexts(run.site[life]);
  const [born, freed] = [run.born[first], run.until[last]];
  const at = (moment) => placeOf(run, moment) + ", moment " + grouped(moment) + ", " + duration(run.timeAt(moment));
  const wasOther = first === life ? null : run.owners[run.owner[first]] + " until " + at(run.born[life]);
  facts(byId("card-facts"), [
    ["bytes", grouped(run.requested[life]) + " requested, " + grouped(run.bytes[life]) + " taken"],
    ["owner", run.owners[run.owner[life]]],
    ["before that", wasOther],
    ["layer", layer],
    ["op", op],
    ["described at", line],
    ["called from", call],
    ...whyRows(app, life),
    ["taken", born === 0 ? "before the recording began" : at(born)],
    ["freed", freed === Infinity ? "not in this recording" : at(freed)],
    ["lives for", freed === Infinity ? null : grouped(freed - born) + " events, " + duration(run.timeAt(freed) - run.timeAt(born))],
    ["address", run.meta.regions[run.region[life]] + " + " + grouped(run.offset[life])],
  ]);
  const go = (text, moment) => element("button", { type: "button", onclick: () => app.choose(moment) }, text);
  const buttons = [go("Show when it was taken", born)];
  if (freed !== Infinity) buttons.push(go("Show the moment before it was freed", freed - 1), go("Show when it was freed", freed));
  byId("card-buttons").replaceChildren(...buttons);
  byId("card").hidden = false;
}

/** What is alive when two steps begin, and what has become of it. */
function growthRows(run, from, to) {
  const rows = new Map();
  const steps = run.steps.number;
  const [a, b] = [steps.indexOf(from), steps.indexOf(to)];
  const isShown = (step) => step >= 0 && run.isKept(run.steps.moment[step]);
  if (!isShown(a) || !isShown(b) || a === b) return null;
  const add = (step, sign) => {
    for (const row of run.holders(run.steps.moment[step])) {
      const key = [row.owner, row.layer, row.op, row.line].join("\n");
      const known = rows.get(key) ?? { ...row, bytes: 0, blocks: 0, now: 0 };
      known.bytes += sign * row.bytes;
      known.blocks += sign * row.blocks;
      if (sign > 0) known.now += row.bytes;
      rows.set(key, known);
    }
  };
  add(a, -1);
  add(b, 1);
  const n = Math.abs(to - from);
  return [...rows.values()].filter((row) => row.bytes !== 0).map((row) => ({ ...row, perStep: row.blocks / n }));
}

class GrowthView {
  constructor(app) {
    this.app = app;
    const { run } = app;
    const steps = run.steps.number;
    const blocks = (n) => n + (n === 1 ? " block" : " blocks");
    const said = run.meta.growth.map((row) => {
      const { layer, op, line } = siteTexts(row.site);
      return blocks(row.added_blocks / 10) + " (" + grouped(row.per_step) + " B) a step of " + row.owner + " from " + [layer, op, line].filter(Boolean).join(" ");
    });
    byId("growth-said").textContent = said.length
      ? "Grew over the last 10 steps: " + said.slice(0, 5).join("; ") + (said.length > 5 ? "; and " + (said.length - 5) + " more" : "")
      : steps.length > 10 ? "Nothing has grown over the last 10 steps." : "There are not enough steps to say whether something grows: 11 are needed.";
    byId("growth-said").classList.toggle("warning", said.length > 0);
    byId("growth-form").hidden = steps.length < 2;
    if (steps.length < 2) return;
    this.from = byId("growth-from");
    this.to = byId("growth-to");
    [this.from, this.to].forEach((input) => {
      input.min = steps[0];
      input.max = steps[steps.length - 1];
      input.addEventListener("change", () => this.show());
    });
    this.to.value = steps[steps.length - 1];
    this.from.value = steps[Math.max(0, steps.length - 11)];
    this.table = new Table(byId("growth-table"), {
      caption: "Growth between two steps",
      columns: [
        { ...bytesColumn("bytes", "growth"), text: (row) => signed(row.bytes) },
        bytesColumn("now", "bytes now"),
        { name: "perStep", title: "blocks a step", number: true, text: (row) => row.perStep.toFixed(2) },
        ...siteColumns(),
      ],
      sortBy: "bytes",
      pageSize: 10,
      choose: (row) => this.showBlocksOf(row),
    });
    this.show();
  }

  /** The blocks of a row when the later step begins. */
  showBlocksOf(row) {
    const { app } = this;
    const { number, moment } = app.run.steps;
    app.choose(moment[number.indexOf(Number(this.to.value))]);
    app.showBlocksOf(row);
  }

  show() {
    const rows = growthRows(this.app.run, Number(this.from.value), Number(this.to.value));
    byId("growth-none").textContent = rows === null ? "Choose two different steps whose blocks are in the page." : rows.length === 0 ? "The same bytes are held when both steps begin." : "";
    byId("growth-table").hidden = !rows || rows.length === 0;
    this.table.set(rows ?? []);
  }
}

/** Two runs, at their peaks. */
function showComparison(app) {
  const { run, other } = app;
  const section = byId("comparison");
  section.hidden = !other;
  if (!other) return;
  const isPrediction = other.meta.role === "prediction";
  byId("comparison-title").textContent = isPrediction ? "Predicted and measured" : "Two runs";
  byId("comparison-said").textContent = isPrediction ? predictionSaid(run, other) : comparisonSaid(run, other);
  const rows = new Map();
  const add = (side, from) => {
    for (const row of from.holders(from.meta.peak.moment)) {
      const key = [row.owner, row.layer, row.op, row.line].join("\n");
      const known = rows.get(key) ?? { ...row, here: 0, there: 0 };
      known[side] += row.bytes;
      rows.set(key, known);
    }
  };
  add("here", run);
  add("there", other);
  const table = new Table(byId("comparison-table"), {
    caption: "Bytes at both peaks",
    columns: [
      { name: "difference", title: "difference", number: true, text: (row) => signed(row.difference), value: (row) => Math.abs(row.difference) },
      bytesColumn("here", isPrediction ? "measured" : "this run"),
      bytesColumn("there", isPrediction ? "predicted" : "the other"),
      ...siteColumns(),
    ],
    sortBy: "difference",
    pageSize: 10,
    filter: true,
  });
  const differing = [...rows.values()].map((row) => ({ ...row, difference: row.here - row.there })).filter((row) => row.difference !== 0);
  table.set(differing);
  byId("comparison-table").hidden = differing.length === 0;
  byId("comparison-none").textContent = differing.length === 0 ? "At both peaks the same lines hold the same bytes." : "";
}

function comparisonSaid(run, other) {
  const difference = run.meta.peak.in_use - other.meta.peak.in_use;
  const word = difference === 0 ? "the same bytes" : grouped(Math.abs(difference)) + " B " + (difference > 0 ? "more" : "less");
  return nameOf(run) + " needs " + word + " at its peak than " + nameOf(other) + ": " + bothSizes(run.meta.peak.in_use) + " against " + bothSizes(other.meta.peak.in_use) + ".";
}

/** Whether a dry run has the bytes of the run at every moment that both have. */
function predictionSaid(run, plan) {
  const [measured, predicted] = [run.inUse(), plan.inUse()];
  if (!measured || !predicted) return comparisonSaid(run, plan);
  let n = 0, differ = 0, first = -1;
  run.segments.keys.forEach((key, here) => {
    const there = plan.segments.index.get(key);
    if (there === undefined) return;
    // The dry run's last segment has its end, too, which in the run comes after what it left out.
    if (there === plan.segments.keys.length - 1 && here < run.segments.keys.length - 1) return;
    const [start, end, planned] = [run.segments.start[here], run.segmentEnd(here), plan.segments.start[there]];
    for (let m = 0; start + m <= end && planned + m <= plan.segmentEnd(there); m++, n++) {
      if (measured[start + m] === predicted[planned + m]) continue;
      differ++;
      if (first < 0) first = start + m;
    }
  });
  if (n === 0) return "The dry run and the run have no step in common.";
  return differ === 0
    ? "At each of the " + grouped(n) + " moments that the dry run has, too, as many bytes are in use as predicted; what repeats it leaves out."
    : "At " + grouped(differ) + " of " + grouped(n) + " moments other bytes are in use than predicted, first in " + placeOf(run, first) + ", moment " + grouped(first) + ".";
}
