// Samples: a list with search and filters, and one sample next to it.

import { ask } from "./answers.js";
import { colour, comma, data, h, highlighted, latest, pause, percent, plain, plural, problem, progress, put, swatch } from "./dom.js";
import { RowList } from "./list.js";
import { Sample } from "./sample.js";

const FILTERS = ["q", "in", "source", "length_from", "length_to", "share_from", "share_to", "reason", "tools", "media"];

export class Samples {
  constructor(root, { overview, go }) {
    this.overview = overview;
    this.go = go;
    this.parameters = {};
    this.list = new RowList({
      load: (first, count) => ask("rows", { ...this.asked(), first, count }).catch((error) => { this.report(error); }),
      draw: (row) => this.drawRow(row),
      chosen: (row, position, isByKey) => this.open(row.row, position, isByKey),
    });
    this.sample = new Sample({ overview, choose: (changes) => this.change(changes, true), step: (by) => this.list.step(by), back: () => this.back() });
    this.search = latest((signal) => this.runSearch(signal), (error) => this.report(error));
    this.said = h("div.list-said", { role: "status" });
    root.append(h("section.list-pane", { "aria-label": "Records" }, this.form(), this.said, this.list.element),
      h("section.sample-pane", { "aria-label": "Sample" }, this.sample.element));
    this.root = root;
  }

  // The form

  form() {
    const { sources, prepared } = this.overview;
    const select = (name, label, options) => h("label", {}, label, h("select", { name },
      options.map(([value, text]) => h("option", { value }, text))));
    const range = (name, label, unit) => h("fieldset", {}, h("legend", {}, label),
      h("input", { name: `${name}_from`, inputmode: "numeric", placeholder: "from", "aria-label": `${label}, from` }), "–",
      h("input", { name: `${name}_to`, inputmode: "numeric", placeholder: "to", "aria-label": `${label}, to` }), unit);
    this.reasons = h("select", { name: "reason" });
    this.drawReasons();
    const more = h("details.filters", {}, h("summary", {}, "Filters"), h("div.filter-grid", {},
      sources.length > 1 && select("source", "Dataset", [["", "all"], ...sources.map(({ name }) => [name, plain(name)])]),
      prepared && range("length", "Length", "tokens"),
      prepared && range("share", "Trained", "%"),
      prepared && h("label", {}, "Dropped", this.reasons),
      !this.overview.exported && select("tools", "Tools", [["", "all records"], ["yes", "uses tools"], ["no", "uses none"]]),
      this.overview.media && !this.overview.exported && select("media", "Media", [["", "all records"], ["image", "images"], ["video", "videos"], ["audio", "audio"]]),
      h("button", { type: "reset" }, "Clear")));
    this.controls = h("form.search-form", { role: "search", onsubmit: (event) => event.preventDefault(), onreset: () => setTimeout(() => this.typed()) },
      h("div.search-line", {},
        h("input", { type: "search", name: "q", placeholder: "Search all records", "aria-label": "Search", autocomplete: "off", spellcheck: "false" }),
        prepared && h("select", { name: "in", "aria-label": "Search in" },
          h("option", { value: "" }, "records"), h("option", { value: "rendered" }, "rendered"))),
      h("div.filter-line", {}, more, h("label.jump", {}, "Go to record",
        h("input", { inputmode: "numeric", "aria-label": "Go to record", placeholder: "0", onkeydown: (event) => this.jump(event) }))));
    this.controls.addEventListener("input", (event) => {
      if (!event.target.name) return;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.typed(), event.target.tagName === "SELECT" ? 0 : 250);
    });
    return this.controls;
  }

  drawReasons() {
    const { reasons = {}, meanings } = this.overview;
    const options = [["", "all records"], ["none", "not dropped"], ["any", "dropped, any reason"],
      ...Object.entries(reasons).map(([name, count]) => [name, `${plain(name)}: ${plain(meanings[name])} (${comma(count)})`])];
    put(this.reasons, options.map(([value, text]) => h("option", { value }, text)));
    this.reasons.value = this.parameters.reason ?? "";
  }

  refresh() { // the facts are complete
    this.drawReasons();
    this.search();
  }

  typed() {
    const given = Object.fromEntries(new FormData(this.controls));
    this.go("samples", { ...given, tab: this.parameters.tab }, { replace: Boolean(this.parameters.q && given.q) });
  }

  jump(event) {
    if (event.key !== "Enter") return;
    event.preventDefault();
    const { sources } = this.overview, chosen = sources.findIndex(({ name }) => name === this.parameters.source);
    const before = sources.slice(0, Math.max(chosen, 0)).reduce((sum, { rows }) => sum + rows, 0); // rows of a chosen dataset are counted there
    const own = Number(event.target.value.replaceAll(/[,_\s]/g, "")), most = chosen < 0 ? this.overview.num_rows : sources[chosen].rows;
    if (!Number.isInteger(own) || own < 0 || own >= most) {
      this.report(new Error(`Record ${event.target.value} does not exist: ${most ? `records are counted from 0 to ${comma(most - 1)}` : "there are none"}.`));
      return;
    }
    this.go("samples", { tab: this.parameters.tab, source: this.parameters.source, row: before + own, at: own });
  }

  // What is shown

  asked() { return Object.fromEntries(FILTERS.map((name) => [name, this.parameters[name]])); }

  update(parameters) {
    const before = JSON.stringify(this.asked()), isFirst = !this.begun;
    this.parameters = parameters;
    const at = this.placeOf(parameters);
    if (isFirst || JSON.stringify(this.asked()) !== before) {
      this.begun = true;
      this.seen = undefined;
      for (const name of FILTERS) {
        const control = this.controls.elements[name];
        if (control && control !== document.activeElement) control.value = parameters[name] ?? "";
      }
      if (FILTERS.slice(2).some((name) => parameters[name])) this.controls.querySelector("details").open = true;
      this.list.top = Math.max(at - 3, 0);
      this.wanted = at; // a search may find it only later
      this.search();
    }
    this.list.select(at);
    this.root.classList.toggle("has-sample", parameters.row !== undefined);
    this.sample.update(parameters);
  }

  // The place of the chosen record in the list; a link may name the record only.
  placeOf({ at, row }) {
    if (at !== undefined) return Number(at);
    if (row === undefined) return -1;
    if (this.seen?.row === row) return this.seen.at;
    const isWhole = !this.overview.exported && !FILTERS.some((name) => name !== "in" && this.parameters[name]);
    return isWhole ? Number(row) : -1;
  }

  // Ask again while a search or the facts are under way; results so far are shown as such.
  async runSearch(signal) {
    const asked = this.asked();
    let wait = 150, before = -1;
    for (;;) {
      const first = Math.max(Math.floor(this.list.top / 50) * 50, 0);
      const found = await ask("rows", { ...asked, first, count: 100 }, signal);
      if (found.total !== before || found.complete) this.list.reset(found.total, found.rows, first);
      if (this.wanted >= 0 && this.wanted < found.total) {
        this.list.moveTo(this.wanted - 3);
        this.wanted = -1;
      }
      before = found.total;
      const { row } = this.parameters, place = row === undefined || this.list.at >= 0 ? -1 : found.rows.findIndex((each) => each.row === Number(row));
      if (place >= 0) {
        this.seen = { row, at: first + place };
        this.list.select(first + place, { scroll: false });
      }
      this.say(found);
      if (this.list.at < 0 && this.parameters.row === undefined && found.complete && found.rows.length && innerWidth > 800) {
        this.go("samples", { ...this.asked(), tab: this.parameters.tab, run_id: this.parameters.run_id, row: found.rows[0].row, at: first }, { replace: true });
      }
      if (found.complete || found.index?.error || found.facts?.error) return;
      await pause(wait, signal);
      wait = Math.min(wait * 1.5, 1000);
    }
  }

  say(found) {
    const whole = this.overview.num_rows, isFiltered = FILTERS.some((name) => name !== "in" && this.parameters[name]);
    const count = isFiltered || this.overview.exported ? `${comma(found.total)} of ${plural(whole, "record")}` : plural(whole, "record");
    const parts = [h("b", {}, found.complete ? count : `${count} so far`)];
    if (found.index && !found.index.over) parts.push(progress(found.index, "reading records for the search"));
    else if (found.scanned !== undefined && !found.complete) parts.push(progress({ done: found.scanned, of: whole }, "searching"));
    if (found.facts && !found.facts.over) parts.push(progress(found.facts, "counting tokens"));
    for (const text of [found.index?.limit, found.index?.error, found.facts?.error]) if (text) parts.push(h("p.problem", {}, data(text)));
    if (!this.overview.prepared) {
      parts.push(h("p.problem", {}, "Not prepared: lengths and the order are not known. To see them, run ", h("code", {}, this.overview.command)));
    }
    put(this.said, ...parts);
  }

  report(error) {
    put(this.said, problem(error));
  }

  drawRow(row) {
    const { length, targets, reason, source, why } = row;
    const facts = [`${comma(row.own)}`];
    if (length !== undefined) facts.push(length ? `${plural(length, "token")}${targets === undefined ? "" : `, ${percent(targets, length)} trained`}` : "no tokens");
    return [h("span.row-text", {}, h("bdi", {}, highlighted(row.text || "(no text)", this.parameters.q))),
      h("span.row-facts", {}, this.overview.sources.length > 1 && swatch(colour(source)), h("span", {}, facts.join(" · ")),
        reason && h("em", {}, data(reason, 40)), why && !reason && h("em", {}, why))];
  }

  open(row, position, isByKey) {
    this.go("samples", { ...this.asked(), tab: this.parameters.tab, run_id: this.parameters.run_id, row, at: position }, { replace: isByKey && this.parameters.row !== undefined });
  }

  change(changes, replace) {
    this.go("samples", { ...this.parameters, ...changes }, { replace });
  }

  back() {
    this.go("samples", { ...this.asked(), tab: this.parameters.tab });
    this.list.element.focus();
  }

  key(event) {
    const tab = { t: "tokens", x: "text", r: "raw" }[event.key];
    if (event.key === "/") this.controls.elements.q.focus();
    else if (event.key === "g") this.controls.querySelector(".jump input").focus();
    else if (["j", "ArrowDown"].includes(event.key) && !event.target.closest("[tabindex]")) this.list.step(1);
    else if (["k", "ArrowUp"].includes(event.key) && !event.target.closest("[tabindex]")) this.list.step(-1);
    else if (event.key === "j") this.list.step(1);
    else if (event.key === "k") this.list.step(-1);
    else if (event.key === "Escape" && this.parameters.row !== undefined) this.back();
    else if (tab && this.parameters.row !== undefined) this.change({ tab }, true);
    else return false;
    return true;
  }

  close() {
    clearTimeout(this.timer);
    this.search.stop();
    this.list.close();
    this.sample.close();
  }
}
