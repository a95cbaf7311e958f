// What if: other lengths, packings and weights; steps, efficiency and losses are computed again from the lengths.

import { ask } from "./answers.js";
import { colour, comma, copyButton, data, h, latest, percent, problem, put, swatch } from "./dom.js";

const PACKINGS = ["mixed_fit", "best_fit", "concat", "none"], OVERFLOWS = ["drop", "truncate", "split"];
const MEASURES = [
  ["Steps", "steps", comma, -1], ["Rows", "rows", comma, -1], ["Packing efficiency", "fill", (value) => percent(value), 1],
  ["Samples in rows", "samples", comma, 1], ["Tokens in rows", "tokens", comma, 1], ["Tokens lost", "tokens_lost", comma, -1],
  ["Trained tokens lost, of all prepared", "targets_lost", (value, all) => (value === null ? "not computed" : `${comma(value)} (${percent(value, all.targets)})`), -1],
  ["Samples cut or split", "samples_cut", comma, -1],
];

export class WhatIf {
  constructor(root, { overview, go }) {
    this.overview = overview;
    this.go = go;
    this.own = overview.settings;
    this.result = h("section", { "aria-label": "Result", "aria-live": "polite" });
    this.load = latest((signal) => this.read(signal), (error) => put(this.result, problem(error)));
    if (!overview.prepared) {
      root.append(h("section", {}, h("p.problem", {}, "Not prepared, so lengths are not known. Run ", h("code", {}, overview.command))));
      return;
    }
    root.append(h("section", { "aria-label": "Settings" }, h("h2", {}, "What if"), this.form()), this.result);
  }

  form() {
    const { max_length: length, packing, on_overlong, weights } = this.own;
    const most = Math.max(17, Math.ceil(Math.log2(length)) + 2);
    const select = (name, label, options, value) => h("label", {}, label, h("select", { name }, [...new Set([value, ...options])].map((each) => h("option", { value: each }, each))));
    const slide = h("input", { type: "range", min: 16, max: most * 4, step: 1, "aria-label": "max_length, slider" });
    const field = h("input", { name: "max_length", type: "number", min: 1, max: 2 ** 30, value: length });
    slide.addEventListener("input", () => { field.value = Math.round(2 ** (Number(slide.value) / 4)); });
    this.length = { slide, field };
    this.ownWeights = (weights ?? []).map(fraction);
    this.weights = [...this.ownWeights]; // a slider is coarse, so one that does not move keeps its weight
    this.total = this.ownWeights.reduce((sum, each) => sum + each, 0);
    this.form_ = h("form.what-if-form", { onsubmit: (event) => event.preventDefault(), oninput: (event) => this.typed(event),
      onreset: () => setTimeout(() => this.go("what-if", {})) },
    h("label", {}, "max_length", field, slide), select("packing", "packing", PACKINGS, packing), select("on_overlong", "on_overlong", OVERFLOWS, on_overlong),
    weights ? h("fieldset.weights", {}, h("legend", {}, "weights"), weights.map((_, source) => h("label", {}, swatch(colour(source)), data(this.overview.sources[source].name, 40),
      h("input", { type: "range", name: "weight", min: 1, max: 100, "data-source": source, "aria-label": "weight" }), h("output")))) : null,
    h("button", { type: "reset" }, "As in the recipe"));
    return this.form_;
  }

  typed({ target }) {
    if (target.name === "weight") this.weights[target.dataset.source] = (Number(target.value) * this.total) / 100;
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      const given = new FormData(this.form_);
      const weights = this.weights.join(","), isOwn = weights === this.ownWeights.join(",");
      const changed = Object.fromEntries(["max_length", "packing", "on_overlong"].filter((name) => given.get(name) !== String(this.own[name])).map((name) => [name, given.get(name)]));
      this.go("what-if", { ...changed, weights: isOwn ? null : weights || null }, { replace: true });
    }, 120);
  }

  update(parameters) {
    if (!this.overview.prepared) return;
    this.parameters = parameters;
    for (const name of ["max_length", "packing", "on_overlong"]) {
      const control = this.form_.elements[name];
      if (control !== document.activeElement) control.value = parameters[name] ?? this.own[name];
    }
    this.length.slide.value = Math.round(Math.log2(Number(this.length.field.value) || 1) * 4);
    const sliders = [...this.form_.querySelectorAll("input[name=weight]")];
    this.weights = parameters.weights?.split(",").map(Number) ?? [...this.ownWeights];
    const total = this.weights.reduce((sum, each) => sum + each, 0);
    sliders.forEach((each, source) => {
      if (each !== document.activeElement) each.value = Math.round((100 * this.weights[source]) / this.total);
      each.nextElementSibling.textContent = percent(this.weights[source], total);
    });
    this.load();
  }

  refresh() {
    this.base = undefined;
    this.load();
  }

  async read(signal) {
    this.result.setAttribute("aria-busy", "true");
    this.base ??= await ask("what_if", {}, signal);
    const isOwn = !Object.keys(this.parameters).length;
    const begun = performance.now(), found = isOwn ? this.base : await ask("what_if", this.parameters, signal);
    const seconds = isOwn ? null : (performance.now() - begun) / 1000;
    this.result.removeAttribute("aria-busy");
    this.draw(found, seconds);
  }

  draw(found, seconds) {
    if (found.problem) {
      put(this.result, h("h2", {}, "Result"), h("p.problem", {}, "These settings are refused: ", data(found.problem, 1000)));
      return;
    }
    const base = this.base.problem ? null : this.base;
    const lines = Object.entries(this.parameters).filter(([name]) => name !== "weights").map(([name, value]) => `${name}: ${value}`);
    put(this.result, h("h2", {}, "Result"), base ? null : h("p.problem", {}, "The recipe itself is refused: ", data(this.base.problem, 1000)),
      h("div.scroll", {}, h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "first epoch"), h("th.n", { scope: "col" }, "recipe"), h("th.n", { scope: "col" }, "these settings"), h("th.n", { scope: "col" }, "change"))),
        h("tbody", {}, MEASURES.map(([label, key, words, better]) => this.compared(label, base?.[key], found[key], words, better, base, found)),
          Object.keys({ ...base?.samples_dropped, ...found.samples_dropped }).map((reason) => this.compared(`Samples dropped: ${reason}`,
            base ? base.samples_dropped[reason] ?? 0 : undefined, found.samples_dropped[reason] ?? 0, comma, -1, base, found)),
          this.overview.sources.length > 1 ? this.overview.sources.map(({ name }, source) => this.compared(["Samples of ", data(name, 40)],
            base?.samples_by_source[source], found.samples_by_source[source], comma, 0, base, found)) : null))),
      h("p.note", {}, "Computed from the lengths of all prepared samples, in steps of ", `${comma(this.overview.batch_size)} × ${comma(this.overview.world_size)} rows`,
        this.own.last_step === "drop" ? "; tokens and samples of a last step that is not full are counted, though last_step: drop drops them" : "",
        seconds === null ? "." : `, in ${seconds.toFixed(2)} s.`),
      lines.length || this.parameters.weights ? h("div.copy-line", {}, h("span", {}, "As lines of the recipe:"), h("code", {}, lines.join("\n") || "–"), lines.length ? copyButton(() => lines.join("\n")) : null,
        this.parameters.weights ? h("p.note", {}, `weight of each dataset, in its order: ${this.parameters.weights.split(",").map((each) => Number(Number(each).toPrecision(6))).join(", ")}`) : null) : "");
  }

  compared(label, before, now, words, better, base, found) {
    const change = typeof before === "number" && typeof now === "number" && before ? now / before - 1 : null;
    const kind = !change || !better ? "" : change * better > 0 ? ".better" : ".worse";
    const text = change === null ? "–" : Math.abs(change) < 0.0005 ? "=" : `${change > 0 ? "+" : "−"}${percent(Math.abs(change))}`;
    return h("tr", {}, h("td", {}, label), h("td.n", {}, before === undefined ? "–" : words(before, base)), h("td.n", {}, words(now, found)), h(`td.n${kind}`, {}, text));
  }

  close() {
    clearTimeout(this.timer);
    this.load.stop();
  }
}

function fraction(text) {
  const [above, below = "1"] = text.split("/");
  return Number(above) / Number(below);
}
