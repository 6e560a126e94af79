// Ranks what a search finds: a page whose title has every word asked for comes first, then pages
// that answer questions, then the others; names of the API and tables of results come last.
"use strict";

const _words = (text) =>
  text
    .toLowerCase()
    .split(/[^\p{L}\d²-]+/u)
    .filter(Boolean)
    .map((word) => word.replace(/s$/, ""));
const _asked = _words(new URLSearchParams(window.location.search).get("q") || "");
const _places = [
  [/^(start|faq)$/, 6],
  [/^(tutorials|methods)\//, 4],
  [/^(results\/|speed|architecture|examples|reference\/)/, -6],
];

var Scorer = {
  score: ([docname, title, anchor, descr, score, filename, kind]) => {
    if (kind === "object") return score - 12;
    const [, place] = _places.find(([named]) => named.test(docname)) || [null, 0];
    const page = _words(title.split(" > ")[0]);
    const named = _asked.length > 0 && _asked.every((word) => page.includes(word));
    return score + place + (named ? 20 : 0);
  },
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
