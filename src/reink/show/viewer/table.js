// Every decision in a table: sorted by a click on a heading, filtered by words and outcome, a page at a time.

const PAGE = 200;

const COLUMNS = [
  ["#", (d) => d.id],
  ["write", (d) => d.operator],
  ["your line", (d) => (d.source ? `${d.source.file} ${String(d.source.line).padStart(9, "0")}` : "")],
  ["outcome", (d) => d.outcome],
  ["copied", (d) => (d.bytes === null ? Infinity : d.bytes)],
  ["read in the way", (d) => (d.conflict ? d.conflict.read : "")],
  ["what to change", (d) => d.do],
];

class Decisions {
  constructor() {
    this.sorted = 0;
    this.down = false;
    this.limit = PAGE;
    this.words = new Map();
    const outcomes = [...new Set(report.decisions.map((d) => d.outcome))];
    byId("outcome").append(...outcomes.map((outcome) => make("option", "", outcome)));
    const heads = COLUMNS.map(([title], k) => this.heading(title, k));
    byId("table").tHead.append(make("tr", "", ...heads));
    byId("find").addEventListener("input", () => this.refresh());
    byId("outcome").addEventListener("change", () => this.refresh());
    byId("more").addEventListener("click", () => this.refresh(this.limit + PAGE * 5));
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

  /** All that a decision says, for the search; made when it is first searched. */
  wordsOf(decision) {
    let words = this.words.get(decision);
    if (words === undefined) this.words.set(decision, (words = JSON.stringify(decision).toLowerCase()));
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

  refresh(limit = PAGE) {
    this.limit = limit;
    const found = this.chosen();
    byId("table").tBodies[0].replaceChildren(...found.slice(0, limit).map((d) => this.row(d)));
    [...byId("table").tHead.rows[0].cells].forEach((cell, k) => cell.setAttribute("aria-sort", k === this.sorted ? (this.down ? "descending" : "ascending") : "none"));
    byId("found").textContent = `${found.length} of ${report.decisions.length}`;
    byId("more").hidden = found.length <= limit;
  }

  row(decision) {
    const conflict = decision.conflict;
    const link = make("a", "", String(decision.id));
    link.href = `#decision-${decision.id}`;
    link.title = "show this decision in the story";
    const row = make("tr", isCopy(decision) ? "copied" : "", make("td", "", link),
      make("td", "", make("code", "", `${decision.operator.replace(/^aten\./, "")}(${decision.argument})`)),
      make("td", "", ...this.line(decision.source, decision)),
      make("td", "", tag(isCopy(decision) ? "amber" : "green", decision.outcome)),
      make("td", "amount", sizeOf(decision)),
      make("td", "", ...(conflict ? [make("code", "", conflict.read), " ", ...this.line(conflict.read_source, decision)] : [])),
      make("td", "", ...(decision.reason && isCopy(decision) ? [reasonLink(decision.reason), make("br")] : []), decision.do));
    row.id = `row-${decision.id}`;
    return row;
  }

  /** A line of the program, as a link into the story where it stands. */
  line(source, decision) {
    if (!source) return [];
    const link = make("a", "place", placeOf(source));
    link.href = `#decision-${decision.id}`;
    link.title = source.file;
    return [link, make("br"), make("code", "", source.text)];
  }

  /** Bring a decision into the table, whatever is filtered, and mark its row. */
  mark(decision) {
    for (const row of byId("table").querySelectorAll("tr.here")) row.classList.remove("here");
    if (decision) byId(`row-${decision.id}`)?.classList.add("here");
  }
}

const table = new Decisions();
