"use strict";
/* Where blocks lie at a moment: each region from its first address to the highest that the run has used there, in rows. */

const MAP_ROWS = 10;
const MAP_ROW = 18;
const MAP_TITLE = 20;

class MapView {
  constructor(app, canvas, told) {
    Object.assign(this, { app, canvas, told, lives: [] });
    this.extent = app.run.meta.regions.map(() => 0);
    const { run } = app;
    for (let i = 0; i < run.nLives; i++) {
      this.extent[run.region[i]] = Math.max(this.extent[run.region[i]], run.offset[i] + run.bytes[i]);
    }
    canvas.addEventListener("mousemove", (event) => this.tell(this.at(event)));
    canvas.addEventListener("click", (event) => {
      const life = this.at(event).life;
      if (life !== undefined) app.showBlock(life);
    });
  }

  set(lives) {
    this.lives = lives;
    this.draw();
  }

  draw() {
    const total = this.extent.reduce((sum, extent) => sum + extent, 0);
    let y = 0;
    this.bands = this.extent.map((extent, region) => {
      if (extent === 0) return null;
      const rows = Math.max(1, Math.round((MAP_ROWS * extent) / total));
      const band = { region, extent, rows, perRow: extent / rows, top: y + MAP_TITLE };
      y = band.top + rows * MAP_ROW + 8;
      return band;
    });
    const { context, width } = fitted(this.canvas, Math.max(y, 30));
    this.width = width;
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const band of this.bands.filter(Boolean)) {
      context.fillStyle = colour("quiet");
      const name = this.app.run.meta.regions[band.region];
      context.fillText(name + ", " + scaled(band.extent) + " at most, " + scaled(band.perRow) + " a row", 0, band.top - MAP_TITLE / 2);
      context.fillStyle = colour("hole");
      context.fillRect(0, band.top, width, band.rows * MAP_ROW - 2);
    }
    for (const life of this.lives) this.drawBlock(context, life);
  }

  drawBlock(context, life) {
    const { run } = this.app;
    const band = this.bands[run.region[life]];
    context.fillStyle = ownerColour(run.owners[run.owner[life]]);
    let [from, left] = [run.offset[life], run.bytes[life]];
    while (left > 0) {
      const row = Math.min(band.rows - 1, Math.floor(from / band.perRow));
      const here = Math.min(left, (row + 1) * band.perRow - from);
      const x = ((from - row * band.perRow) / band.perRow) * this.width;
      const wide = (here / band.perRow) * this.width;
      context.fillRect(x, band.top + row * MAP_ROW, Math.max(0.5, wide - (wide > 4 ? 1 : 0)), MAP_ROW - 2);
      if (here <= 0) return;
      [from, left] = [from + here, left - here];
    }
  }

  /** The address under the mouse, and the block there. */
  at(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, event.clientY - top];
    for (const band of this.bands.filter(Boolean)) {
      const row = Math.floor((y - band.top) / MAP_ROW);
      if (row < 0 || row >= band.rows) continue;
      const address = (row + x / this.width) * band.perRow;
      const { run } = this.app;
      const life = this.lives.find((i) => run.region[i] === band.region && run.offset[i] <= address && address < run.offset[i] + run.bytes[i]);
      return { band, address, life };
    }
    return {};
  }

  tell({ band, address, life }) {
    const { run } = this.app;
    if (!band) return;
    const where = run.meta.regions[band.region] + " + " + grouped(Math.floor(address));
    if (life === undefined) {
      this.told.textContent = where + ": nothing";
      return;
    }
    const { layer, op, line } = run.siteTexts(run.site[life]);
    this.told.textContent = where + ": " + scaled(run.bytes[life]) + " of " + run.owners[run.owner[life]] + ", " + [layer, op, line].filter(Boolean).join(" ");
  }

  /** For each region what is in use, what lies between blocks, and the longest run of that. */
  rows() {
    const { run } = this.app;
    return run.meta.regions.map((name, region) => {
      const lives = this.lives.filter((i) => run.region[i] === region).sort((a, b) => run.offset[a] - run.offset[b]);
      let end = 0, inUse = 0, rounding = 0, holes = 0, longest = 0;
      for (const i of lives) {
        const hole = Math.max(0, run.offset[i] - end);
        [holes, longest] = [holes + hole, Math.max(longest, hole)];
        end = Math.max(end, run.offset[i] + run.bytes[i]);
        inUse += run.bytes[i];
        rounding += run.bytes[i] - run.requested[i];
      }
      return { name, blocks: lives.length, inUse, rounding, holes, longest, end };
    });
  }
}
