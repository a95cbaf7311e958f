// A list of millions of rows: only those that are seen exist, and only their neighbours are asked for.

import { h } from "./dom.js";

const HEIGHT = 58; // pixels of a row
const TALLEST = 8_000_000; // pixels of the scrolled area; browsers do not go much further
const PAGE = 50; // rows of one request
const KEPT = 60; // pages

export class RowList {
  // load(first, count) → {total, rows}; draw(row, position) → nodes; chosen(row, position, isByKey)
  constructor({ load, draw, chosen }) {
    this.load = load;
    this.draw = draw;
    this.chosen = chosen;
    this.total = 0;
    this.top = 0; // position of the first row that is seen, with its fraction
    this.at = -1; // position of the chosen row
    this.pages = new Map();
    this.version = 0;
    this.inner = h("div.list-inner", { role: "presentation" });
    this.element = h("div.list", { role: "listbox", tabindex: 0, "aria-label": "Records",
      onscroll: () => this.scrolled(), onkeydown: (event) => this.pressed(event) }, this.inner);
    this.element.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    this.watch = new ResizeObserver(() => this.render());
    this.watch.observe(this.element);
  }

  get scale() { // scrolled pixels of the list → pixels of the element
    const seen = this.element.clientHeight;
    return Math.max(this.height - seen, 1) / Math.max(this.total * HEIGHT - seen, 1);
  }

  reset(total, rows, first) {
    this.version += 1;
    this.pages.clear();
    this.resize(total);
    this.keep(first, rows);
    this.top = Math.min(this.top, Math.max(total - 1, 0));
    this.place();
    this.render();
  }

  resize(total) {
    this.total = total;
    this.height = Math.min(total * HEIGHT, TALLEST);
    this.inner.style.height = `${this.height}px`;
  }

  keep(first, rows) {
    for (let place = 0; place < rows.length; place += PAGE) {
      if ((first + place) % PAGE === 0) this.pages.set((first + place) / PAGE, rows.slice(place, place + PAGE));
    }
    while (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
  }

  row(position) { return this.pages.get(Math.floor(position / PAGE))?.[position % PAGE]; }

  async rowAt(position) { // also of a row that is not seen
    if (position < 0 || position >= this.total) return undefined;
    if (!this.row(position)) await this.fetch(Math.floor(position / PAGE));
    return this.row(position);
  }

  scrolled() {
    const scroll = this.element.scrollTop;
    if (Math.abs(scroll - this.placed) < 1) return; // our own doing
    this.placed = scroll;
    this.top = scroll / this.scale / HEIGHT;
    this.render();
  }

  wheeled(event) { // where one pixel of the scrollbar is many rows, the wheel still moves by a few
    if (this.scale > 0.99 || event.ctrlKey) return;
    event.preventDefault();
    this.moveTo(this.top + (event.deltaMode === 1 ? event.deltaY : event.deltaY / HEIGHT));
  }

  moveTo(top) {
    const last = this.total - this.element.clientHeight / HEIGHT;
    this.top = Math.max(Math.min(top, last), 0);
    this.place();
    this.render();
  }

  place() {
    this.placed = this.top * HEIGHT * this.scale;
    this.element.scrollTop = this.placed;
    this.placed = this.element.scrollTop;
  }

  select(position, { scroll = true } = {}) {
    this.at = position;
    const seen = this.element.clientHeight / HEIGHT;
    if (scroll && position >= 0 && position < this.top) this.moveTo(position);
    else if (scroll && position >= 0 && position + 1 > this.top + seen) this.moveTo(position + 1 - seen);
    else this.render();
  }

  pressed(event) {
    const seen = Math.max(Math.floor(this.element.clientHeight / HEIGHT) - 1, 1);
    const by = { ArrowDown: 1, ArrowUp: -1, PageDown: seen, PageUp: -seen, Home: -Infinity, End: Infinity }[event.key];
    if (by === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    this.step(by);
  }

  async step(by) {
    const position = Math.max(Math.min(this.at + by, this.total - 1), 0);
    if (!this.total || position === this.at) return;
    this.select(position);
    const version = this.version, row = await this.rowAt(position);
    if (row && version === this.version && this.at === position) this.chosen(row, position, true);
  }

  render() {
    if (!this.element.isConnected) return;
    const first = Math.floor(this.top), count = Math.ceil(this.element.clientHeight / HEIGHT) + 1;
    const rows = [];
    for (let position = first; position < Math.min(first + count, this.total); position += 1) {
      const row = this.row(position), isChosen = position === this.at;
      const element = h("div.list-row", { id: `row-${position}`, role: "option", "aria-selected": String(isChosen),
        "aria-setsize": this.total, "aria-posinset": position + 1,
        onclick: () => { if (row) { this.select(position, { scroll: false }); this.chosen(row, position, false); } } },
      row ? this.draw(row, position) : h("span.list-wait", {}, "…"));
      element.style.top = `${this.placed + (position - this.top) * HEIGHT}px`;
      rows.push(element);
    }
    this.inner.replaceChildren(...rows);
    if (this.at >= first && this.at < first + count) this.element.setAttribute("aria-activedescendant", `row-${this.at}`);
    else this.element.removeAttribute("aria-activedescendant");
    this.complete(first, first + count);
  }

  complete(first, last) { // ask for pages that are seen, a moment after scrolling has stopped
    const wanted = [];
    for (let page = Math.floor(first / PAGE); page * PAGE < Math.min(last, this.total); page += 1) {
      if (!this.pages.has(page)) wanted.push(page);
    }
    clearTimeout(this.timer);
    if (wanted.length) this.timer = setTimeout(() => wanted.forEach((page) => this.fetch(page)), 40);
  }

  async fetch(page) {
    const version = this.version;
    const found = await this.load(page * PAGE, PAGE);
    if (!found || version !== this.version) return;
    this.keep(page * PAGE, found.rows);
    this.render();
  }

  close() {
    this.version += 1;
    clearTimeout(this.timer);
    this.watch.disconnect();
  }
}
