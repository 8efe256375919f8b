// The ledger: storages, the names that hang on them, and the version that each name has last seen.

const MOST_STORAGES = 12;
const MOST_NAMES = 8;
const MOST_RUNS = 240;

class Ledger {
  constructor() {
    this.reset();
  }

  reset() {
    this.storages = new Map();
    this.applied = 0;
  }

  /** The state after the first `count` events. Going back means starting over: replaying is quick. */
  at(count) {
    if (count < this.applied) this.reset();
    while (this.applied < count) this.apply(events[this.applied++]);
    return this.storages;
  }

  apply(event) {
    if (event.kind === "input" || event.kind === "birth") {
      this.storages.set(event.storage, {
        name: event.storage, kind: event.kind, bytes: endOf(event.region), version: 0, node: event.node,
        places: new Map(), touched: 0, closed: "",
      });
    }
    const storage = this.storages.get(event.storage);
    if (!storage) return;
    storage.touched = this.applied;
    const place = placeIn(storage, event);
    place.touched = this.applied;
    if (event.kind === "name") {
      if (!place.names.includes(event.node)) place.names.push(event.node);
    } else if (event.kind === "epilogue") {
      storage.closed = event.node;
    } else if (event.kind === "write" || event.kind === "write-back") {
      storage.version = event.version;
      storage.node = event.node;
    } else {
      place.node = event.node;
      place.version = event.version;
    }
  }
}

function placeIn(storage, event) {
  let place = storage.places.get(event.place);
  if (!place) {
    place = { number: event.place, region: event.region, names: [], node: "", version: -1 };
    storage.places.set(event.place, place);
  }
  return place;
}

/** One past the last byte of a region; null when sizes are symbolic. */
function endOf(region) {
  if (!region) return null;
  const [start, dims] = region;
  return dims.some(([count]) => count === 0) ? start : start + 1 + dims.reduce((sum, [count, step]) => sum + (count - 1) * step, 0);
}

/** The runs of bytes of a region as `[from, to]`; one hull, marked as `sparse`, when there are too many to draw. */
function runsOf(region) {
  const [start, dims] = region;
  const inner = dims.length && dims[0][1] === 1 ? dims[0][0] : 1;
  const outer = dims.length && dims[0][1] === 1 ? dims.slice(1) : dims;
  if (outer.reduce((product, [count]) => product * count, 1) > MOST_RUNS) {
    return { runs: [[start, endOf(region)]], sparse: true };
  }
  let starts = [start];
  for (const [count, step] of outer) {
    starts = starts.flatMap((at) => Array.from({ length: count }, (_, k) => at + k * step));
  }
  return { runs: starts.map((at) => [at, at + inner]), sparse: false };
}

/** A bar as long as the storage, with parts `[region, class]` drawn to scale in it. */
function bar(bytes, parts, label) {
  const svg = draw("svg", { class: "bar", viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": label });
  svg.append(draw("rect", { class: "all", x: 0.5, y: 0.5, width: 999, height: 9, "vector-effect": "non-scaling-stroke" }));
  for (const [region, kind] of parts) {
    if (!region || !bytes) continue;
    const { runs, sparse } = runsOf(region);
    for (const [from, to] of runs) {
      const width = Math.max(3, ((to - from) / bytes) * 1000);
      const x = Math.min((from / bytes) * 1000, 1000 - width);
      svg.append(draw("rect", { class: `part ${kind}`, x, y: 0, width, height: 10, opacity: sparse ? 0.45 : 1 }));
    }
  }
  return svg;
}

const inWords = (region) => {
  if (!region) return "bytes known only when it runs";
  const { runs, sparse } = runsOf(region);
  if (sparse) return `scattered bytes between ${region[0]} and ${endOf(region)}`;
  const [from, to] = [runs[0][0], runs[runs.length - 1][1]];
  return runs.length === 1 ? `bytes ${from} to ${to}` : `${runs.length} pieces between bytes ${from} and ${to}`;
};

/** The `most` things touched last, in the order that they have. */
function latest(things, most) {
  const kept = new Set([...things].sort((a, b) => b.touched - a.touched).slice(0, most));
  return things.filter((thing) => kept.has(thing));
}

/** One storage as a card; `now` are the events of the current step that concern it. */
function storageCard(storage, now) {
  const write = now.find((e) => e.kind === "write" || e.kind === "write-back");
  const card = make("section", now.length ? "storage now" : "storage");
  const version = make("span", write ? "version tick" : "version",
    write ? `version ${storage.version - 1} \u2192 ${storage.version}` : `version ${storage.version}`);
  const origin = storage.kind === "input" ? "input" : "made on the way";
  const head = make("h4", "", make("code", "", storage.name), make("span", "quiet", `${origin}, ${amount(storage.bytes)}`), version);
  card.append(head);
  if (storage.bytes) {
    card.append(bar(storage.bytes, write ? [[write.region, "wrote"]] : [], write ? `written: ${inWords(write.region)}` : "not written now"));
    card.append(make("div", "scale", make("span", "", "0"), make("span", "", write ? `written: ${inWords(write.region)}` : ""), make("span", "", amount(storage.bytes))));
  }
  const places = [...storage.places.values()].filter((p) => p.names.length);
  for (const place of latest(places, MOST_NAMES)) card.append(nameRow(storage, place));
  if (places.length > MOST_NAMES) card.append(make("p", "quiet", `and ${counted(places.length - MOST_NAMES, "older name")}`));
  if (storage.closed) card.append(make("p", "", make("span", "tag violet", "epilogue"), " ", make("code", "", storage.closed), " brings version ", String(storage.version), " back into the input"));
  return card;
}

function nameRow(storage, place) {
  const whole = place.number === 0;
  const [node, version] = whole ? [storage.node, storage.version] : [place.node, place.version];
  const stale = version !== storage.version;
  const seen = version < 0 ? "not read yet" : stale ? `saw version ${version}` : `${node}`;
  const names = place.names.slice(-3).join(", ");
  const label = make("code", "", names);
  label.title = place.names.join(", ");
  const state = version < 0 || stale ? make("span", "seen", seen) : make("span", "seen", "is ", make("code", "", seen));
  state.title = version < 0 ? "a view costs nothing until it is read" : stale ? "replayed from the newest version when it is next read" : "up to date";
  const row = make("div", stale && version >= 0 ? "name stale" : "name", make("p", "", label, state));
  if (storage.bytes) row.append(bar(storage.bytes, [[place.region, stale ? "stale" : ""]], `${names}: ${inWords(place.region)}`));
  return row;
}

/** The storages worth a card: the written, viewed and current ones, the latest few, in the order they were made. */
function ledgerCards(step, storages) {
  const now = events.slice(step.from, step.to);
  const current = new Set(now.map((e) => e.storage));
  const told = [...storages.values()].filter((s) => current.has(s.name) || s.kind === "input" || s.version > 0 || s.places.size > 1);
  const shown = latest(told, MOST_STORAGES);
  const cards = shown.map((s) => storageCard(s, now.filter((e) => e.storage === s.name && e.kind !== "input")));
  const folded = storages.size - shown.length;
  if (folded > 0) cards.push(make("p", "quiet", `and ${counted(folded, "storage")} more, folded: none of them is at work now`));
  if (!storages.size) cards.push(make("p", "quiet", "Storages appear here as the program makes or receives them. Names hang on them, each over the bytes that it looks at."));
  return cards;
}
