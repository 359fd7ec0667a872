"use strict";
/* Elements and words. Every text of a profile reaches the page as a text node, never as HTML. */

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") made.className = value;
    else if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

const grouping = new Intl.NumberFormat("en-US");

function grouped(number) {
  return grouping.format(number);
}

/** As the program says it: 1.06 MiB. */
function scaled(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0, value = Math.abs(bytes);
  while (value >= 1024 && unit + 1 < units.length) [value, unit] = [value / 1024, unit + 1];
  const sign = bytes < 0 ? "−" : "";
  return sign + (unit === 0 ? value : value.toFixed(2)) + " " + units[unit];
}

function bothSizes(bytes) {
  return bytes < 1024 ? scaled(bytes) : scaled(bytes) + " (" + grouped(bytes) + " B)";
}

function signed(bytes) {
  return (bytes > 0 ? "+" : bytes < 0 ? "−" : "") + grouped(Math.abs(bytes));
}

function duration(ns) {
  if (ns < 1e3) return Math.round(ns) + " ns";
  if (ns < 1e6) return (ns / 1e3).toFixed(1) + " µs";
  if (ns < 1e9) return (ns / 1e6).toFixed(2) + " ms";
  return (ns / 1e9).toFixed(2) + " s";
}

function share(part, whole) {
  return ((100 * part) / Math.max(1, whole)).toFixed(1) + " %";
}

/** Step 3, backward. */
function placeOf(run, moment) {
  const { step, phase } = run.whereIs(moment);
  return (step ? "step " + grouped(step) + ", " : "") + phase;
}

function nameOf(run) {
  const { recipe, device, batch } = run.about;
  const parts = [recipe ?? "a pool", device ? "on " + device : "", batch ? "batch " + grouped(batch) : ""];
  return parts.filter((part) => part !== "").join(" ").replace(" batch", ", batch");
}

/** Colours of the style sheet that were asked for; forgotten when the theme changes. */
const colours = new Map();

function colour(name) {
  if (!colours.has(name)) {
    const probe = byId("probe");
    probe.style.color = "var(--" + name + ")";
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

function ownerColour(owner) {
  return colour("owner-" + owner);
}

/** A small square in an owner's colour. */
function swatch(owner) {
  const made = element("span", { class: "swatch", "aria-hidden": "true" });
  made.style.background = "var(--owner-" + owner + ")";
  return made;
}

/** A canvas as wide as its parent, sharp on every screen; returns its context and its size in CSS pixels. */
function fitted(canvas, height) {
  const width = Math.max(200, Math.floor(canvas.parentElement.clientWidth));
  const density = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * density);
  canvas.height = Math.round(height * density);
  canvas.style.width = width + "px";
  canvas.style.height = height + "px";
  const context = canvas.getContext("2d");
  context.setTransform(density, 0, 0, density, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

/** A text cut to a width, with an ellipsis. */
function cut(context, text, width) {
  if (width < 14) return "";
  if (context.measureText(text).width <= width) return text;
  let length = Math.min(text.length, Math.floor(width / 4));
  while (length > 0 && context.measureText(text.slice(0, length) + "…").width > width) length--;
  return length > 0 ? text.slice(0, length) + "…" : "";
}
