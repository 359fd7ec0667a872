"use strict";
/* Bytes over the moments of a run: owners stacked, with what is in use, committed and allowed as lines, and another run laid
 * over it. At most four points for each pixel are drawn, whatever the length of the run. */

const CHART_HEIGHT = 320;
/** Stacked rows, and the lines: least, committed, limit, the other run. All together have at most 4 points a pixel. */
const N_LINES = 4;

class TimelineView {
  constructor(app, place) {
    this.app = app;
    this.place = place;
    this.isByTime = false;
    this.zoom = [0, app.run.last];
    this.wasDragged = false;
    place.addEventListener("keydown", (event) => this.key(event));
  }

  /** Where a moment is drawn. */
  x(moment) {
    return this.isByTime ? this.app.run.timeAt(moment) / 1e6 : moment;
  }

  momentOf(x) {
    const moment = this.isByTime ? this.app.run.momentAt(x * 1e6) : Math.round(x);
    return Math.min(this.app.run.last, Math.max(0, moment));
  }

  setZoom(from, to) {
    const last = this.app.run.last;
    const width = Math.max(Math.min(16, last), Math.round(to - from));
    const start = Math.round(Math.min(Math.max(0, from), last - width));
    this.zoom = [start, start + width];
    this.draw();
    this.app.remember();
  }

  /** Points for the present zoom, as uPlot wants them: x, the stack from its top to its bottom, the lines. */
  data(width) {
    const { run, other } = this.app;
    const [from, to] = this.zoom;
    const nSeries = run.nRows + N_LINES;
    const most = Math.max(8, Math.floor((4 * width) / (nSeries + 1)) - 2);
    const points = run.points(from, to, most);
    const n = points.at.length;
    const close = points.at[n - 1] < to;
    const x = points.at.map((moment) => this.x(moment));
    const stack = [];
    let below = new Float64Array(n);
    for (const row of points.rows) {
      below = below.map((bytes, i) => bytes + row[i]);
      stack.unshift(Array.from(below));
    }
    const limit = run.about.limit_bytes;
    const lines = [
      points.least,
      points.committed,
      points.at.map(() => limit ?? null),
      points.at.map((moment, i) => (other ? this.otherMost(moment, points.at[i + 1] ?? to + 1) : null)),
    ];
    const all = [x, ...stack, ...lines];
    if (close) {
      x.push(this.x(to));
      all.slice(1).forEach((series) => series.push(series[n - 1]));
    }
    this.points = points;
    this.nPoints = all.reduce((sum, series) => sum + series.length, 0);
    return all;
  }

  /** The most that the other run has in use while this one goes from one moment to the next point. */
  otherMost(from, to) {
    const { run, other } = this.app;
    const [start, end] = [other.correspondingTo(run, from), other.correspondingTo(run, to - 1)];
    return other.mostInUse(start, Math.max(start, end));
  }

  draw() {
    const { run, other } = this.app;
    const width = Math.max(320, this.place.clientWidth);
    const data = this.data(width);
    this.chart?.destroy();
    const owners = [...run.owners].reverse();
    const stepped = uPlot.paths.stepped({ align: 1 });
    const plain = { points: { show: false }, paths: stepped };
    const top = this.top();
    const line = (name, width, dash) => ({ ...plain, stroke: colour(name), width, dash });
    this.chart = new uPlot(
      {
        width,
        height: CHART_HEIGHT,
        legend: { show: false },
        cursor: { drag: { x: true, y: false, setScale: false }, points: { show: false }, y: false },
        scales: { x: { time: false, range: () => this.zoom.map((m) => this.x(m)) }, y: { range: () => [0, top] } },
        axes: [this.axis(false), this.axis(true)],
        series: [
          {},
          ...owners.map((owner) => ({ ...plain, fill: ownerColour(owner), stroke: ownerColour(owner), width: 0 })),
          line("line-least", 1),
          line("line-committed", 1.5),
          line("line-limit", 2, [8, 4]),
          { ...line("line-other", 1.5, [3, 2]), show: Boolean(other) },
        ],
        hooks: {
          setSelect: [(chart) => this.selected(chart)],
          setCursor: [(chart) => this.hovered(chart)],
          draw: [(chart) => this.drawMarks(chart)],
        },
      },
      data,
      this.place,
    );
    this.chart.over.addEventListener("click", () => this.clicked());
    this.chart.over.addEventListener("dblclick", () => this.setZoom(0, run.last));
    this.place.dataset.points = this.nPoints;
    this.place.dataset.width = width;
  }

  /** The top of the chart: lines high above what is in use are left out, because nothing would be left to see of it. */
  top() {
    const { run, other } = this.app;
    const most = Math.max(run.meta.peak.in_use, other ? other.meta.peak.in_use : 0, 1);
    const lines = [run.meta.peak_committed, run.about.limit_bytes ?? 0].filter((bytes) => bytes <= 3 * most);
    return 1.14 * Math.max(most, ...lines);
  }

  axis(isVertical) {
    const look = { stroke: colour("quiet"), grid: { stroke: colour("grid"), width: 1 }, ticks: { stroke: colour("grid"), width: 1 }, font: "12px system-ui, sans-serif" };
    if (isVertical) {
      return { ...look, size: 84, values: (_, values) => values.map(scaled), incrs: powersOfTwo() };
    }
    const format = this.isByTime ? (ms) => (ms >= 1e4 ? grouped(ms / 1e3) + " s" : grouped(ms) + " ms") : grouped;
    return { ...look, size: 34, values: (_, values) => values.map(format) };
  }

  selected(chart) {
    const { left, width } = chart.select;
    if (width < 4) return;
    this.wasDragged = true;
    const [from, to] = [chart.posToVal(left, "x"), chart.posToVal(left + width, "x")];
    setTimeout(() => {
      this.wasDragged = false;
      this.setZoom(this.momentOf(from), this.momentOf(to));
    });
  }

  /** The point under the mouse; nothing beside the chart. */
  under(chart) {
    const { left } = chart.cursor;
    if (left === undefined || left < 0) return null;
    const moment = this.momentOf(chart.posToVal(left, "x"));
    return this.points.at[Math.max(0, lastAtMost(this.points.at, moment))];
  }

  hovered(chart) {
    const moment = this.under(chart);
    const { run } = this.app;
    if (moment === null) return;
    const i = lastAtMost(this.points.at, moment);
    const inUse = this.points.rows.reduce((sum, row) => sum + row[i], 0);
    byId("hover").textContent = "Under the mouse: " + placeOf(run, moment) + ", moment " + grouped(moment) + ", " + scaled(inUse) + " in use";
  }

  clicked() {
    if (this.wasDragged) return;
    const moment = this.under(this.chart);
    if (moment !== null) this.app.choose(moment);
  }

  /** Steps and phases above the stack, and the chosen moment. */
  drawMarks(chart) {
    const { ctx, bbox } = chart;
    const { run, moment } = this.app;
    const density = window.devicePixelRatio || 1;
    const position = (m) => chart.valToPos(this.x(m), "x", true);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = 11 * density + "px system-ui, sans-serif";
    ctx.textBaseline = "top";
    ctx.textAlign = "left";
    ctx.setLineDash([]);
    this.drawPhases(ctx, bbox, position, density);
    this.drawSteps(ctx, bbox, position, density);
    ctx.strokeStyle = colour("ink");
    ctx.lineWidth = 2 * density;
    ctx.beginPath();
    ctx.moveTo(position(moment), bbox.top);
    ctx.lineTo(position(moment), bbox.top + bbox.height);
    ctx.stroke();
    ctx.restore();
    this.place.setAttribute("aria-label", "Timeline of " + nameOf(run) + ", at " + placeOf(run, moment));
  }

  drawSteps(ctx, bbox, position, density) {
    const { number, moment } = this.app.run.steps;
    const [from, to] = this.zoom;
    const first = Math.max(0, lastAtMost(moment, from));
    const end = lastAtMost(moment, to);
    // However many steps there are, about one is looked at for each pixel.
    const stride = Math.max(1, Math.floor((end - first) / (bbox.width / density)));
    ctx.strokeStyle = colour("mark");
    ctx.fillStyle = colour("quiet");
    ctx.lineWidth = density;
    let [lineAt, textEnds] = [-Infinity, -Infinity];
    for (let i = first; i <= end; i += stride) {
      const x = Math.round(position(moment[i]));
      if (x - lineAt < 8 * density) continue;
      lineAt = x;
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      if (x < textEnds) continue;
      const text = "step " + number[i];
      ctx.fillText(text, x + 3 * density, bbox.top + 2 * density);
      textEnds = x + ctx.measureText(text).width + 12 * density;
    }
  }

  /** Names of phases where there is room for them. */
  drawPhases(ctx, bbox, position, density) {
    const { moment, name } = this.app.run.marks;
    const [from, to] = this.zoom;
    const first = Math.max(0, lastAtMost(moment, from)), end = lastAtMost(moment, to);
    if (end - first > bbox.width / density / 24) return;
    ctx.fillStyle = colour("quiet");
    for (let i = first; i <= end; i++) {
      if (name[i] === ":step") continue;
      const x = Math.max(bbox.left, position(moment[i]));
      const room = position(moment[i + 1] ?? this.app.run.last) - x - 6 * density;
      const text = cut(ctx, name[i], room);
      if (text === "" || (text.length < 4 && text !== name[i])) continue;
      ctx.fillText(text, x + 3 * density, bbox.top + 16 * density);
      ctx.fillRect(x, bbox.top + 16 * density, density, 10 * density);
    }
  }

  key(event) {
    const { app } = this;
    const [from, to] = this.zoom, width = to - from;
    const moves = {
      ArrowLeft: () => app.choose(event.shiftKey ? app.stepBeside(-1) : app.moment - 1),
      ArrowRight: () => app.choose(event.shiftKey ? app.stepBeside(1) : app.moment + 1),
      Home: () => app.choose(0),
      End: () => app.choose(app.run.last),
      "+": () => this.setZoom(app.moment - width / 4, app.moment + width / 4),
      "-": () => this.setZoom(app.moment - width, app.moment + width),
      Escape: () => this.setZoom(0, app.run.last),
      p: () => app.choose(app.run.meta.peak.moment),
    };
    const move = moves[event.key];
    if (!move || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move();
  }

  redraw() {
    this.chart?.redraw(false);
  }
}

/** Round numbers of bytes for an axis. */
function powersOfTwo() {
  return Array.from({ length: 50 }, (_, power) => 2 ** power);
}
