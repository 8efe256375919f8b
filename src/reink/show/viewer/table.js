// Every decision in a table: sorted by a click on a heading, filtered by words and outcome, a page at a time.

const PAGE = 200;

const COLUMNS = [
  ["#", (d) => d.id],
  ["write", (d) => d.operator],
  ["your line", (d) => (d.source ? `${d.source.file} ${String(d.source.line).padStart(9, "0")}` : "")],
  ["outcome", (d) => d.outcome],
  ["copied", (d) => (d.bytes === null ? Infinity : d.bytes)],
  ["read in the way", (d) => (d.conflict ? placeOf(d.conflict.read_source) || readerOf(d.conflict) : "")],
  ["what to change", (d) => d.do],
];

/** Who reads the old value, where no line of the program is known for it. */
const readerOf = (conflict) => (conflict.read === "output" ? "what the program returns" : `${conflict.read} of the pure graph`);

class Decisions {
  constructor() {
    this.sorted = 0;
    this.down = false;
    this.limit = PAGE;
    this.words = new Map();
    this.current = null;
    const outcomes = [...new Set(report.decisions.map((d) => d.outcome))];
    byId("outcome").append(...outcomes.map((outcome) => make("option", "", outcome)));
    const heads = COLUMNS.map(([title], k) => this.heading(title, k));
    byId("table").tHead.append(make("tr", "", ...heads));
    byId("find").addEventListener("input", () => this.refresh());
    byId("outcome").addEventListener("change", () => this.refresh());
    byId("more").addEventListener("click", () => this.drawTo(this.limit + PAGE * 5));
    window.addEventListener("pageshow", () => this.refresh()); // a browser may have filled the fields again
    this.refresh();
  }

  heading(title, k) {
    const button = make("button", "", title);
    button.type = "button";
    button.addEventListener("click", () => {
      this.down = this.sorted === k && !this.down;
      this.sorted = k;
      this.refresh();
    });
    const cell = make("th", title === "copied" ? "amount" : "", button);
    cell.scope = "col";
    return cell;
  }

  /** All that the row of a decision shows, for the search; made when it is first searched. */
  wordsOf(decision) {
    let words = this.words.get(decision);
    if (words === undefined) this.words.set(decision, (words = this.row(decision).textContent.toLowerCase()));
    return words;
  }

  chosen() {
    const [find, outcome] = [byId("find").value.toLowerCase().trim(), byId("outcome").value];
    const key = COLUMNS[this.sorted][1];
    const fits = (d) => (!find || this.wordsOf(d).includes(find)) && (!outcome || (outcome === "copies" ? isCopy(d) : d.outcome === outcome));
    const found = report.decisions.filter(fits);
    const sign = this.down ? -1 : 1;
    return found.sort((a, b) => { const [x, y] = [key(a), key(b)]; return x < y ? -sign : x > y ? sign : a.id - b.id; });
  }

  refresh() {
    this.found = this.chosen();
    this.limit = 0;
    byId("table").tBodies[0].replaceChildren();
    this.drawTo(PAGE);
    [...byId("table").tHead.rows[0].cells].forEach((cell, k) => cell.setAttribute("aria-sort", k === this.sorted ? (this.down ? "descending" : "ascending") : "none"));
    const total = report.decisions.length;
    byId("found").textContent = total && !this.found.length ? "nothing matches" : `${this.found.length} of ${total}`;
    this.mark(this.current);
  }

  /** Draw the first `limit` rows; those that are there stay. */
  drawTo(limit) {
    byId("table").tBodies[0].append(...this.found.slice(this.limit, limit).map((d) => this.row(d)));
    this.limit = Math.max(this.limit, limit);
    byId("more").hidden = this.found.length <= this.limit;
  }

  row(decision) {
    const conflict = decision.conflict;
    const link = make("a", "", String(decision.id));
    link.href = `#decision-${decision.id}`;
    link.title = "show this decision";
    const row = make("tr", isCopy(decision) ? "copied" : "", make("td", "", link),
      make("td", "", make("code", "", `${decision.operator.replace(/^aten\./, "")}(${decision.argument})`)),
      make("td", "", ...this.line(decision.source, decision)),
      make("td", "", tag(isCopy(decision) ? "amber" : "green", decision.outcome)),
      make("td", "amount", sizeOf(decision)),
      make("td", "", ...(conflict ? this.reader(conflict, decision) : [])),
      make("td", "", ...(decision.reason && isCopy(decision) ? [reasonLink(decision.reason), make("br")] : []), decision.do));
    row.id = `row-${decision.id}`;
    [...row.cells].forEach((cell, k) => {
      cell.dataset.label = COLUMNS[k][0];
      if (cell.textContent) cell.replaceChildren(make("div", "", ...cell.childNodes));
    });
    return row;
  }

  reader(conflict, decision) {
    const line = this.line(conflict.read_source, decision);
    return line.length ? line : [readerOf(conflict)];
  }

  /** A line of the program, as a link into the story where it stands. */
  line(source, decision) {
    if (!placeOf(source)) return source && source.text ? [make("code", "", source.text)] : [];
    const link = make("a", "place", placeOf(source));
    link.href = `#decision-${decision.id}`;
    link.title = source.file;
    return [link, make("br"), make("code", "", source.text)];
  }

  /** Mark the row of a decision, and draw the rows up to it; a filter may hide it. */
  mark(decision) {
    this.current = decision;
    const at = decision ? this.found.indexOf(decision) : -1;
    if (at >= this.limit) this.drawTo(at + 1);
    for (const row of byId("table").querySelectorAll("tr.here")) row.classList.remove("here");
    if (decision) byId(`row-${decision.id}`)?.classList.add("here");
  }

  /** Bring the row of a decision into view, whatever is filtered. */
  show(decision) {
    if (!this.found.includes(decision)) {
      byId("find").value = byId("outcome").value = "";
      this.refresh();
    }
    this.mark(decision);
    byId(`row-${decision.id}`).scrollIntoView({ block: "center", behavior: "instant" });
  }
}

const table = new Decisions();
