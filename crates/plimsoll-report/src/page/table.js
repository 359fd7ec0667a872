"use strict";
/* A table that is sorted by its headings, filtered by a word, read page by page, and copied. It never has more rows in the
 * document than a page, however many there are. */

class Table {
  /** Columns: { name, title, number, text(row) }; `choose` is called with the row that was clicked. */
  constructor(place, { columns, caption, pageSize = 15, sortBy, descending = true, filter = false, choose = null }) {
    Object.assign(this, { columns, caption, pageSize, sortBy, descending, choose });
    this.rows = [];
    this.word = "";
    this.page = 0;
    this.body = element("tbody");
    this.headings = columns.map((column) => this.heading(column));
    const table = element(
      "table",
      {},
      element("caption", { class: "hidden" }, caption),
      element("thead", {}, element("tr", {}, ...this.headings)),
      this.body,
    );
    this.count = element("span", { class: "count", "aria-live": "polite" });
    this.before = element("button", { type: "button", "aria-label": caption + ": page before", onclick: () => this.turn(-1) }, "‹");
    this.after = element("button", { type: "button", "aria-label": caption + ": next page", onclick: () => this.turn(1) }, "›");
    const copy = element("button", { type: "button", onclick: () => this.copy() }, "Copy");
    const bar = element("div", { class: "bar" }, this.before, this.count, this.after, copy);
    if (filter) bar.prepend(this.filterField());
    place.replaceChildren(bar, element("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": caption }, table));
  }

  filterField() {
    const input = element("input", { type: "search", placeholder: "filter: layer, op, line, owner", "aria-label": this.caption + ": filter" });
    input.addEventListener("input", () => {
      this.word = input.value.toLowerCase();
      this.page = 0;
      this.show();
    });
    return input;
  }

  heading(column) {
    const button = element("button", { type: "button", onclick: () => this.sort(column.name) }, column.title);
    return element("th", { scope: "col", class: column.number ? "number" : "" }, button);
  }

  sort(name) {
    this.descending = this.sortBy === name ? !this.descending : Boolean(this.columns.find((c) => c.name === name).number);
    this.sortBy = name;
    this.page = 0;
    this.show();
  }

  turn(pages) {
    this.page += pages;
    this.show();
  }

  set(rows) {
    this.rows = rows;
    this.show();
  }

  /** The rows that are left by the filter, in order. */
  chosen() {
    const { word, sortBy, descending } = this;
    const texts = this.columns.filter((column) => !column.number);
    const rows = word === "" ? [...this.rows] : this.rows.filter((row) => texts.some((c) => c.text(row).toLowerCase().includes(word)));
    const column = this.columns.find((c) => c.name === sortBy);
    const value = column.value ?? (column.number ? (row) => row[sortBy] : column.text);
    const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
    rows.sort((a, b) => (descending ? -1 : 1) * order(value(a), value(b)));
    return rows;
  }

  show() {
    const rows = this.chosen();
    const nPages = Math.max(1, Math.ceil(rows.length / this.pageSize));
    this.page = Math.min(Math.max(0, this.page), nPages - 1);
    const start = this.page * this.pageSize;
    this.body.replaceChildren(...rows.slice(start, start + this.pageSize).map((row) => this.row(row)));
    const end = Math.min(rows.length, start + this.pageSize);
    this.count.textContent = rows.length === 0 ? "nothing" : grouped(start + 1) + "–" + grouped(end) + " of " + grouped(rows.length);
    this.before.disabled = this.page === 0;
    this.after.disabled = this.page + 1 >= nPages;
    this.before.hidden = this.after.hidden = nPages === 1;
    this.columns.forEach((column, i) => {
      const sorted = column.name === this.sortBy ? (this.descending ? "descending" : "ascending") : null;
      if (sorted) this.headings[i].setAttribute("aria-sort", sorted);
      else this.headings[i].removeAttribute("aria-sort");
    });
  }

  row(row) {
    const cells = this.columns.map((column, i) => {
      const text = column.text(row);
      const cell = element("td", { class: column.number ? "number" : "", title: text.length > 40 ? text : null });
      if (i === 0 && this.choose) cell.append(element("button", { type: "button", class: "link", onclick: () => this.choose(row) }, text));
      else cell.append(...(column.mark ? [swatch(column.mark(row))] : []), text);
      return cell;
    });
    return element("tr", {}, ...cells);
  }

  /** All rows that the filter leaves, with tabs between cells. */
  async copy() {
    const lines = [this.columns.map((c) => c.title), ...this.chosen().map((row) => this.columns.map((c) => c.text(row)))];
    const text = lines.map((line) => line.join("\t")).join("\n");
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = element("textarea", { "aria-label": "copied" });
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    this.count.textContent = "copied " + grouped(lines.length - 1) + " rows";
  }
}
