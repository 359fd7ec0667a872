"use strict";
/* The bytes of a moment as an icicle: layers above ops above lines, each as wide as its bytes. */

const ICICLE_ROW = 26;
const ICICLE_DEPTH = 12;

/** A tree of layers, ops and lines from the rows of a moment. */
function icicleTree(holders) {
  const root = { name: "in use", bytes: 0, children: new Map(), owners: new Map() };
  for (const row of holders) {
    const layers = row.layer === "" ? ["no layer"] : row.layer.split(".").slice(0, ICICLE_DEPTH - 4);
    const path = [...layers, row.op || "no op", (row.line || "no line") + " (" + row.owner + ")"];
    let node = root;
    count(node, row);
    for (const name of path) {
      if (!node.children.has(name)) node.children.set(name, { name, bytes: 0, children: new Map(), owners: new Map(), parent: node });
      node = node.children.get(name);
      count(node, row);
    }
  }
  return root;
}

function count(node, row) {
  node.bytes += row.bytes;
  node.owners.set(row.owner, (node.owners.get(row.owner) ?? 0) + row.bytes);
}

/** Who owns most of a node. */
function mainOwner(node) {
  let best = "rounding", most = -1;
  for (const [owner, bytes] of node.owners) if (bytes > most) [best, most] = [owner, bytes];
  return best;
}

/** The names from the outermost layer to a node. */
function icicleNames(node) {
  const names = [];
  for (let at = node; at.parent; at = at.parent) names.unshift(at.name);
  return names;
}

class IcicleView {
  constructor(app, canvas, told) {
    Object.assign(this, { app, canvas, told, names: [], boxes: [], focus: 0 });
    canvas.addEventListener("mousemove", (event) => this.tell(this.at(event)));
    canvas.addEventListener("click", (event) => this.open(this.at(event)));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("focus", () => this.draw());
    canvas.addEventListener("blur", () => this.draw());
  }

  set(holders) {
    this.root = icicleTree(holders);
    this.draw();
  }

  /** The node that fills the width: the chosen one, or as much of its path as this moment has. */
  top() {
    let node = this.root;
    for (const name of this.names) node = node.children.get(name) ?? node;
    return node;
  }

  draw() {
    if (!this.root) return;
    const top = this.top();
    this.boxes = [];
    const path = [];
    for (let node = top; node; node = node.parent) path.unshift(node);
    const width = Math.max(200, this.canvas.parentElement.clientWidth);
    path.forEach((node, depth) => this.boxes.push({ node, x: 0, y: depth, width }));
    this.place(top, 0, width, path.length);
    const depth = Math.max(...this.boxes.map((box) => box.y)) + 1;
    const { context } = fitted(this.canvas, depth * ICICLE_ROW);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    this.focus = Math.min(this.focus, this.boxes.length - 1);
    this.boxes.forEach((box, i) => this.drawBox(context, box, document.activeElement === this.canvas && i === this.focus));
    this.canvas.setAttribute("aria-label", "Icicle of " + scaled(top.bytes) + " by layer, op and line; the table below has the same");
  }

  place(node, x, width, depth) {
    let at = x;
    const children = [...node.children.values()].sort((a, b) => b.bytes - a.bytes || (a.name < b.name ? -1 : 1));
    for (const child of children) {
      const wide = node.bytes ? (width * child.bytes) / node.bytes : 0;
      if (wide >= 1.5 && depth < ICICLE_DEPTH + 2) {
        this.boxes.push({ node: child, x: at, y: depth, width: wide });
        this.place(child, at, wide, depth + 1);
      }
      at += wide;
    }
  }

  drawBox(context, { node, x, y, width }, isFocused) {
    const isLeaf = node.children.size === 0;
    const [left, top, wide, high] = [x + 0.5, y * ICICLE_ROW + 0.5, Math.max(1, width - 1), ICICLE_ROW - 2];
    context.globalAlpha = isLeaf ? 1 : 0.35;
    context.fillStyle = node.parent ? ownerColour(mainOwner(node)) : colour("grid");
    context.fillRect(left, top, wide, high);
    context.globalAlpha = 1;
    if (isFocused) {
      context.strokeStyle = colour("ink");
      context.lineWidth = 2;
      context.strokeRect(left + 1, top + 1, wide - 2, high - 2);
    }
    context.fillStyle = isLeaf ? colour("on-owner") : colour("ink");
    const text = cut(context, node.name + "  " + scaled(node.bytes), wide - 10);
    if (text !== "") context.fillText(text, left + 5, top + high / 2);
  }

  at(event) {
    const { left, top } = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - left, Math.floor((event.clientY - top) / ICICLE_ROW)];
    return this.boxes.findIndex((box) => box.y === y && box.x <= x && x < box.x + box.width);
  }

  tell(index) {
    const box = this.boxes[index];
    this.told.textContent = box ? [...icicleNames(box.node)].join(" › ") + (box.node.parent ? ": " : "in use: ") + bothSizes(box.node.bytes) + ", " + share(box.node.bytes, this.root.bytes) : "";
  }

  open(index) {
    const box = this.boxes[index];
    if (!box) return;
    this.names = icicleNames(box.node);
    this.focus = Math.max(0, Math.min(this.names.length, this.boxes.length - 1));
    this.draw();
    this.tell(this.focus);
  }

  key(event) {
    const boxes = this.boxes, here = boxes[this.focus];
    const nearest = (y) => boxes.findIndex((box) => box.y === y && box.x <= here.x + 0.5 && here.x < box.x + box.width);
    const beside = (direction) => {
      for (let i = this.focus + direction; boxes[i]; i += direction) if (boxes[i].y === here.y) return i;
      return this.focus;
    };
    const moves = { ArrowUp: () => nearest(here.y - 1), ArrowDown: () => nearest(here.y + 1), ArrowLeft: () => beside(-1), ArrowRight: () => beside(1) };
    if (event.key === "Enter") this.open(this.focus);
    else if (event.key === "Escape") this.open(0);
    else if (moves[event.key]) {
      const next = moves[event.key]();
      if (next >= 0) this.focus = next;
      this.draw();
      this.tell(this.focus);
    } else return;
    event.preventDefault();
  }
}
