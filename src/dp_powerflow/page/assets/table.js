"use strict";
// Long tables: a click on a header sorts the rows, words in the field above leave out the others.
(() => {
  const { element } = Scales;
  const words = new Intl.Collator("en", { numeric: true });
  // A cell that says nothing is last, whatever the order.
  const figure = (text) => {
    const found = Number.parseFloat(text.replace(/[,\s\u00a0]/g, ""));
    return Number.isNaN(found) ? null : found;
  };

  for (const sheet of document.querySelectorAll(".sheet.data")) {
    const table = sheet.querySelector("table");
    const body = table.tBodies[0];
    const rows = [...body.rows].map((row) => ({ row, text: row.textContent.toLowerCase() }));
    const headers = [...table.tHead.rows[0].cells];

    const sort = (column) => {
      const header = headers[column];
      const falls = header.getAttribute("aria-sort") === "ascending";
      headers.forEach((each) => each.removeAttribute("aria-sort"));
      header.setAttribute("aria-sort", falls ? "descending" : "ascending");
      const numeric = table.classList.contains(`n${column + 1}`);
      const read = numeric ? figure : (text) => (text === "–" || text === "" ? null : text);
      const keyed = rows.map((each) => ({ ...each, key: read(each.row.cells[column].textContent) }));
      const order = numeric ? (a, b) => a - b : words.compare;
      keyed.sort((a, b) => {
        if (a.key === null || b.key === null) return (a.key === null) - (b.key === null);
        return (falls ? -1 : 1) * order(a.key, b.key);
      });
      body.append(...keyed.map(({ row }) => row));
    };
    headers.forEach((header, column) => {
      const button = element("button", { type: "button", onclick: () => sort(column) }, header.textContent);
      header.replaceChildren(button);
    });

    const count = element("output", { class: "said" });
    const filter = (asked) => {
      const sought = asked.toLowerCase().split(/\s+/).filter((word) => word);
      let shown = 0;
      for (const { row, text } of rows) {
        const fits = sought.every((word) => text.includes(word));
        if (row.hidden === fits) row.hidden = !fits;
        shown += fits;
      }
      const all = rows.length.toLocaleString("en");
      count.textContent = sought.length ? `${shown.toLocaleString("en")} of ${all} rows` : `${all} rows`;
    };
    const field = element("input", {
      type: "search", "aria-label": "Show rows with these words", placeholder: "Show rows with …",
      oninput: (event) => filter(event.target.value),
    });
    sheet.querySelector(".scroll").before(element("div", { class: "controls" }, field, count));
    filter("");
  }
})();
