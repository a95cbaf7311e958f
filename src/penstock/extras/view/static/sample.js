// One sample: where it is, its media, and its record as tokens, as text and raw; and every step in which it is trained.

import { ask } from "./answers.js";
import { colour, comma, data, h, highlighted, hits, latest, pause, percent, plural, problem, progress, put, swatch, visible } from "./dom.js";

const LOSSES = [0.5, 1, 2, 4]; // nats: a token is drawn in one of five colours
const SEQUENCES = { pairs: ["Chosen", "Rejected"] }; // names of a sample's sequences, by the kind of its data
const TABS = [["tokens", "Tokens"], ["text", "Text"], ["raw", "Record"]];

export class Sample {
  constructor({ overview, choose, step, back }) {
    this.overview = overview;
    this.choose = choose;
    this.step = step;
    this.back = back;
    this.element = h("div.sample", {}, h("p.note", {}, "Choose a record."));
    this.load = latest((signal, row) => this.read(signal, row), (error) => put(this.element, this.bar(), problem(error)));
    this.find = latest((signal, row, epoch) => this.readPositions(signal, row, epoch), (error) => put(this.places, problem(error)));
  }

  update(parameters) {
    const tab = TABS.some(([name]) => name === parameters.tab) ? parameters.tab : "tokens";
    const row = parameters.row;
    if (row === undefined) {
      this.row = undefined;
      this.load.stop();
      this.find.stop();
      put(this.element, h("p.note", {}, "Choose a record."));
    } else if (row !== this.row || parameters.run_id !== this.runId) {
      this.row = row;
      this.tab = tab;
      this.wanted = parameters.q;
      this.runId = parameters.run_id;
      this.load(row);
    } else if (parameters.q !== this.wanted) {
      this.wanted = parameters.q;
      if (this.found) this.drawBody();
    } else if (tab !== this.tab) {
      this.tab = tab;
      if (this.found) this.drawBody();
    }
  }

  async read(signal, row) {
    this.find.stop(); // it would write below the sample that comes now
    const waiting = setTimeout(() => put(this.element, this.bar(), h("p.note", { role: "status" }, `Reading record ${row} …`)), 300);
    const found = await ask("sample", { row, run_id: this.runId }, signal).finally(() => clearTimeout(waiting));
    this.found = found;
    this.places = h("div.places");
    this.body = h("div.sample-body");
    put(this.element, this.bar(), this.head(found), this.media(found), this.tabs(), this.body, this.places);
    this.element.parentElement.scrollTop = 0;
    this.drawBody();
    if (this.overview.prepared && found.length) this.find(row, 0);
  }

  bar() {
    return h("div.sample-bar", {},
      h("button.back", { type: "button", onclick: () => this.back() }, "← Records"),
      h("button", { type: "button", onclick: () => this.step(-1), "aria-label": "Previous sample" }, "↑"),
      h("button", { type: "button", onclick: () => this.step(1), "aria-label": "Next sample" }, "↓"));
  }

  head(found) {
    const facts = found.length
      ? `${plural(found.length, "token")}, ${comma(found.targets)} trained (${percent(found.targets, found.length)})`
      : `No tokens${found.reason ? `: dropped as ${found.reason}` : ""}`;
    const source = this.overview.sources[found.source].name;
    return h("header", {}, h("h3", {}, data(found.where, 400)),
      h("p.chips", {}, h("span.chip", {}, swatch(colour(found.source)), " ", data(source, 60)), h("span.chip", {}, `record ${comma(found.own)}`),
        found.sequences.length > 1 && h("span.chip", {}, `sequences of ${found.sequences.map(comma).join(" + ")} tokens`)),
      found.losses && h("p", {}, `Loss ${found.losses.loss.toFixed(3)}`, h("span.soft", {}, `, ${found.losses.excess < 0 ? "−" : "+"}${Math.abs(found.losses.excess).toFixed(3)} against its dataset; first ${found.losses.first_loss.toFixed(3)}; trained ${plural(found.losses.times, "time")}`)),
      h("p", {}, facts, found.outcome && h("span.soft", {}, ". ", data(found.outcome))));
  }

  media(found) {
    if (!found.pictures.length) return null;
    return h("ul.media", {}, found.pictures.map((picture, place) => h("li", {},
      picture.url && h("img", { src: picture.url, width: picture.width, height: picture.height, alt: "" }),
      picture.kind !== "image" && !this.overview.exported && this.player(picture.kind, `media/${found.row}/${place}`),
      h("span", {}, data(picture.line), picture.problem && h("em", {}, " ", data(picture.problem))))));
  }

  player(kind, src) {
    const player = h(kind, { controls: true, preload: "metadata", "aria-label": kind, src, onerror: async () => {
      const answer = await fetch(src, { headers: { range: "bytes=0-0" } }).catch(() => null), value = await answer?.json().catch(() => null);
      player.replaceWith(problem(new Error(value?.error ?? "This browser cannot play it.")));
    } });
    return player;
  }

  tabs() {
    this.tabButtons = TABS.map(([name, label]) => h("button", { type: "button", role: "tab", "data-tab": name,
      onclick: () => this.choose({ tab: name }) }, label));
    return h("div.tabs", { role: "tablist" }, this.tabButtons);
  }

  drawBody() {
    for (const button of this.tabButtons) button.setAttribute("aria-selected", String(button.dataset.tab === this.tab));
    const found = this.found;
    if (this.tab === "raw") put(this.body, textBlock(found.raw, found.raw_size, "The record as it is in the data", this.wanted));
    else if (!found.length) put(this.body, h("p.note", {}, "This record gave no sample, so it has no text and no tokens."));
    else if (this.tab === "text") {
      const what = found.is_chat ? "As the chat template renders it" : "As its tokens read";
      put(this.body, h("p.note", {}, `${what}.`), textBlock(found.rendered, found.rendered_size, what, this.wanted));
    } else this.drawTokens(found);
  }

  drawTokens(found) {
    const said = h("output.token-said", { "aria-live": "polite" }, "Point at a token.");
    const names = SEQUENCES[this.overview.kind] ?? found.sequences.map((_, number) => `Sequence ${number}`);
    const isPair = found.sequences.length > 1;
    const blocks = (isPair ? names : [null]).map((name) => h("div.tokens.text", { tabindex: 0, role: "region", "aria-label": name ? `Tokens, ${name}` : "Tokens" }));
    const tokens = isPair ? h("div.side-by-side", {}, blocks.map((block, number) => h("figure", {}, h("figcaption", {}, names[number], h("span.soft", {}, plural(found.sequences[number], "token"))), block))) : blocks[0];
    const ids = h("input", { type: "checkbox", onchange: () => blocks.forEach((block) => block.classList.toggle("with-ids", ids.checked)) });
    const losses = new Map(Object.entries(found.losses?.tokens ?? {}).map(([place, loss]) => [Number(place), loss]));
    const byLoss = h("input", { type: "checkbox", checked: losses.size > 0, onchange: () => blocks.forEach((block) => block.classList.toggle("by-loss", byLoss.checked)) });
    if (losses.size) blocks.forEach((block) => block.classList.add("by-loss"));
    const state = { message: null, place: found.first, losses, blocks, ends: found.sequences.map((_, at, all) => all.slice(0, at + 1).reduce((sum, size) => sum + size, 0)) };
    appendTokens(found, state);
    this.markHits(blocks);
    tokens.addEventListener("pointerover", (event) => {
      const token = event.target.closest("[data-id]");
      if (!token) return;
      const kind = `${token.classList.contains("sp") ? "special, " : ""}${token.tagName === "B" ? "trained" : "not trained"}`;
      said.textContent = `token ${comma(Number(token.dataset.place))}, id ${token.dataset.id}, ${kind}${token.dataset.role ? `, ${token.dataset.role}` : ""}${token.dataset.loss ? `, loss ${token.dataset.loss}` : ""}`;
    });
    const more = h("button", { type: "button", onclick: async () => {
      more.disabled = true;
      try {
        const next = await ask("sample", { row: found.row, run_id: this.runId, from: state.place });
        appendTokens(next, state);
        this.markHits(blocks);
        this.offerMore(more, found, state);
      } catch (error) {
        more.replaceWith(problem(error));
      }
    } });
    this.offerMore(more, found, state);
    const scale = losses.size ? h("p.key.tokens.by-loss", {}, "loss ", [0, ...LOSSES].map((from, level) => [h(`b.l${level}`, {}, level < LOSSES.length ? `${from}–${LOSSES[level]}` : `${from}+`), " "]), h("label", {}, byLoss, " colour by loss")) : null;
    put(this.body, h("p.key.tokens", {}, h("b", {}, "trained"), " ", h("i", {}, "not trained"), " ", h("i.sp", {}, "special"), " ",
      h("s", {}, "\\u200b"), " hidden character", h("label", {}, ids, " ids")), scale, tokens, said, more);
  }

  markHits(blocks) { // a text that was searched for may begin in one token and end in another
    for (const block of blocks) {
      const tokens = [...block.querySelectorAll("[data-text]")], starts = [];
      let text = "";
      for (const token of tokens) {
        starts.push(text.length);
        text += token.dataset.text;
      }
      const found = hits(text, this.wanted);
      tokens.forEach((token, place) => {
        const start = starts[place], stop = start + token.dataset.text.length;
        token.classList.toggle("hit", found.some(([from, to]) => from < stop && to > start));
      });
    }
    blocks.flatMap((block) => [...block.querySelectorAll(".hit")])[0]?.scrollIntoView({ block: "nearest" });
  }

  offerMore(button, found, state) {
    button.hidden = state.place >= found.length;
    button.disabled = false;
    button.textContent = `Show more: ${comma(found.length - state.place)} tokens are left`;
  }

  // Positions

  async readPositions(signal, row, epoch) {
    for (;;) {
      const found = await ask("positions", { row, epoch }, signal);
      if (found.landings) {
        this.drawPositions(row, found);
        return;
      }
      if (found.progress.error) throw new Error(found.progress.error);
      put(this.places, progress(found.progress, `packing epoch ${epoch}, to find its steps`));
      await pause(300, signal);
    }
  }

  drawPositions(row, found) {
    const { epoch, epochs, landings } = found;
    const lines = landings.map((at) => h("li", {}, h("a", { href: `#/run?step=${at.step}&epoch=${at.epoch}` }, `step ${comma(at.step)}`),
      this.overview.skip_steps.includes(at.step) ? " (skipped by the recipe)" : "", `, rank ${at.rank}, row ${at.row}: tokens ${comma(at.start)}–${comma(at.stop - 1)} at ${comma(at.place)} of the row`));
    const others = epochs === null || epochs > 1;
    put(this.places, h("h3", {}, epochs === 1 ? "Where it is trained" : `Where it is trained in epoch ${epoch}`),
      h("p", {}, data(found.outcome)), h("ul.positions", {}, lines),
      others ? h("p", {}, h("button", { type: "button", disabled: epoch === 0, onclick: () => this.find(row, epoch - 1) }, "Epoch before"), " ",
        h("button", { type: "button", disabled: epochs !== null && epoch + 1 >= epochs, onclick: () => this.find(row, epoch + 1) }, "Epoch after"),
        h("span.soft", {}, ` ${epochs === null ? "an endless run" : `${epochs} epochs in the run`}`)) : null);
  }

  close() {
    this.load.stop();
    this.find.stop();
  }
}

function appendTokens(found, state) {
  const special = new Set(found.special);
  const parts = state.blocks.map(() => []);
  for (const [id, text, isTrained, message, role, part] of found.tokens) {
    const sequence = state.blocks.length > 1 ? state.ends.findIndex((end) => state.place < end) : 0;
    const own = parts[sequence];
    if (role && (message !== state.message || sequence !== state.sequence)) {
      state.message = message;
      own.push(h("span.turn", {}, `${message} ${role}`));
    }
    state.sequence = sequence;
    const loss = state.losses.get(state.place);
    const token = h(isTrained ? "b" : "i", { "data-id": id, "data-place": state.place, "data-text": text, "data-role": role ? `${role} ${part}` : null, "data-loss": loss === undefined ? null : loss.toFixed(2) }, marked(text));
    if (special.has(id)) token.classList.add("sp");
    if (loss !== undefined) token.classList.add(`l${LOSSES.filter((from) => loss >= from).length}`);
    own.push(token);
    state.place += 1;
  }
  state.blocks.forEach((block, sequence) => block.append(...parts[sequence]));
}

function marked(text) { // line ends and tabs as marks, before they take effect
  return text.split(/([\n\t])/).map((part) => {
    if (part === "\n") return [h("u", {}, "↵"), "\n"];
    return part === "\t" ? [h("u", {}, "⇥"), "\t"] : visible(part);
  });
}

function textBlock(text, size, label, wanted) {
  const rest = size > text.length ? h("em", {}, `\n… ${comma(size - text.length)} more characters are not shown`) : null;
  return h("pre.raw", { tabindex: 0, role: "region", "aria-label": label }, highlighted(text, wanted), rest ?? "");
}
