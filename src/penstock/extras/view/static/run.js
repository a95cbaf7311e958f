// Run: an epoch as strips over its steps; a step as rows on each rank; steps to skip as a line of the recipe.

import { ask } from "./answers.js";
import { area, canvas, range, withAxes } from "./chart.js";
import { colour, comma, copyButton, data, h, latest, pause, percent, plain, plural, problem, progress, put, s, short, swatch } from "./dom.js";

const HEIGHTS = { mixture: 110, line: 64 };

export class Run {
  constructor(root, { overview, go }) {
    this.overview = overview;
    this.go = go;
    this.parameters = {};
    this.starts = overview.sources.reduce((starts, { rows }) => [...starts, starts.at(-1) + rows], [0]);
    this.places = new Map(overview.sources.map(({ name }, place) => [name, place]));
    this.plots = h("section.plots", { "aria-label": "Steps" });
    this.rows = h("section.step", { "aria-label": "One step" });
    this.rows.hidden = true;
    root.append(this.plots, this.rows);
    this.load = latest((signal) => this.read(signal), (error) => put(this.plots, problem(error)));
    this.open = latest((signal) => this.readStep(signal), (error) => this.refuse(error));
    if (!overview.prepared) this.unprepared();
    this.resized = () => { if (this.found) this.drawPlots(); };
    addEventListener("resize", this.resized);
  }

  unprepared() {
    put(this.plots, h("p.problem", {}, "Not prepared, so the order is not known. Run ", h("code", {}, this.overview.command)));
  }

  refresh() { if (this.found) this.drawPlots(); }

  update(parameters) {
    const before = this.parameters;
    this.parameters = parameters;
    if (!this.overview.prepared) return;
    const changed = (names) => !this.begun || names.some((name) => before[name] !== parameters[name]);
    if (changed(["epoch", "from", "to"])) this.load();
    else if (this.found && changed(["step", "skip"])) this.drawPlots();
    if (parameters.step === undefined) {
      this.rows.hidden = true;
      this.landed = undefined;
    }
    else if (changed(["step"]) || this.rows.hidden) this.open();
    else if (changed(["skip"]) && this.step) this.drawStep(this.step);
    this.begun = true;
  }

  change(changes, replace = false) { this.go("run", { ...this.parameters, ...changes }, { replace }); }

  async read(signal) {
    const { epoch, from, to } = this.parameters;
    for (;;) {
      const found = await ask("run", { epoch, from, to, bins: Math.max(Math.min(Math.floor(innerWidth / 3), 400), 60) }, signal);
      if (found.strip) {
        this.found = found;
        this.drawPlots();
        if (this.step && !this.rows.hidden && !this.isRefused) this.drawStep(this.step); // now the last step is known
        this.follow();
        this.land();
        return;
      }
      if (found.progress.error) throw new Error(found.progress.error);
      put(this.plots, progress(found.progress, `packing epoch ${epoch ?? 0}`));
      await pause(300, signal);
    }
  }

  // Plots over steps

  drawPlots() {
    const { numbers, strip } = this.found, { counters } = numbers;
    const lost = counters.tokens_in - counters.tokens_out;
    const tiles = [["Steps", comma(numbers.steps), `of ${comma(numbers.rows_per_step)} rows; ${numbers.steps_of_run === null ? "endless run" : `${comma(numbers.steps_of_run)} in the run`}`],
      ["Packing efficiency", percent(numbers.fill), `${plural(numbers.rows, "row")} of ${comma(numbers.max_length)} tokens`],
      ["Tokens in a step", short(numbers.tokens_per_step), `${short(counters.tokens_out)} in the epoch`],
      ["Samples", short(counters.samples_out), `of ${comma(counters.samples_in - (counters.samples_dropped.empty ?? 0))}`],
      ["Tokens lost", percent(lost, counters.tokens_in), lost ? `${comma(lost)} tokens` : "none"]];
    const plots = strip.starts.length ? [this.overview.sources.length > 1 ? this.mixture() : this.tokens(), this.line("fill", "Packing efficiency", (value) => percent(value), 0, 1),
      this.line("mean_length", "Mean tokens of a piece", short, 0),
      numbers.world_size > 1 ? this.line("balance", "Tokens of the fullest rank, of the mean of all ranks", (value) => `${value.toFixed(2)} ×`, 1) : null]
      : [h("p.problem", {}, "This epoch has no step.")];
    put(this.plots, this.toolbar(), h("dl.tiles", {}, tiles.map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, h("small", {}, more))))),
      ...plots, this.losses(), this.skipLine());
  }

  toolbar() {
    const { numbers, first_step: before, strip } = this.found, epoch = numbers.epoch, most = this.overview.epochs;
    const field = h("input", { inputmode: "numeric", placeholder: "41203", "aria-label": "Go to step", onkeydown: (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      const found = event.target.value.replaceAll(/(\d)[,_](?=\d)/g, "$1").match(/\d+/);
      if (found) this.change({ step: Number(found[0]) });
    } });
    this.field = field;
    const isZoomed = strip.starts.length && (this.parameters.from !== undefined || this.parameters.to !== undefined);
    return h("div.toolbar", {},
      most === 1 ? null : h("label", {}, "Epoch", h("input", { type: "number", min: 0, max: most === null ? null : most - 1, value: epoch,
        onchange: (event) => this.change({ epoch: event.target.value, from: null, to: null, step: null }) })),
      h("label", {}, "Go to step", field),
      isZoomed ? h("button", { type: "button", onclick: () => this.change({ from: null, to: null }) }, "Show all steps") : null,
      this.overview.steps && h("span.steps-here", {}, "Steps in this file: ", this.overview.steps.map((step, place) => [place ? ", " : "", h("a", { href: `#/run?step=${step}` }, comma(step))])),
      strip.steps > 0 && h("span.soft", {}, `steps ${comma(before + strip.starts[0])}–${comma(before + this.end() - 1)}`,
        numbers.last_step === "wrap" ? "; the first and last may have rows of a neighbouring epoch" : "",
        strip.each > 1 ? `, ${comma(strip.each)} in each bar; drag over a plot to zoom` : ""));
  }

  end() {
    const { strip } = this.found;
    return strip.starts.length ? Math.min(strip.starts.at(-1) + strip.each, strip.steps) : 0;
  }

  plot(label, height, shapes, note, y) {
    const { strip, first_step: before } = this.found, first = strip.starts[0], span = this.end() - first;
    const chosen = this.parameters.step === undefined ? -1 : Number(this.parameters.step) - before;
    const drawing = canvas(strip.starts.length, height, note, shapes);
    const marks = this.skips().map((step) => step - before).filter((step) => step >= first && step < this.end()).map((step) => ["skip-mark", step]);
    if (chosen >= first && chosen < this.end()) marks.push(["step-mark", chosen]);
    const frame = h("div.frame", { tabindex: 0, role: "slider", "aria-label": `${label}: step`, "aria-valuemin": before, "aria-valuemax": before + strip.steps - 1,
      "aria-valuenow": chosen < 0 ? before + first : before + chosen },
    drawing, marks.map(([kind, step]) => { const mark = h(`span.${kind}`); mark.style.left = `${(100 * (step + 0.5 - first)) / span}%`; return mark; }));
    this.listen(frame, first, span);
    return h("figure", {}, h("figcaption", {}, label, h("span.soft", {}, ` ${note}`)), withAxes(frame, { height, y, x: { first: before + first, span, unit: "step" } }));
  }

  listen(frame, first, span) {
    const { first_step: before, strip } = this.found;
    const stepAt = (event) => {
      const box = frame.getBoundingClientRect();
      return before + Math.min(Math.max(Math.floor(first + (span * (event.clientX - box.left)) / box.width), first), first + span - 1);
    };
    const where = h("span.frame-said");
    let down = null;
    frame.append(where);
    frame.addEventListener("pointermove", (event) => {
      const step = stepAt(event), bin = Math.min(Math.floor((step - before - first) / strip.each), strip.starts.length - 1);
      where.textContent = down !== null && step !== down ? `zoom: steps ${comma(Math.min(down, step))}–${comma(Math.max(down, step))}` : this.binText(bin);
    });
    frame.addEventListener("pointerleave", () => { where.textContent = ""; down = null; });
    frame.addEventListener("pointerdown", (event) => { down = stepAt(event); });
    frame.addEventListener("pointerup", (event) => {
      const up = stepAt(event), from = down;
      down = null;
      if (from === null) return;
      const isDrag = Math.abs(up - from) > Math.max(span / 100, 1);
      if (isDrag) this.change({ from: Math.min(from, up), to: Math.max(from, up) + 1 });
      else this.change({ step: up });
    });
    frame.addEventListener("keydown", (event) => {
      const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (by === undefined) return;
      event.preventDefault();
      event.stopPropagation();
      const now = this.parameters.step === undefined ? before + first - 1 : Number(this.parameters.step);
      this.change({ step: Math.min(Math.max(now + by, before), before + strip.steps - 1) }, true);
    });
  }

  binText(bin) {
    const { strip, first_step: before } = this.found, start = before + strip.starts[bin], total = strip.tokens[bin].reduce((sum, part) => sum + part, 0);
    const shares = strip.tokens[bin].length > 1 ? `; ${strip.tokens[bin].map((part, source) => `${this.shortName(source)} ${percent(part, total)}`).join(", ")}` : "";
    const steps = strip.each > 1 ? `steps ${comma(start)}–${comma(Math.min(start + strip.each, before + strip.steps) - 1)}` : `step ${comma(start)}`;
    return `${steps}: ${percent(strip.fill[bin])} full, ${short(strip.mean_length[bin])} tokens a piece${shares}`;
  }

  shortName(source) {
    const { name } = this.overview.sources[source], text = name.length > 16 ? `${name.slice(0, 15)}…` : name;
    const isRest = source === 7 && this.overview.sources.length > 8;
    return isRest ? "others" : plain(text);
  }

  mixture() {
    const { strip } = this.found, height = HEIGHTS.mixture, shapes = [];
    strip.tokens.forEach((parts, bin) => {
      const total = parts.reduce((sum, part) => sum + part, 0);
      let below = 0;
      parts.forEach((part, source) => {
        const tall = total ? (height * part) / total : 0;
        if (tall) shapes.push(s(`rect.${colour(source)}`, { x: bin, y: height - below - tall, width: 1.02, height: tall }));
        below += tall;
      });
    });
    const made = this.plot("Mixture", height, shapes, "share of tokens by dataset", { least: 0, most: 1, words: (value) => percent(value) });
    made.append(h("ul.legend", {}, strip.tokens[0].map((_, source) => h("li", {}, swatch(colour(source)), data(this.shortName(source))))));
    return made;
  }

  // Without the last bar of the epoch if it stands out: a last step that is not full would set the scale of all others.
  scaled(values, options) {
    const { strip } = this.found, isTail = strip.starts.length > 3 && this.end() === strip.steps;
    return range(isTail ? values.slice(0, -1) : values, options);
  }

  tokens() {
    const values = this.found.strip.tokens.map(([count]) => count / this.found.strip.each), y = { ...this.scaled(values, { fromZero: true }), words: short };
    return this.plot("Tokens in a step", HEIGHTS.line, [area(values, y, HEIGHTS.line)], "of all ranks", y);
  }

  line(key, label, words, least, most = undefined) {
    const { strip } = this.found, values = strip[key], height = HEIGHTS.line;
    const y = { least, most: most ?? Math.max(this.scaled(values).most, least + 1e-9), words };
    return this.plot(label, height, [area(values, y, height)], words(Math.min(...values)) === words(Math.max(...values)) ? words(values[0]) : `${words(Math.min(...values))} to ${words(Math.max(...values))}`, y);
  }

  losses() {
    const { counters } = this.found.numbers, rows = Object.entries(counters.tokens_dropped).filter(([, count]) => count);
    const prepared = new Map(), known = this.overview.reasons ?? {};
    for (const { reason, count } of (this.overview.numbers ?? []).flatMap(({ dropped }) => dropped)) prepared.set(reason, (prepared.get(reason) ?? 0) + count);
    const named = (reason) => (Object.hasOwn(known, reason) ? h("a", { href: `#/samples?reason=${encodeURIComponent(reason)}` }, data(reason)) : data(reason));
    const unused = this.found.numbers.shares.filter((share) => share.unused), left = unused.length ? h("p.note", {}, "Left over in this epoch, because another dataset ends it: ",
      unused.map((share, place) => [place ? ", " : "", data(share.name, 40), ` ${plural(share.unused, "sample")} (${percent(share.unused_share)})`]), ".") : null;
    if (!rows.length && !prepared.size) return left ?? h("p.note", {}, "Nothing is lost: every sample is in a row.");
    return h("figure", {}, h("figcaption", {}, "Lost, by reason"), h("div.scroll", {}, h("table", {},
      h("thead", {}, h("tr", {}, ["reason", "records", "tokens", "of all tokens"].map((name, place) => h(place ? "th.n" : "th", { scope: "col" }, name)))),
      h("tbody", {}, rows.map(([reason, count]) => h("tr", {},
        h("td", {}, named(reason)),
        h("td.n", {}, comma(reason === "truncated" ? counters.samples_truncated : counters.samples_dropped[reason] ?? 0)), h("td.n", {}, comma(count)), h("td.n", {}, percent(count, counters.tokens_in)))),
      [...prepared].map(([reason, count]) => h("tr", {}, h("td", {}, named(reason), " when prepared"),
        h("td.n", {}, comma(count)), h("td.n", {}, "–"), h("td.n", {}, "–")))))), left);
  }

  // Steps to skip

  skips() {
    const given = this.parameters.skip ?? this.overview.skip_steps.join(",");
    return [...new Set(given.split(",").filter((text) => /^\d+$/.test(text)).map(Number))].sort((one, other) => one - other);
  }

  toggleSkip(step) {
    const now = this.skips(), next = now.includes(step) ? now.filter((each) => each !== step) : [...now, step].sort((one, other) => one - other);
    this.change({ skip: next.length ? next.join(",") : "none" }, true);
  }

  skipLine() {
    const steps = this.skips(), line = `skip_steps: [${steps.join(", ")}]`;
    if (!steps.length) return null;
    return h("div.copy-line", {}, h("span", {}, `${plural(steps.length, "step")} to skip, as a line of the recipe:`), h("code", {}, line), copyButton(() => line),
      h("p.note", {}, "A resumed run leaves these steps out, and its other steps stay as they are: steps keep their numbers under one batch size and number of ranks."));
  }

  // One step

  async readStep(signal) {
    const number = this.parameters.step;
    this.rows.hidden = false;
    put(this.rows, h("p.note", { role: "status" }, `reading step ${number}`));
    this.isRefused = false;
    this.step = await ask("step", { step: number }, signal);
    this.drawStep(this.step);
    this.follow();
    this.land();
  }

  refuse(error) { // a step that does not exist: say so where the reader looks
    this.step = undefined;
    put(this.rows, h("div.step-head", {}, h("h2", { tabindex: -1 }, `Step ${this.parameters.step}`),
      h("button.close", { type: "button", "aria-label": "Close", onclick: () => this.change({ step: null }) }, "×")), problem(error));
    this.isRefused = true;
    this.land();
  }

  land() { // a link to a step shows the step, wherever the page was
    const shown = this.isRefused ? this.parameters.step : this.step?.step;
    if (!this.found || shown === undefined || this.landed === shown || this.parameters.step === undefined) return; // plots above would still move it
    this.landed = shown;
    this.rows.scrollIntoView({ block: "start" });
    this.rows.querySelector("h2").focus({ preventScroll: true });
  }

  follow() { // show the epoch of the step, which may have been pasted
    if (this.parameters.step === undefined || this.step?.step !== Number(this.parameters.step) || !this.found) return;
    const place = this.step.step - this.found.first_step;
    if (place < 0 || place >= this.found.strip.steps) this.change({ epoch: this.step.epoch, from: null, to: null }, true);
  }

  drawStep(step) {
    const isSkipped = this.skips().includes(step.step), ranks = new Map();
    for (const row of step.rows) ranks.set(row.rank, [...(ranks.get(row.rank) ?? []), row]);
    const padded = step.rows.length - step.num_real;
    put(this.rows, h("div.step-head", {}, h("h2", { tabindex: -1 }, `Step ${comma(step.step)}`),
      h("button", { type: "button", "aria-label": "Previous step", disabled: !step.step, onclick: () => this.change({ step: step.step - 1 }, true) }, "←"),
      h("button", { type: "button", "aria-label": "Next step", disabled: step.step + 1 === this.found?.numbers.steps_of_run, onclick: () => this.change({ step: step.step + 1 }, true) }, "→"),
      h("button", { type: "button", "aria-pressed": String(isSkipped), onclick: () => this.toggleSkip(step.step) }, isSkipped ? "Skipped: keep it" : "Mark to skip"),
      h("button.close", { type: "button", "aria-label": "Close", onclick: () => this.change({ step: null }) }, "×")),
    h("p.note", {}, `epoch ${step.epoch}, ${plural(step.rows.length, "row")}`, padded ? `, ${comma(padded)} of them empty` : "", step.num_repeated ? `, ${comma(step.num_repeated)} repeated` : "",
      ". Each piece is a sample; click it to open it. The green line is its trained share; grey is padding."),
    [...ranks].map(([rank, rows]) => h("div.rank", {}, h("h3", {}, `Rank ${rank}`, h("span.soft", {}, ` ${comma(rows.reduce((sum, row) => sum + row.used, 0))} tokens`)),
      rows.filter((row) => row.segments.length).map((row) => this.drawRow(row)), this.emptyRows(rows))));
  }

  emptyRows(rows) { // those that fill up the last step
    const empty = rows.filter((row) => !row.segments.length).map((row) => row.row);
    if (!empty.length) return null;
    return h("p.note", {}, empty.length === 1 ? `row ${empty[0]} is empty` : `rows ${empty[0]}–${empty.at(-1)} are empty`);
  }

  drawRow(row) {
    const width = row.max_length;
    let before = null, isAlt = false;
    const pieces = row.segments.map((part) => {
      const source = this.places.get(part.source);
      isAlt = source === before && !isAlt;
      before = source;
      const whole = part.stop - part.start === part.length;
      const words = `${part.where}, ${whole ? `all ${comma(part.length)} tokens` : `tokens ${comma(part.start)}–${comma(part.stop - 1)} of ${comma(part.length)}`}, ${comma(part.trained)} trained`;
      const link = h(`a.piece.${colour(source)}`, { href: `#/samples?row=${this.starts[source] + part.sample}&at=${this.starts[source] + part.sample}`, title: plain(words), "aria-label": plain(words) });
      if (isAlt) link.classList.add("alt");
      link.style.left = `${(100 * part.place) / width}%`;
      link.style.width = `${(100 * (part.stop - part.start)) / width}%`;
      const trained = h("span");
      trained.style.width = `${(100 * part.trained) / (part.stop - part.start)}%`;
      link.append(trained);
      return link;
    });
    const list = h("ol.pieces", {}, row.segments.slice(0, 60).map((part) => {
      const at = this.starts[this.places.get(part.source)] + part.sample;
      return h("li", {}, h("a", { href: `#/samples?row=${at}&at=${at}` }, data(part.where, 80)), h("span.soft", {}, ` ${comma(part.stop - part.start)} of ${comma(part.length)} tokens, ${comma(part.trained)} trained`));
    }));
    return h("div.packed", {}, h("div.packed-row", { role: "group", "aria-label": `row ${row.row}` }, pieces),
      h("details", {}, h("summary", {}, `row ${row.row}: ${plural(row.segments.length, "piece")}, ${percent(row.used, width)} full, ${percent(row.trained, row.used)} of its tokens trained`),
        list, row.segments.length > 60 ? h("p.note", {}, `the first 60 of ${comma(row.segments.length)}`) : ""));
  }

  key(event) {
    if (event.key === "g" || event.key === "/") this.field?.focus();
    else if (event.key === "Escape" && this.parameters.step !== undefined) this.change({ step: null });
    else return false;
    return true;
  }

  close() {
    removeEventListener("resize", this.resized);
    this.load.stop();
    this.open.stop();
  }
}
