// What only the page itself knows: whether it is too wide, whether a foreign text ran, and texts that
// stand on a ground of too little contrast (below 4.5 to 1, WCAG AA).
() => {
  const parse = (text) => {
    const found = text.match(/[\d.]+/g).map(Number);
    return [found[0], found[1], found[2], found[3] ?? 1];
  };
  const light = ([r, g, b]) => {
    const part = (v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
    return 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color[3] > 0.99) return color;
    }
    return parse(getComputedStyle(document.documentElement).getPropertyValue("color-scheme") && matchMedia("(prefers-color-scheme: dark)").matches ? "rgb(18, 18, 18)" : "rgb(255, 255, 255)");
  };
  const below = (e) => [...e.closest("svg").querySelectorAll("rect")].filter((rect) => {
    const a = rect.getBoundingClientRect(), b = e.getBoundingClientRect();
    return a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  }).map((rect) => parse(getComputedStyle(rect).fill));
  const faint = [];
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let texts = 0;
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    const e = node.parentElement, style = getComputedStyle(e), drawn = e.closest("svg");
    if (!node.textContent.trim() || ["SCRIPT", "STYLE", "title"].includes(e.tagName) || !e.checkVisibility()) continue;
    texts += 1;
    const ink = parse(drawn ? style.fill : style.color);
    const grounds = drawn ? below(e) : [];
    for (const under of grounds.length ? grounds : [ground(drawn ? drawn.parentElement : e)]) {
      const [a, b] = [light(ink), light(under)];
      const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (ratio < 4.5) faint.push([node.textContent.trim().slice(0, 40), Number(ratio.toFixed(2))]);
    }
  }
  const root = document.documentElement;
  return { texts, faint, too_wide: root.scrollWidth - root.clientWidth, hostile: window.hostile ?? null };
}
