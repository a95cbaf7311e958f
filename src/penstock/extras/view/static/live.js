// Live: where a running job is, how fast it goes and how long it waits for data.

import { ask } from "./answers.js";
import { comma, data, h, latest, pause, percent, plain, plural, problem, put, s, short } from "./dom.js";

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
    this.drawRanks(ranks, own.length > 0, found.now);
  }

  drawRanks(ranks, isOwn, now) { // now: by the clock of the viewer's machine
    const first = ranks[0], written = Math.max(...ranks.map((rank) => rank.written)), age = Math.max(now - written, 0);
    const tokens = ranks.reduce((sum, rank) => sum + rank.metrics.tokens, 0);
    if (this.points.at(-1)?.written !== written) this.points = [...this.points, { written, tokens, step: first.step }].slice(-KEPT);
    const oldest = this.points.at(-Math.min(this.points.length, 10)), gone = written - oldest.written;
    const average = tokens / Math.max(written - first.begun, 1e-3), speed = gone > 0 ? (tokens - oldest.tokens) / gone : average;
    const wait = Math.max(...ranks.map((rank) => rank.metrics.wait_seconds / Math.max(rank.written - rank.begun, 1e-3)));
    const slow = ranks.filter((rank) => !rank.finished && now - rank.written > 30).sort((one, other) => one.written - other.written)[0];
    const state = ranks.every((rank) => rank.finished) ? "finished" : slow ? `rank ${slow.rank} silent for ${comma(now - slow.written)} s` : "running";
    const tiles = [["State", state, `${ranks.length} of ${plural(first.world_size, "rank")}, last heard ${age < 2 ? "now" : `${comma(age)} s ago`}`], ["Step", comma(first.step), `epoch ${first.epoch}${first.epochs === null ? "" : ` of ${first.epochs}`}`],
      ["Tokens per second", short(speed), `all ranks; ${short(average)} since it began`], ["Waiting for data", percent(wait), "of the time, the slowest rank"],
      ["Tokens", short(tokens), `${percent(first.metrics.fill)} of the rows filled`]];
    put(this.body, isOwn ? "" : h("p.problem", {}, "This run has another plan than the recipe that is shown here: its steps are not those under Run."),
      h("dl.tiles", {}, tiles.map(([name, value, more]) => h("div", {}, h("dt", {}, name), h("dd", {}, value, h("small", {}, more))))),
      isOwn ? h("p", {}, h("a", { href: `#/run?step=${Math.max(first.step - 1, 0)}` }, "See the last step under Run")) : "",
      this.plot(), h("div.scroll", {}, h("table", {}, h("caption", {}, "Ranks"), h("thead", {}, h("tr", {}, ["rank", "step", "samples", "tokens", "trained", "waited", "written"].map((name) => h("th.n", { scope: "col" }, name)))),
        h("tbody", {}, ranks.map((rank) => h("tr", {}, [rank.rank, rank.step, rank.metrics.samples, rank.metrics.tokens, rank.metrics.trained_tokens].map((value) => h("td.n", {}, comma(value))),
          h("td.n", {}, `${rank.metrics.wait_seconds.toFixed(1)} s`), h("td.n", {}, `${comma(Math.max(now - rank.written, 0))} s ago`)))))),
      Object.keys(first.metrics.shares).length > 1 ? h("p.note", {}, "Shares of tokens: ", Object.entries(first.metrics.shares).map(([name, share], place) => [place ? ", " : "", data(name, 40), ` ${percent(share)}`])) : "");
  }

  plot() {
    const speeds = this.points.slice(1).map((point, place) => (point.tokens - this.points[place].tokens) / Math.max(point.written - this.points[place].written, 1e-3));
    if (speeds.length < 2) return h("p.note", {}, "A plot of the speed appears here after a few seconds.");
    const top = Math.max(...speeds, 1), height = 80;
    const points = speeds.map((speed, place) => `${place} ${height - (height * speed) / top}`).join("L");
    return h("figure", {}, h("figcaption", {}, "Tokens per second", h("span.soft", {}, ` up to ${short(top)}`)), h("div.frame", {},
      s("svg.over", { width: "100%", height, viewBox: `0 0 ${speeds.length - 1} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": "Tokens per second" },
        s("path.area", { d: `M0 ${height}L${points}L${speeds.length - 1} ${height}Z` }))));
  }

  close() { this.watch.stop(); }
}
