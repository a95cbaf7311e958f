// Data: the numbers of the run on one screen, as plots and as the tables that the command line prints.

import { ask } from "./answers.js";
import { histogram } from "./chart.js";
import { comma, data, h, latest, pause, problem, progress, put } from "./dom.js";

export class Data {
  constructor(root, { overview }) {
    this.overview = overview;
    this.root = root;
    this.load = latest((signal) => this.read(signal), (error) => put(root, problem(error)));
  }

  update() {
    if (!this.overview.prepared) {
      put(this.root, h("p.problem", {}, "Not prepared, so there are no numbers. Run ", h("code", {}, this.overview.command)));
    } else if (!this.isAsked) {
      this.isAsked = true;
      this.load();
    }
  }

  async read(signal) {
    for (;;) {
      const found = await ask("summary", {}, signal);
      if (found.plots) {
        this.draw(found);
        return;
      }
      if (found.progress.error) throw new Error(found.progress.error);
      put(this.root, progress(found.progress, "counting tokens and rows"));
      await pause(300, signal);
    }
  }

  draw(found) {
    const alarm = found.problem ? problem(new Error(found.problem)) : null;
    put(this.root, alarm, h("section", {}, h("h2", {}, "Plots"), h("div.pair", {}, found.plots.map(histogram))),
      sections(found.pieces), this.parts(), this.prints(), this.recipe());
  }

  parts() {
    const { part, parts } = this.overview;
    if (parts.length < 2) return null;
    const cells = ({ rows, samples, tokens, trained }) => (rows === null ? [h("td", { colspan: 5 }, "not prepared")]
      : [comma(rows), comma(samples), comma(tokens), comma(trained), comma(rows - samples)].map((cell) => h("td.n", {}, cell)));
    return h("section", {}, h("h2", {}, "Training and evaluation sets"), h("div.scroll", {}, h("table", {},
      h("thead", {}, h("tr", {}, ["part", "records", "samples", "tokens", "trained tokens", "dropped"].map((name, place) => h(place ? "th.n" : "th", { scope: "col" }, name)))),
      h("tbody", {}, parts.map((each) => h("tr", {}, h("td", {}, data(each.name, 60)), cells(each)))))),
    h("p.note", {}, "This page shows ", h("b", {}, data(part)), ". To look at another one, pass ", h("code", {}, "--part"), " with its name."));
  }

  prints() {
    const rows = Object.entries(this.overview.identity ?? {});
    if (!rows.length) return null;
    return h("section", {}, h("h2", {}, "Fingerprints"), h("div.scroll", {}, h("table", {},
      h("tbody", {}, rows.map(([name, print]) => h("tr", {}, h("td", {}, data(name)), h("td", {}, h("code", {}, print))))))));
  }

  recipe() {
    if (!this.overview.recipe) return null;
    return h("section", {}, h("details", {}, h("summary", {}, "The recipe"), h("pre.raw", { tabindex: 0 }, data(this.overview.recipe, 20_000))));
  }

  close() { this.load.stop(); }
}

// Pieces of report/text.py: a line in bold begins a section.
function sections(pieces) {
  const made = [];
  for (const piece of pieces) {
    if (piece.style === "bold") made.push(h("section", {}, h("h2", {}, data(piece.text))));
    else {
      if (!made.length) made.push(h("section"));
      made.at(-1).append(drawPiece(piece));
    }
  }
  return made;
}

function drawPiece({ text, style, columns, rows }) {
  if (!columns.length) return h(style === "warn" || style === "yellow" ? "p.problem" : "p.note", {}, data(text, 2000));
  const isNumber = columns.map((column) => column.startsWith("#"));
  const head = columns.some(Boolean) ? h("thead", {}, h("tr", {}, columns.map((column, place) => h(isNumber[place] ? "th.n" : "th", { scope: "col" }, column.replace(/^#/, ""))))) : null;
  return h("div.scroll", {}, h("table", {}, head, h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) => h(isNumber[place] ? "td.n" : "td", {}, data(cell))))))));
}
