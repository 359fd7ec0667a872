"use strict";
/* The page as a whole: one chosen moment, which all views show. */

class App {
  constructor(run, other) {
    Object.assign(this, { run, other, moment: run.meta.peak.moment });
    showHead(run);
    showActions(run);
    this.timeline = new TimelineView(this, byId("chart"));
    this.icicle = new IcicleView(this, byId("icicle"), byId("icicle-said"));
    this.map = new MapView(this, byId("map"), byId("map-said"));
    this.makeTables();
    this.recall();
    this.timeline.draw();
    showLegend(this);
    this.choose(this.moment);
    this.growth = new GrowthView(this);
    showComparison(this);
    this.listen();
  }

  makeTables() {
    const { run } = this;
    this.holders = new Table(byId("holders"), {
      caption: "Bytes of the chosen moment by owner, layer, op and line",
      columns: [
        bytesColumn("bytes", "bytes"),
        { name: "blocks", title: "blocks", number: true, text: (row) => grouped(row.blocks) },
        { name: "ns", title: "ms to recompute", number: true, text: (row) => (row.ns === Infinity ? "cannot" : (row.ns / 1e6).toFixed(3)) },
        ...siteColumns(),
        { name: "call", title: "called from", text: (row) => row.call },
      ],
      sortBy: "bytes",
      filter: true,
      choose: (row) => this.showBlocksOf(row),
    });
    this.blocks = new Table(byId("blocks"), {
      caption: "Blocks of the chosen row",
      columns: [
        bytesColumn("bytes", "bytes"),
        { name: "price", title: "price", text: (row) => row.price },
        { name: "born", title: "taken at moment", number: true, text: (row) => grouped(row.born) },
        { name: "place", title: "taken in", text: (row) => row.place },
        { name: "address", title: "address", text: (row) => row.address },
      ],
      sortBy: "bytes",
      pageSize: 8,
      choose: (row) => this.showBlock(row.life),
    });
    this.regions = new Table(byId("regions"), {
      caption: "Regions of addresses at the chosen moment",
      columns: [
        { name: "name", title: "region", text: (row) => row.name },
        bytesColumn("blocks", "blocks"),
        bytesColumn("inUse", "in use"),
        bytesColumn("rounding", "rounding"),
        bytesColumn("holes", "between blocks"),
        bytesColumn("longest", "longest hole"),
      ],
      sortBy: "inUse",
    });
    const steps = new Table(byId("steps"), {
      caption: "Steps",
      columns: [
        { name: "step", title: "step", number: true, text: (row) => grouped(row.step) + (row.n > 1 ? " to " + grouped(row.step + row.n - 1) : "") },
        { name: "ms", title: run.about.is_plan ? "ms by formula" : "ms", number: true, text: (row) => row.ms.toFixed(2) },
        bytesColumn("most", "most in use"),
        bytesColumn("before", "in use before"),
      ],
      sortBy: "step",
      descending: false,
      pageSize: 10,
      choose: (row) => this.choose(row.moment),
    });
    steps.set(stepRows(run));
  }

  /** Shows a moment in all views. */
  choose(moment) {
    const { run } = this;
    const asked = Math.min(run.last, Math.max(0, Math.round(moment)));
    this.moment = run.isKept(asked) ? asked : run.nearestKept(asked);
    byId("not-kept").hidden = this.moment === asked;
    const lives = run.alive(this.moment);
    const holders = run.holders(this.moment);
    const rows = Array.from(run.rowsAt(this.moment));
    const inUse = rows.reduce((sum, bytes) => sum + bytes, 0);
    byId("moment-said").textContent =
      placeOf(run, this.moment) + ", moment " + grouped(this.moment) + " of " + grouped(run.last) + ", " + duration(run.timeAt(this.moment)) + (run.about.is_plan ? " by formula" : "") +
      ": " + bothSizes(inUse) + " in use, " + bothSizes(run.committedAt(this.moment)) + " committed";
    byId("moment").value = this.moment;
    showOwners(byId("moment-owners"), run, rows, "Bytes of the chosen moment by owner");
    this.icicle.set(holders);
    this.holders.set(holders);
    this.map.set(lives);
    this.regions.set(this.map.rows());
    if (this.block !== undefined) showCard(this, this.block);
    const [from, to] = this.timeline.zoom;
    if (this.timeline.chart && (this.moment < from || this.moment > to)) {
      this.timeline.setZoom(this.moment - (to - from) / 2, this.moment + (to - from) / 2);
    } else {
      this.timeline.redraw();
    }
    this.remember();
  }

  /** The moment at which the next step begins, or the one before. */
  stepBeside(direction) {
    const { moment } = this.run.steps;
    const here = lastAtMost(moment, direction > 0 ? this.moment : this.moment - 1);
    return moment[here + (direction > 0 ? 1 : 0)] ?? (direction > 0 ? this.run.last : 0);
  }

  showBlocksOf(row) {
    const { run } = this;
    const lives = run.alive(this.moment).filter((i) => run.site[i] === row.site && run.owners[run.owner[i]] === row.owner);
    this.blocks.set(
      lives.map((life) => ({
        life,
        bytes: run.bytes[life],
        price: priceSaid(run.works.price(life, this.moment)),
        born: run.born[life],
        place: run.born[life] === 0 ? "before the recording" : placeOf(run, run.born[life]),
        address: run.meta.regions[run.region[life]] + " + " + grouped(run.offset[life]),
      })),
    );
    byId("blocks-part").hidden = false;
    if (lives.length > 0) this.showBlock(lives[0]);
  }

  showBlock(life) {
    this.block = life;
    showCard(this, life);
    byId("card").scrollIntoView({ block: "nearest" });
  }

  /** Links: #t=MOMENT&z=FROM-TO. */
  remember() {
    const [from, to] = this.timeline.zoom;
    const zoom = from === 0 && to === this.run.last ? "" : "&z=" + from + "-" + to;
    const link = "#t=" + this.moment + zoom + (this.isFollowing ? "&follow" : "");
    if (location.hash !== link) history.replaceState(null, "", link);
  }

  recall() {
    const { run, timeline } = this;
    this.isFollowing = location.hash.includes("&follow");
    const [, moment] = /[#&]t=(\d{1,15}|peak)/.exec(location.hash) ?? [];
    const [, from, to] = /[#&]z=(\d{1,15})-(\d{1,15})/.exec(location.hash) ?? [];
    if (moment !== undefined) this.moment = moment === "peak" ? run.meta.peak.moment : Math.min(run.last, Number(moment));
    if (to !== undefined && Number(from) < Number(to) && Number(to) <= run.last) timeline.zoom = [Number(from), Number(to)];
  }

  listen() {
    const on = (id, act) => byId(id).addEventListener("click", act);
    on("go-peak", () => this.choose(this.run.meta.peak.moment));
    on("go-step-before", () => this.choose(this.stepBeside(-1)));
    on("go-step-after", () => this.choose(this.stepBeside(1)));
    on("go-before", () => this.choose(this.moment - 1));
    on("go-after", () => this.choose(this.moment + 1));
    on("zoom-all", () => this.timeline.setZoom(0, this.run.last));
    on("zoom-in", () => this.timeline.key(new KeyboardEvent("keydown", { key: "+" })));
    on("zoom-out", () => this.timeline.key(new KeyboardEvent("keydown", { key: "-" })));
    byId("moment").max = this.run.last;
    byId("moment").addEventListener("change", (event) => this.choose(Number(event.target.value)));
    byId("by-time").addEventListener("change", (event) => {
      this.timeline.isByTime = event.target.checked;
      this.timeline.draw();
    });
    byId("theme").addEventListener("click", () => {
      const { theme } = document.documentElement.dataset;
      const isDark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      document.documentElement.dataset.theme = isDark ? "light" : "dark";
      this.redraw();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    addEventListener("resize", () => {
      clearTimeout(this.resizing);
      this.resizing = setTimeout(() => this.redraw(), 100);
    });
    addEventListener("hashchange", () => {
      this.recall();
      this.timeline.draw();
      this.choose(this.moment);
    });
  }

  redraw() {
    colours.clear();
    this.timeline.draw();
    this.icicle.draw();
    this.map.draw();
  }
}

/** While the run goes on: says how far it is, and loads the page again when that is wanted. */
function listenToRun(run) {
  if (document.body.dataset.live !== "live") return;
  const events = new EventSource("events");
  const shown = run.steps.number[run.steps.number.length - 1] ?? 0;
  byId("live").hidden = false;
  byId("live-follow").checked = window.app.isFollowing;
  byId("live-said").textContent = "The run goes on.";
  byId("live-show").addEventListener("click", () => location.reload());
  byId("live-follow").addEventListener("change", (event) => {
    window.app.isFollowing = event.target.checked;
    window.app.remember();
    if (event.target.checked) location.reload();
  });
  let isWaiting = false;
  events.addEventListener("step", ({ data }) => {
    byId("live-said").textContent = "The run goes on: step " + grouped(Number(data)) + "; this page has step " + grouped(shown) + ".";
    if (!byId("live-follow").checked || isWaiting) return;
    isWaiting = true;
    setTimeout(() => location.reload(), 2000);
  });
  events.addEventListener("end", () => {
    byId("live-said").textContent = "The run is over.";
    events.close();
  });
}

(async () => {
  try {
    const run = await readRun(byId("run"));
    const other = await readRun(byId("other"));
    window.app = new App(run, other);
    listenToRun(run);
    document.body.dataset.state = "ready";
  } catch (error) {
    byId("subtitle").textContent = "This page cannot be shown: " + error.message;
    document.body.dataset.state = "failed";
    throw error;
  }
})();
