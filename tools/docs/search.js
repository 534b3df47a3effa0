"use strict";
// Search over the pages of the site: every word must occur; titles and headings weigh more than text. The index lies beside the pages.
const field = document.getElementById("search"), found = document.getElementById("found"), root = document.body.dataset.root;

function score(page, words) {
  let sum = 0, anchor = "";
  for (const word of words) {
    const heading = page.headings.find(entry => entry[1].toLowerCase().includes(word));
    const inTitle = page.title.toLowerCase().includes(word), at = page.text.toLowerCase().indexOf(word);
    if (!inTitle && !heading && at < 0) return null;
    sum += inTitle ? 10 : heading ? 5 : 1;
    if (heading && !anchor) anchor = "#" + heading[0];
  }
  return {sum, anchor};
}

function excerpt(page, word) {
  const at = page.text.toLowerCase().indexOf(word);
  return at < 0 ? "" : page.text.slice(Math.max(0, at - 40), at + 60);
}

function search() {
  const words = field.value.toLowerCase().split(/\s+/).filter(word => word.length > 1);
  found.replaceChildren();
  if (!words.length) return;
  const hits = pages.map(page => ({page, hit: score(page, words)})).filter(entry => entry.hit).sort((a, b) => b.hit.sum - a.hit.sum).slice(0, 12);
  for (const {page, hit} of hits) {
    const item = document.createElement("li"), link = document.createElement("a"), text = document.createElement("b");
    link.href = root + page.path + hit.anchor;
    link.textContent = page.title;
    text.textContent = excerpt(page, words[0]);
    item.append(link, text);
    found.append(item);
  }
  if (!hits.length) found.textContent = "Nothing found";
}

field.addEventListener("input", search);
const asked = new URLSearchParams(location.search).get("q");
if (asked) { field.value = asked; search(); }
