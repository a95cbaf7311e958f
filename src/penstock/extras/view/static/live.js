// Live: where a running job is, how fast it goes and how long it waits for data.

import { ask } from "./answers.js";
import { lines } from "./chart.js";
import { comma, data, duration, h, latest, measured, pause, percent, plain, plural, problem, put, short } from "./dom.js";

const KEPT = 120; // points of the plot

export class Live {
  constructor(root, { overview, go }) {
    this.overview = overview;
    this.go = go;
    this.points = [];
    this.body = h("div");
    this.chooser = h("select", { "aria-label": "Run", onchange: () => this.go("live", { run_id: this.chooser.value }) });
    root.append(h("section", {}, h("div.step-head", {}, h("h2", {}, "Live"), h("label", {}, "run_id ", this.chooser)), this.body));
    this.watch = latest((signal) => this.follow(signal), (error) => put(this.body, problem(error)));
  }

  update(parameters) {
    this.parameters = parameters;
    this.points = [];
    this.watch();
  }

  async follow(signal) {
    for (;;) {
      this.draw(await ask("live", { run_id: this.parameters.run_id }, signal));
      await pause(1000, signal);
    }
  }

  draw(found) {
    const names = [...new Set([found.run_id, ...found.runs].filter(Boolean))];
    if (names.join("\n") !== this.names) {
      this.names = names.join("\n");
      put(this.chooser, h("option", { value: "" }, "choose a run"), ...names.map((name) => h("option", { value: name }, plain(name))));
    }
    this.chooser.value = found.run_id ?? "";
    if (!found.run_id || !found.ranks.length) {
      const why = found.run_id ? ["Nothing was written by a run with this name yet."] : ["Start the job with a name: ", h("code", {}, "run_id: my-run"), " in the recipe, or Loader(…, run_id=\"my-run\")."];
      put(this.body, h("p.note", {}, why, " It then writes its state to the cache once a second."));
      return;
    }
    const own = found.ranks.filter((rank) => rank.plan === found.plan), ranks = own.length ? own : found.ranks;
    this.drawRanks(ranks, own.length > 0, found);
  }

  drawRanks(ranks, isOwn, { now, steps }) { // now: by the clock of the viewer's machine
    const first = ranks[0], written = Math.max(...ranks.map((rank) => rank.written)), age = Math.max(now - written, 0);
    const tokens = ranks.reduce((sum, rank) => sum + rank.metrics.tokens, 0);
    if (this.points.at(-1)?.written !== written) this.points = [...this.points, { written, tokens, step: first.step }].slice(-KEPT);
    const oldest = this.points.at(-Math.min(this.points.length, 10)), gone = written - oldest.written;
    const average = tokens / Math.max(written - first.begun, 1e-3), speed = gone > 0 ? (tokens - oldest.tokens) / gone : average;
    const wait = Math.max(...ranks.map((rank) => rank.metrics.wait_seconds / Math.max(rank.written - rank.begun, 1e-3)));
    const slow = ranks.filter((rank) => !rank.finished && now - rank.written > 30).sort((one, other) => one.written - other.written)[0];
    const state = ranks.every((rank) => rank.finished) ? "finished" : slow ? `rank ${slow.rank} silent for ${comma(now - slow.written)} s` : "running";
    const isSame = isOwn && first.world_size * first.batch_size === this.overview.world_size * this.overview.batch_size; // else the steps under Run are others
    const pace = gone > 0 && first.step > oldest.step ? (first.step - oldest.step) / gone : first.step / Math.max(written - first.begun, 1e-3);
    const left = state === "finished" || steps === null || !pace ? null : Math.max(steps - first.step, 0) / pace;
    const tiles = [["State", state, `${ranks.length} of ${plural(first.world_size, "rank")}, last heard ${age < 2 ? "now" : `${comma(age)} s ago`}`], ["Step", steps === null ? comma(first.step) : `${comma(first.step)} of ${comma(steps)}`, `epoch ${first.epochs === null ? first.epoch : `${Math.min(first.epoch + 1, first.epochs)} of ${first.epochs}`}${steps === null ? "" : `; ${percent(first.step, steps)}`}`],
      left === null ? null : ["Time left", duration(left), `${pace >= 1 ? `${short(pace)} steps a second` : `${short(1 / pace)} s a step`}`],
      ["Tokens per second", short(speed), `all ranks; ${short(average)} since it began`], ["Waiting for data", percent(wait), "of the time, the slowest rank"],
      ["Tokens", short(tokens), `${percent(first.metrics.fill)} of the rows filled`]];
    put(this.body, isOwn ? "" : h("p.problem", {}, "This run has another plan than the recipe that is shown here: its steps are not those under Run."),
      h("dl.tiles", {}, tiles.filter(Boolean).map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, h("small", {}, more))))),
      isOwn && !isSame ? h("p.problem", {}, `The job has ${first.world_size} × ${first.batch_size} rows in a step, this page was started for ${this.overview.world_size} × ${this.overview.batch_size}: to see the records of a step, start it with `,
        h("code", {}, `--world-size ${first.world_size} --batch-size ${first.batch_size}`)) : "",
      isSame ? h("p", {}, h("a", { href: `#/run?step=${Math.max(first.step - 1, 0)}` }, "See the last step under Run")) : "",
      this.logged(ranks, isSame), this.speeds(), h("div.scroll", {}, h("table", {}, h("caption", {}, "Ranks"), h("thead", {}, h("tr", {}, ["rank", "step", "samples", "tokens", "trained", "waited", "written"].map((name) => h("th.n", { scope: "col" }, name)))),
        h("tbody", {}, ranks.map((rank) => h("tr", {}, [rank.rank, rank.step, rank.metrics.samples, rank.metrics.tokens, rank.metrics.trained_tokens].map((value) => h("td.n", {}, comma(value))),
          h("td.n", {}, `${rank.metrics.wait_seconds.toFixed(1)} s`), h("td.n", {}, `${comma(Math.max(now - rank.written, 0))} s ago`)))))),
      Object.keys(first.metrics.shares).length > 1 ? h("p.note", {}, "Shares of tokens: ", Object.entries(first.metrics.shares).map(([name, share], place) => [place ? ", " : "", data(name, 40), ` ${percent(share)}`])) : "");
  }

  speeds() {
    const points = this.points.slice(1).map((point, place) => [point.step, (point.tokens - this.points[place].tokens) / Math.max(point.written - this.points[place].written, 1e-3)]);
    if (points.length < 2) return h("p.note", {}, "A plot of the speed appears here after a few seconds.");
    return lines({ title: "Tokens per second", note: "of all ranks, while this page is open", series: [{ name: "tokens per second", kind: "c0", points }], words: short, height: 110 });
  }

  // What the training has logged, such as its loss.
  logged(ranks, isSame) {
    const kept = new Map();
    for (const rank of ranks) for (const [name, points] of Object.entries(rank.logged ?? {})) if (!kept.has(name) && points.length) kept.set(name, points);
    const pick = isSame ? (step) => this.go("run", { step }) : null;
    return [...kept].map(([name, points]) => lines({ title: plain(name), note: pick ? "as logged; click to see the records of a step" : "as logged",
      series: [{ name: plain(name), kind: "c0", points }], words: measured, pick }));
  }

  close() { this.watch.stop(); }
}
