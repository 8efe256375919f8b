// The stage: the user's program on the left, the ledger or a decision in the middle, a graph on the right.

const ROW = 24;
const WHOLE = 300; // a list this long is drawn whole; a longer one around what is seen

class List {
  constructor(box) {
    this.box = box;
    this.inner = make("div", "rows");
    this.inner.setAttribute("role", "list");
    box.append(this.inner);
    this.count = 0;
    box.addEventListener("scroll", () => this.count > WHOLE && this.fill());
  }

  /** Show `count` rows, each made by `row(k)`, and bring row `active` into view. */
  show(count, row, active) {
    this.count = count;
    this.row = row;
    this.inner.style.height = `${count * ROW + 16}px`;
    if (active >= 0) this.reveal(active);
    this.fill();
  }

  reveal(active) {
    const [top, height] = [active * ROW, this.box.clientHeight];
    if (top < this.box.scrollTop + ROW || top > this.box.scrollTop + height - 3 * ROW) {
      this.box.scrollTop = Math.max(0, top - height / 2);
    }
  }

  fill() {
    const whole = this.count <= WHOLE;
    const first = whole ? 0 : Math.max(0, Math.floor(this.box.scrollTop / ROW) - 20);
    const last = whole ? this.count : Math.min(this.count, first + Math.ceil(this.box.clientHeight / ROW) + 40);
    const rows = [];
    for (let k = first; k < last; k += 1) {
      const row = this.row(k);
      row.style.top = `${k * ROW + 8}px`;
      row.setAttribute("role", "listitem");
      rows.push(row);
    }
    this.inner.replaceChildren(...rows);
  }
}

/** The user's program: a row for each file, for each line as it is met, and for the calls that the line makes. */
function listing() {
  const found = [];
  let file = null;
  let source = null;
  calls.forEach((row, call) => {
    const line = report.sources[row.source];
    const place = line ? `${shortFile(line.file)}, ${line.function}` : "";
    if (place !== file) found.push({ kind: "file", text: place || "no source lines known" });
    if (line && (row.source !== source || place !== file)) found.push({ kind: "source", source: row.source, first: call, last: call });
    else if (line) lastSource(found).last = call;
    found.push({ kind: "op", call });
    [file, source] = [place, row.source];
  });
  return found;
}

function lastSource(found) {
  let k = found.length - 1;
  while (found[k].kind !== "source") k -= 1;
  return found[k];
}

const program = listing();
const longest = Math.max(program.length, programs.lowered ? programs.lowered.rows.length : 0, programs.functional ? programs.functional.rows.length : 0);
document.querySelector(".stage").style.setProperty("--rows", String(longest));
const rowOfCall = new Map();
program.forEach((row, k) => row.kind === "op" && rowOfCall.set(row.call, k));
const left = new List(byId("left"));
const right = new List(byId("right"));
const ledger = new Ledger();

function numbered(source) {
  const line = report.sources[source];
  const row = make("div", "row source", make("span", "number", String(line.line)), " ", make("span", "text", line.text || "(the text of this line is not at hand)"));
  row.title = `${line.file}:${line.line}`;
  return row;
}

/** Row `k` of the program; `mark(row, element)` adds what the act has to say about it. */
function programRow(k, mark) {
  const row = program[k];
  let element;
  if (row.kind === "file") element = make("div", "row file", row.text);
  else if (row.kind === "source") element = numbered(row.source);
  else element = make("div", "row op", make("span", "text", calls[row.call].text));
  mark(row, element);
  return element;
}

const tag = (kind, text) => make("span", `tag ${kind}`, text);

/** Add a note to the end of a row; notes stay in sight however long the row is. */
function note(row, element) {
  const last = row.lastChild;
  const notes = last && last.className === "notes" ? last : row.appendChild(make("span", "notes"));
  notes.append(element);
}

// act 1

const madeBy = new Map(); // the pure nodes of each captured call, by call
if (programs.functional) {
  for (const row of programs.functional.rows) {
    const call = orderOf.get(row.of);
    if (call !== undefined) madeBy.set(call, [...(madeBy.get(call) || []), row.node]);
  }
}

/** What a call is called from now on: the last of the nodes that it became. */
function newName(call) {
  const made = madeBy.get(call);
  const label = make("span", "arrow", made ? `\u2192 ${made[made.length - 1]}` : "\u2192 only a name");
  label.title = made ? made.join(", ") : "a view costs nothing until it is read";
  return label;
}

function showFirst(step, index) {
  byId("middle-title").textContent = "The ledger: storages and their versions";
  byId("right-title").textContent = "The pure graph, as it grows";
  const current = step.call;
  left.show(program.length, (k) => programRow(k, (row, element) => {
    if (row.kind === "op") {
      if (row.call <= current) element.classList.add("done");
      if (row.call === current) element.classList.add("now");
      if (row.call <= current) note(element, newName(row.call));
    } else if (row.kind === "source") {
      if (row.last <= current) element.classList.add("done");
      if (row.first <= current && current <= row.last) element.classList.add("at");
    }
  }), rowOfCall.get(Math.min(current, calls.length - 1)) ?? 0);
  byId("middle").replaceChildren(...ledgerCards(step, ledger.at(step.to)));
  const before = index > 0 ? steps[index - 1].lines : 0;
  right.show(step.lines, (k) => graphRow(programs.functional.rows[k], k >= before ? "new" : ""), step.lines - 1);
  const card = byId("middle").querySelector(".storage.now");
  if (card) card.scrollIntoView({ block: "nearest", behavior: "instant" });
}

function graphRow(row, kind) {
  const element = make("div", `row ${kind}`, make("span", "text", row.text));
  if (row.role === "epilogue") note(element, tag("violet", "epilogue"));
  if (!isCall(row)) element.classList.add("pale");
  return element;
}

// act 2

const decisionsAt = new Map(); // by node of the pure graph
report.decisions.forEach((decision, k) => decisionsAt.set(decision.node, [...(decisionsAt.get(decision.node) || []), k]));

const sameLine = (a, b) => a && b && a.file === b.file && a.line === b.line;

function showSecond(step) {
  byId("middle-title").textContent = "The decision";
  byId("right-title").textContent = "The pure graph: may this write use the old memory?";
  const upto = step.kind === "intro" ? -1 : step.decision;
  const decision = report.decisions[upto];
  const conflict = decision && decision.conflict;
  const writes = (source) => report.decisions.findIndex((d, k) => k <= upto && sameLine(d.source, source));
  const active = program.findIndex((row) => row.kind === "source" && decision && sameLine(report.sources[row.source], decision.source));
  const decided = settledLines(upto);
  left.show(program.length, (k) => programRow(k, (row, element) => {
    if (row.kind === "source") markLine(element, report.sources[row.source], decided, decision);
  }), active);
  byId("middle").replaceChildren(decision ? decisionCard(decision) : introCard());
  const row = (k) => {
    const line = programs.pure.rows[k];
    const element = graphRow(line, "");
    markCandidate(element, line, upto, conflict);
    return element;
  };
  right.show(programs.pure.rows.length, row, decision ? programs.pure.at.get(decision.node) ?? -1 : 0);
}

/** What the decisions up to `upto` say about each line of the program: is any of its writes copied? */
function settledLines(upto) {
  const found = new Map();
  for (let k = 0; k <= upto; k += 1) {
    const { source } = report.decisions[k];
    if (source) {
      const key = `${source.file}:${source.line}`;
      found.set(key, found.get(key) || isCopy(report.decisions[k]));
    }
  }
  return found;
}

function markLine(element, source, decided, decision) {
  const copied = decided.get(`${source.file}:${source.line}`);
  if (copied !== undefined) {
    element.classList.add(copied ? "amber" : "green");
    note(element, tag(copied ? "amber" : "green", copied ? "copied" : "in place"));
  }
  if (!decision) return;
  if (sameLine(source, decision.source)) element.classList.add("here");
  if (decision.conflict && sameLine(source, decision.conflict.read_source)) {
    element.classList.add("reads");
    note(element, tag("reader", "reads the old value"));
  }
}

function markCandidate(element, line, upto, conflict) {
  const all = decisionsAt.get(line.node) || [];
  for (const k of all) {
    if (k > upto) {
      note(element, tag("", "candidate"));
      continue;
    }
    const decision = report.decisions[k];
    element.classList.add(isCopy(decision) ? "amber" : "green");
    note(element, tag(isCopy(decision) ? "amber" : "green", isCopy(decision) ? `${decision.outcome}, ${sizeOf(decision)}` : decision.outcome));
    if (k === upto) element.classList.add("here");
  }
  if (conflict && line.node && line.node === conflict.read) {
    element.classList.add("reads");
    note(element, tag("reader", "reads the old value"));
  }
}

function introCard() {
  const total = report.decisions.length;
  const copies = report.decisions.filter(isCopy).length;
  return make("p", "quiet", total
    ? `${counted(total, "write")} could use the memory of the old version. For each the question is: does anything still need the bytes that it would overwrite? ${copies ? `For ${copies} of them something does.` : "Nothing does."}`
    : "This program writes no tensor, so there is nothing to decide.");
}

const lineOf = (source) => make("span", "", make("span", "place", placeOf(source)), " ", source.text ? make("code", "", source.text) : "");

function decisionCard(decision) {
  const copied = isCopy(decision);
  const card = make("section", `card ${copied ? "warn" : "good"}`);
  card.append(make("h3", "", make("strong", "", copied ? `${decision.outcome}: ${sizeOf(decision)} copied` : `${decision.outcome}: nothing copied`)));
  const list = make("dl", "why");
  const row = (label, ...content) => list.append(make("dt", "", label), make("dd", "", ...content));
  row("write", ...(placeOf(decision.source) ? [lineOf(decision.source)] : [make("code", "", `${decision.operator}(${decision.argument})`)]));
  const conflict = decision.conflict;
  if (conflict && copied) {
    if (placeOf(conflict.read_source)) row("read", lineOf(conflict.read_source));
    else row("read", readerOf(conflict));
    row("needs", neededOf(conflict), ", as it was before the write");
  }
  if (decision.reason) row("why", reasonLink(decision.reason));
  if (decision.do) row("change", make("strong", "", decision.do));
  if (decision.source) row("call", make("code", "", `${decision.operator}(${decision.argument})`));
  if (decision.avoided) row("avoided", `${amount(decision.avoided)} that a clone would have copied`);
  card.append(...conflictBars(decision), list);
  return card;
}

/** What a later read needs: so many bytes, and their name, which no line of the user's has. */
function neededOf(conflict) {
  const name = make("span", "", make("code", "", conflict.definition), " of the pure graph");
  if (!conflict.needed) return name;
  const count = conflict.needed[1].reduce((product, [number]) => product * number, 1);
  return make("span", "", `${amount(count)} (`, name, ")");
}

/** The bytes that are written and those that are still needed, each to scale in the storage. */
function conflictBars(decision) {
  const { needed, written, storage_bytes: bytes } = (isCopy(decision) && decision.conflict) || {};
  if (!needed || !bytes) return [];
  const row = (label, regions, kind) => {
    const words = regions.map(inWords).join("; ");
    return make("div", "name", make("p", "", make("span", "", label), make("span", "seen", words)), bar(bytes, regions.map((r) => [r, kind]), `${label}: ${words}`));
  };
  const scale = make("div", "scale", make("span", "", "0"), make("span", "", `${decision.storage}, ${amount(bytes)}`));
  return [make("div", "overlap", ...(written.length ? [row("would be overwritten", written, "wrote")] : []), row("still needed", [needed], "kept"), scale)];
}

function reasonLink(reason) {
  const entry = [...document.querySelectorAll("[data-reason]")].find((e) => reason.includes(e.dataset.reason));
  if (!entry) return reason;
  const link = make("a", "", reason);
  link.href = `#${entry.id}`;
  return link;
}

// act 3

// The calls of the user's program that nothing of the lowered one comes from. Views and writes may have become one.
const gone = new Set();
if (programs.lowered) {
  const kept = new Set(programs.lowered.rows.map(capturedOf));
  calls.forEach((row, call) => row.role === "pure" && !kept.has(row.node) && gone.add(call));
}

/** Whether the calls that came of a call are no longer in the graph that the writes were decided for. */
const isRemoved = (call) => Boolean(programs.pure) && !(madeBy.get(call) || []).some((node) => programs.pure.at.has(node));

const ROLES = { write: ["green", "in place"], reuse: ["", "uses memory again"], copy: ["amber", "copy, added by reink"] };

/** Whether a row writes where the program wrote nothing: reink gives it memory that nobody needs any more. */
const isReuse = (row) => row.role === "write" && !decisionsAt.has(row.of);

function showThird(step) {
  byId("middle-title").textContent = "Memory while it runs";
  byId("right-title").textContent = "What runs instead";
  const rows = programs.lowered.rows;
  const call = step.kind === "line" ? orderOf.get(capturedOf(rows[step.line])) : undefined;
  left.show(program.length, (k) => programRow(k, (row, element) => {
    if (row.kind === "source" && row.first <= call && call <= row.last) element.classList.add("at");
    if (row.kind !== "op") return;
    if (row.call === call) element.classList.add("now");
    if (gone.has(row.call)) note(element, tag("", isRemoved(row.call) ? "removed by a pass" : "fell away"));
  }), call === undefined ? (step.kind === "end" ? program.length - 1 : 0) : rowOfCall.get(call));
  right.show(rows.length, (k) => {
    const element = graphRow(rows[k], k === step.line ? "now" : "");
    const role = isReuse(rows[k]) ? "reuse" : rows[k].role;
    if (ROLES[role]) note(element, tag(...ROLES[role]));
    if (role === "copy") element.classList.add("amber");
    return element;
  }, Math.min(step.line, rows.length - 1));
  byId("middle").replaceChildren(...memoryCards(step, call));
}

function memoryCards(step, call) {
  const cards = [];
  const eager = curves.find((c) => c.key === "eager");
  const lowered = curves.find((c) => c.key === "lowered");
  if (!eager || !lowered) return [make("p", "quiet", "No sizes are known for this program.")];
  const at = { eager: call === undefined ? null : programs.captured.at.get(calls[call].node), lowered: step.kind === "line" ? step.line : null };
  const most = Math.max(eager.peak, lowered.peak, 1);
  for (const curve of [eager, lowered]) {
    const line = at[curve.key];
    const now = line === null ? curve.peak : curve.live[line];
    const card = make("section", `storage ${curve.key}`);
    const fill = make("i", "");
    fill.style.width = `${(now / most) * 100}%`;
    fill.style.background = "var(--tone)";
    card.append(make("h4", "", curve.title, make("span", "quiet", line === null ? "at its peak" : "now"), make("span", "version", amount(now))), make("div", "meter", fill));
    const shown = heldAt(curve, line === null ? curve.peakLine : line);
    card.append(heldList(shown));
    cards.push(card);
  }
  return cards;
}

function heldList(held) {
  const list = make("ul", "held", ...held.slice(0, 6).map((h) => make("li", "", make("code", "", h.name), make("span", "quiet", amount(h.bytes)))));
  if (held.length > 6) list.append(make("li", "quiet", `and ${held.length - 6} more`));
  return list;
}
