// Data: the numbers of the run on one screen, as plots and as the tables that the command line prints.

import { comma, data, h, latest, pause, percent, problem, progress, put, s } from "./dom.js";
import { ask } from "./answers.js";

const HEIGHT = 120; // pixels of a plot

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
    put(this.root, alarm, h("section", {}, h("h2", {}, "Plots"), h("div.pair", {}, found.plots.map(plot))),
      sections(found.pieces), this.prints(), this.recipe());
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

function plot({ title, note, labels, counts, lost }) {
  const top = Math.max(...counts, 1), total = counts.reduce((sum, count) => sum + count, 0);
  const said = (bar) => `${labels[bar]}: ${comma(counts[bar])} (${percent(counts[bar], total)})`;
  const bars = counts.map((count, bar) => {
    const tall = (HEIGHT * count) / top;
    return s(`rect.${lost[bar] ? "lost" : "fill"}`, { x: bar + 0.06, y: HEIGHT - tall, width: 0.88, height: tall }, s("title", {}, said(bar)));
  });
  const numbers = h("details", {}, h("summary", {}, "The numbers"), h("div.scroll", {}, h("table", {},
    h("tbody", {}, counts.map((count, bar) => h("tr", {}, h("td", {}, labels[bar]), h("td.n", {}, comma(count)), h("td.n", {}, percent(count, total))))))));
  return h("figure", {}, h("figcaption", {}, title, h("span.soft", {}, ` ${note}`)),
    s("svg.histogram", { width: "100%", height: HEIGHT, viewBox: `0 0 ${counts.length} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}: ${note}` }, bars),
    h("p.axis.soft", {}, h("span", {}, labels[0] ?? ""), h("span", {}, labels.at(-1) ?? "")), numbers);
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
