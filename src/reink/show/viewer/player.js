// The player: one position in the three acts, moved by buttons, keys, slider and links.

const code = (text) => make("code", "", text);

/** What happens at a step, in a sentence or two. */
function narrate(step) {
  if (step.act === 1) return narrateFirst(step);
  if (step.act === 2) return narrateSecond(step);
  return narrateThird(step);
}

function narrateFirst(step) {
  if (step.kind === "start") return ["This is the program as it was captured. Going through it line by line makes a graph in which nothing is ever overwritten. Press space to play."];
  if (step.kind === "inputs") return ["Each input is a storage. Its content is version 0, and its name hangs on all of it."];
  const now = events.slice(step.from, step.to);
  if (step.kind === "end") return narrateEnd(now);
  const call = calls[step.call];
  const clauses = now.map((event) => clause(event, call)).filter((words) => words);
  if (!clauses.length) clauses.push(["touches no storage"]);
  return [...subject(step.call), ...clauses.flatMap((words, k) => [k ? "It " : "", ...words, ". "])];
}

/** The user's own line where it makes one call only, else the call itself. */
function subject(call) {
  const row = calls[call];
  const line = report.sources[row.source];
  const alone = [calls[call - 1], calls[call + 1]].every((other) => !other || other.source !== row.source);
  if (!line || !line.line) return [code(row.text), " "];
  return alone && line.text ? [`Line ${line.line}, `, code(line.text), ", "] : [`Line ${line.line}: `, code(row.text), " "];
}

/** What an event says of the call at work; the words follow its name. */
function clause(event, call) {
  const name = (text) => code(text);
  switch (event.kind) {
    case "view": return ["reads ", name(event.storage), " through the view ", name(event.node)];
    case "replay": return ["needs what ", name(event.storage), ` holds now, so its view is replayed from version ${event.version} as `, name(event.node)];
    case "write": return ["makes a new value instead of writing: ", name(event.storage), " is now ", name(event.node), `, version ${event.version}`];
    case "write-back": return ["writes through a view, so its new value is carried back: ", name(event.storage), " is now ", name(event.node), `, version ${event.version}, and other names on it are behind`];
    case "birth": return ["makes a storage of its own, ", name(event.storage)];
    case "name": return call.role === "view" ? ["is a view: the name ", name(event.node), " now hangs on ", name(event.storage), ", and nothing is computed until it is read"] : null;
    default: return null;
  }
}

function narrateEnd(now) {
  if (!now.length) return ["Done. Nothing that the caller gave was written, so there is no epilogue."];
  const names = now.slice(0, 4).flatMap((event) => [code(event.storage), " "]);
  return ["Done. The epilogue copies the newest version back into what the caller gave: ", ...names, now.length > 4 ? `and ${now.length - 4} more. ` : "", "These are the only writes of the pure program."];
}

function narrateSecond(step) {
  if (step.kind === "intro") return ["In the pure graph every write makes new memory. Now each gets its old memory back, if nothing still needs what it would overwrite."];
  const decision = report.decisions[step.decision];
  const line = decision.source && (decision.source.text || placeOf(decision.source));
  const where = [code(line || `${decision.operator}(${decision.argument})`), " "];
  if (!isCopy(decision)) return [...where, decision.outcome === "hoisted" ? "goes in place: the read that stood in the way could move before it." : "goes in place: nothing needs the old bytes any more."];
  const reader = decision.conflict && decision.conflict.read_source;
  const because = reader && reader.text ? ["because ", code(reader.text), " still reads the old value. "] : decision.reason ? [`because ${decision.reason}. `] : [];
  return [...where, `costs a copy of ${sizeOf(decision)} `, ...because, decision.do ? `To change it: ${decision.do}.` : ""];
}

function narrateThird(step) {
  const copied = report.decisions.filter(isCopy).length;
  if (step.kind === "intro") return ["On the left what you wrote, on the right what runs instead: the same writes, in place again", copied ? `, and ${counted(copied, "copy").replace("copys", "copies")} in amber.` : ", and no copy."];
  if (step.kind === "end") return ["Done. ", curves.length ? `The most memory held at once: ${curves.map((c) => `${amount(c.peak)} ${c.title}`).join("; ")}.` : ""];
  const row = programs.lowered.rows[step.line];
  const captured = capturedOf(row);
  const order = orderOf.get(captured);
  const source = order === undefined ? null : report.sources[calls[order].source];
  const from = order === undefined ? [] : source && source.line ? ["comes from line ", String(source.line), ", ", code(source.text), ". "] : ["comes from ", code(calls[order].text), ". "];
  const role = { write: isReuse(row) ? "Your program made a new tensor here; this takes memory that is free again. " : "It writes where your program wrote. ", copy: "This copy is not in your program: a decision asks for it. " }[row.role] || "";
  return [code(row.text), " ", ...from, role];
}

class Player {
  constructor() {
    this.at = -1;
    this.timer = 0;
    byId("slider").max = String(steps.length - 1);
    byId("slider").addEventListener("input", (event) => { this.pause(); this.go(Number(event.target.value)); });
    for (const [id, move] of [["first", () => 0], ["back", (k) => k - 1], ["next", (k) => k + 1], ["last", () => steps.length - 1]]) {
      byId(id).addEventListener("click", () => { this.pause(); this.go(move(this.at)); });
    }
    byId("play").addEventListener("click", () => this.toggle());
    [1, 2, 3].forEach((act) => this.act(act));
    document.addEventListener("keydown", (event) => this.key(event));
    window.addEventListener("pageshow", () => this.at >= 0 && this.showPlace());
    new ResizeObserver(() => this.fitMarks()).observe(byId("marks"));
  }

  act(act) {
    const start = actStart[act - 1];
    const button = byId(`act-${act}`);
    button.disabled = start < 0;
    if (start < 0) {
      button.title = "This report has no such act";
      return;
    }
    button.addEventListener("click", () => { this.pause(); this.go(start); });
    const mark = make("span", "", `act ${act}`);
    mark.style.left = `${(start / Math.max(1, steps.length - 1)) * 100}%`;
    byId("marks").append(mark);
  }

  /** Shorten the names of acts that begin so close together that they would lie on each other. */
  fitMarks() {
    const marks = [...byId("marks").children];
    marks.forEach((mark) => { mark.textContent = `act ${marks.indexOf(mark) + 4 - marks.length}`; });
    marks.forEach((mark, k) => {
      const next = marks[k + 1];
      if (next && next.offsetLeft < mark.offsetLeft + mark.offsetWidth + 4) mark.textContent = mark.textContent.slice(4);
      if (next && next.offsetLeft < mark.offsetLeft + mark.offsetWidth) mark.textContent = "";
    });
  }

  /** Go to a step that a link names, and bring the story into view. */
  visit(index) {
    this.pause();
    this.go(index, false);
    byId("story").scrollIntoView({ block: "start", behavior: "instant" });
  }

  /** Show step `index`; `told`: the address says so from now on. */
  go(index, told = true) {
    if (!steps.length) return;
    const at = Math.min(steps.length - 1, Math.max(0, index));
    if (at === this.at) return;
    this.at = at;
    const step = steps[at];
    [null, showFirst, showSecond, showThird][step.act](step, at);
    byId("narration").replaceChildren(...narrate(step));
    this.showPlace();
    byId("slider").setAttribute("aria-valuetext", `act ${step.act}, step ${at + 1} of ${steps.length}`);
    byId("counter").textContent = `step ${at + 1} of ${steps.length}`;
    [1, 2, 3].forEach((act) => byId(`act-${act}`).setAttribute("aria-pressed", String(act === step.act)));
    for (const [id, end] of [["first", 0], ["back", 0], ["next", steps.length - 1], ["last", steps.length - 1]]) this.enable(id, at !== end);
    table.mark(step.kind === "decision" ? report.decisions[step.decision] : null);
    if (told && !this.timer) setAddress(addressOf(at), false);
  }

  showPlace() {
    byId("slider").value = String(this.at);
  }

  /** A button that has the focus and is no longer of use passes it on to the one for the other way. */
  enable(id, enabled) {
    const had = !enabled && document.activeElement === byId(id);
    byId(id).disabled = !enabled;
    if (!had) return;
    const other = byId({ first: "next", back: "next", next: "back", last: "back" }[id]);
    other.disabled = false;
    other.focus();
  }

  toggle() {
    if (this.timer) this.pause();
    else this.play();
  }

  play() {
    if (this.at === steps.length - 1) this.go(0);
    byId("play").dataset.state = "playing";
    byId("play").setAttribute("aria-label", "Pause");
    const tick = () => {
      const wait = Number(byId("speed").value);
      // very fast: the whole story in about half a minute, however long it is
      this.go(this.at + (wait ? 1 : Math.max(1, Math.round(steps.length / 300))));
      if (this.at === steps.length - 1) this.pause();
      else this.timer = setTimeout(tick, wait || 100);
    };
    this.timer = setTimeout(tick, 60);
  }

  pause() {
    clearTimeout(this.timer);
    if (this.timer) setAddress(addressOf(this.at), false);
    this.timer = 0;
    byId("play").dataset.state = "paused";
    byId("play").setAttribute("aria-label", "Play");
  }

  key(event) {
    if (!this.isMeant(event)) return;
    const moves = { ArrowLeft: this.at - 1, ArrowRight: this.at + 1, Home: 0, End: steps.length - 1, 1: actStart[0], 2: actStart[1], 3: actStart[2] };
    if (event.key === " ") this.toggle();
    else if (event.key in moves && moves[event.key] !== undefined) {
      this.pause();
      if (moves[event.key] >= 0) this.go(moves[event.key]);
    } else return;
    event.preventDefault();
  }

  /** Whether a key is for the story: it is in view, and what has the focus has no use for the key itself. */
  isMeant(event) {
    const target = event.target;
    const { top, bottom } = byId("story").getBoundingClientRect();
    if (event.ctrlKey || event.metaKey || event.altKey || bottom < 80 || top > innerHeight - 80) return false;
    if (target === byId("slider")) return /^[ 123]$/.test(event.key);
    if (/^(INPUT|SELECT|TEXTAREA)$/.test(target.tagName)) return false;
    if (target !== document.body && target !== document.documentElement && !byId("story").contains(target)) return false;
    if (event.key === " " && /^(BUTTON|SUMMARY|A)$/.test(target.tagName)) return false;
    if (!target.matches(".list, .middle")) return true;
    const across = event.key.startsWith("Arrow");
    return across ? target.scrollWidth <= target.clientWidth : target.scrollHeight <= target.clientHeight || /^[123]$/.test(event.key);
  }
}

const player = steps.length ? new Player() : null;

/** The part of the address that leads to a step: a decision by its own number. */
function addressOf(at) {
  const step = steps[at];
  return step.kind === "decision" ? `#decision-${report.decisions[step.decision].id}` : `#step-${at + 1}`;
}

/** Change the address, as a place to come `back` to or not. A page in a frame has none that could be changed. */
function setAddress(hash, back) {
  if (location.hash === hash) return;
  try {
    history[back ? "pushState" : "replaceState"](null, "", hash);
  } catch {
    // the story goes on without
  }
}

/** Go where `hash` says: `#decision-12`, `#step-12`, or nothing for the start. Whether it said anything. */
function follow(hash) {
  if (hash === "" || hash === "#") {
    if (player) player.go(0, false);
    return true;
  }
  const [, kind, number] = hash.match(/^#(decision|step)-(\d+)$/) || [];
  const decision = kind === "decision" ? decisionById.get(Number(number)) : undefined;
  const found = kind === "step" ? Number(number) - 1 : decision === undefined ? -1 : actStart[1] + 1 + decision;
  if (decision !== undefined && actStart[1] < 0) table.show(report.decisions[decision]);
  else if (player && found >= 0 && found < steps.length) player.visit(found);
  else return false;
  return true;
}

/** A link within the page leads on each click, also where the address says so already. */
function clicked(event) {
  const link = event.target.closest('a[href^="#"]');
  if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  const hash = link.getAttribute("href");
  const named = byId(hash.slice(1));
  const folded = named && named.closest("details");
  if (folded) folded.open = true;
  if (follow(hash)) {
    setAddress(hash, true);
    if (player && actStart[1] >= 0) byId("play").focus({ preventScroll: true }); // the keys are for the story now
  } else if (location.protocol === "about:" && named) named.scrollIntoView();
  else return;
  event.preventDefault();
}

document.addEventListener("click", clicked);
window.addEventListener("hashchange", () => follow(location.hash));
if (!follow(location.hash) && player) player.go(0, false);
if (player) window.addEventListener("beforeprint", () => player.pause());
byId("story").hidden = !player;
byId("keys").hidden = !player;
