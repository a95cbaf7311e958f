// Losses: curves by dataset, means by position, and the samples that stand out.

import { ask } from "./answers.js";
import { lines } from "./chart.js";
import { colour, comma, data, h, latest, pause, percent, plain, plural, problem, put, s, swatch } from "./dom.js";

const nats = (value) => value.toFixed(value < 10 ? 2 : 1);
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

export class LossPage {
  constructor(root, { overview, go }) {
    this.overview = overview;
    this.go = go;
    this.body = h("div");
    this.chooser = h("select", { "aria-label": "Run", onchange: () => this.go("losses", { run_id: this.chooser.value }) });
    root.append(h("section", {}, h("div.step-head", {}, h("h2", {}, "Losses"), h("label", {}, "run_id ", this.chooser)), this.body));
    this.load = latest((signal) => this.follow(signal), (error) => put(this.body, problem(error)));
    this.resized = () => { if (this.found) this.draw(this.found); };
    addEventListener("resize", this.resized);
  }

  update(parameters) {
    this.parameters = parameters;
    this.load();
  }

  async follow(signal) {
    for (;;) {
      const found = await ask("losses", { run_id: this.parameters.run_id, bins: Math.max(Math.min(Math.floor(innerWidth / 4), 300), 60) }, signal);
      if (JSON.stringify(found) !== this.drawn) this.draw(found);
      this.drawn = JSON.stringify(found);
      await pause(3000, signal);
    }
  }

  draw(found) {
    this.found = found;
    const names = [...new Set([found.run_id, ...found.runs].filter(Boolean))];
    put(this.chooser, h("option", { value: "" }, "choose a run"), ...names.map((name) => h("option", { value: name }, plain(name))));
    this.chooser.value = found.run_id ?? "";
    if (!found.recorded) {
      const why = found.run_id ? "This run has recorded no losses of this plan." : "No run is chosen.";
      put(this.body, h("p.note", {}, `${why} `, h("code", {}, "LossBySource(loader)"), " records them, in a loop of your own or as ", h("code", {}, "losses="), " of LoaderTrainer and LoaderSFTTrainer."));
      return;
    }
    const own = this.overview.batch_size * this.overview.world_size;
    this.isSame = found.rows_per_step === null || found.rows_per_step === own; // else the steps under Run are others
    const kinds = new Map(this.overview.sources.map(({ name }, place) => [name, colour(place)])), kind = (name) => kinds.get(name) ?? "cx";
    const series = found.curves.map(({ source, losses }) => ({ name: plain(source), kind: kind(source), points: losses.map((loss, bin) => [found.starts[bin], loss]) }));
    const legend = h("ul.legend", {}, found.curves.map(({ source }) => h("li", {}, swatch(kind(source)), data(source, 40), h("span.soft", {}, ` ${found.totals[source].loss === null ? "–" : nats(found.totals[source].loss)} on average`))));
    put(this.body,
      this.isSame ? null : h("p.problem", {}, `The job has ${found.rows_per_step} rows in a step, this page was started for ${own}: its steps are not those under Run. Start it with the --world-size and --batch-size of the job.`),
      found.missing ? h("p.problem", {}, `${plural(found.missing, "step")} of ${comma(found.steps[0])}–${comma(found.steps[1] - 1)} have no losses: they were skipped, or not recorded.`) : null,
      lines({ title: "Loss by dataset", note: `mean per trained token, in nats${this.isSame ? "; click to see the records of a step" : ""}`, series, words: nats, legend, pick: this.isSame ? (step) => this.go("run", { step }) : null }),
      h("div.pair", {}, this.positions(found, kind)),
      this.samples("Highest above the mean of their dataset", "at the steps in which they were trained: what the model does not learn", found.highest),
      found.falling.length ? this.samples("Falling fastest", "from one time to the next, compared with their dataset: what is learned by heart", found.falling) : null);
  }

  positions(found, kind) {
    return Object.entries(found.positions).map(([source, buckets]) => {
      const most = Math.max(...buckets.map(([, loss]) => loss), 1e-9), words = buckets.map(([from], place) => (place + 1 < buckets.length ? `${comma(from)}–${comma(buckets[place + 1][0] - 1)}` : `from ${comma(from)}`));
      return h("figure", {}, h("figcaption", {}, swatch(kind(source)), " ", data(source, 40), h("span.soft", {}, "loss by position in the sample")),
        h("div.scroll", {}, h("table.bars", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "tokens"), h("th", {}, ""), h("th.n", { scope: "col" }, "loss"), h("th.n", { scope: "col" }, "targets"))),
          h("tbody", {}, buckets.map(([, loss, targets], place) => h("tr", {}, h("td", {}, words[place]),
            h("td.share-bar", {}, s("svg", { width: "100%", height: 10, viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, s(`rect.${kind(source)}`, { width: (100 * loss) / most, height: 10 }))),
            h("td.n", {}, nats(loss)), h("td.n", {}, comma(targets))))))));
    });
  }

  samples(title, note, found) {
    const run = this.found.run_id;
    return h("figure", {}, h("figcaption", {}, title, h("span.soft", {}, note)), h("div.scroll", {}, h("table", {},
      h("thead", {}, h("tr", {}, ["record", "loss", "above mean", "first loss", "times", "steps"].map((name, place) => h(place && place < 5 ? "th.n" : "th", { scope: "col" }, name)))),
      h("tbody", {}, found.map((sample) => h("tr", {},
        h("td", {}, sample.row === null ? null : h("a", { href: `#/samples?row=${sample.row}&at=${sample.row}&run_id=${encodeURIComponent(run)}` }, data(`${sample.source} ${comma(sample.sample)}`, 60)), sample.row === null ? data(`${sample.source} ${comma(sample.sample)}`, 60) : null),
        h("td.n", {}, nats(sample.loss)), h("td.n", {}, signed(sample.excess)), h("td.n", {}, nats(sample.first_loss)), h("td.n", {}, comma(sample.times)),
        h("td", {}, sample.steps.map((step, place) => [place ? ", " : "", this.isSame ? h("a", { href: `#/run?step=${step}` }, comma(step)) : comma(step)]))))))));
  }

  close() {
    removeEventListener("resize", this.resized);
    this.load.stop();
  }
}
