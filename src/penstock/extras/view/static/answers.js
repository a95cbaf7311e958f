// Answers for the page: from the server, or from the page itself if it was exported as one file.

export class Refusal extends Error {}

const element = document.getElementById("answers");
const stored = element && JSON.parse(element.textContent);

export async function ask(name, parameters = {}, signal = undefined) {
  const answer = stored ? storedAnswer(name, parameters) : await served(name, parameters, signal);
  if (answer.error) throw new Refusal(answer.error);
  return answer;
}

async function served(name, parameters, signal) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  let answer;
  try {
    answer = await fetch(`api/${name}?${new URLSearchParams(given)}`, { signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal("The viewer does not answer; was penstock view stopped?");
  }
  const value = await answer.json().catch(() => ({ error: `the viewer answered with status ${answer.status}` }));
  return answer.ok ? value : { error: value.error };
}

const notHere = (what) => ({ error: `This file does not have ${what}. Run penstock view on the recipe to see all of it.` });

function storedAnswer(name, parameters) {
  if (name === "overview" || name === "summary") return stored[name];
  if (name === "rows") return storedRows(parameters);
  if (name === "sample") return storedSample(parameters);
  if (name === "positions") return storedPositions(parameters);
  if (name === "run") return storedRun(parameters);
  if (name === "step") return stored.steps[parameters.step] ?? notHere(`step ${parameters.step}; it has steps ${Object.keys(stored.steps).join(", ")}`);
  return notHere(`what ${name} asks for`);
}

function storedSample({ row, from }) {
  const found = stored.samples[row];
  if (!found) return notHere(`record ${row}`);
  return from ? notHere("more tokens of this sample") : found.sample;
}

function storedPositions({ row, epoch }) {
  return Number(epoch ?? 0) === 0 ? stored.samples[row].positions : notHere(`epoch ${epoch}`);
}

function storedRows(asked) {
  const rows = Object.values(stored.samples).filter((each) => passes(each, asked)).map(({ line }) => line);
  const first = Number(asked.first ?? 0);
  return { total: rows.length, complete: true, first, rows: rows.slice(first, first + Number(asked.count ?? 50)) };
}

function passes({ line, sample }, asked) {
  const share = line.length ? (100 * (line.targets ?? 0)) / line.length : 0;
  const within = (value, name) => value >= Number(asked[`${name}_from`] || 0) && value <= Number(asked[`${name}_to`] || Infinity);
  const text = asked.in === "rendered" ? sample.rendered : sample.raw;
  if (asked.q && !text.toLowerCase().includes(asked.q.toLowerCase())) return false;
  if (asked.source && stored.overview.sources[line.source].name !== asked.source) return false;
  if (asked.reason === "none" || asked.reason === "any") {
    if (Boolean(line.reason) !== (asked.reason === "any")) return false;
  } else if (asked.reason && line.reason !== asked.reason) return false;
  return within(line.length, "length") && within(share, "share");
}

function storedRun({ epoch, from, to }) {
  const { run } = stored;
  if (run.error) return run;
  if (Number(epoch ?? 0) !== 0) return notHere(`epoch ${epoch}`);
  const { strip, first_step: before } = run;
  const isShown = (start) => start + strip.each > Number(from || 0) - before && start < Number(to || Infinity) - before;
  const places = strip.starts.map((_, place) => place).filter((place) => isShown(strip.starts[place]));
  if (!places.length) return run;
  const shown = Object.fromEntries(Object.entries(strip).map(([name, value]) => [name, Array.isArray(value) ? places.map((place) => value[place]) : value]));
  return { ...run, strip: shown };
}
