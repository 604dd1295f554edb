// What the page does beside its libraries: it sizes the charts, and opens the table that a link leads into.
const specification = document.getElementById("specification");
if (specification) {
  const holder = document.getElementById("chart");
  const charts = JSON.parse(specification.textContent);
  const narrow = holder.clientWidth < 600;
  const width = Math.max(200, Math.min(720, holder.clientWidth - (narrow ? 90 : 260)));
  for (const chart of charts.vconcat) chart.width = width;
  if (narrow) Object.assign(charts.config.legend, { orient: "bottom", columns: 2 });
  await vegaEmbed(holder, charts, { renderer: "svg", actions: false, bind: document.getElementById("choices") });
}
const open = (table) =>
  new DataTable(table, { paging: false, order: [], layout: { topStart: "search", topEnd: "info", bottomStart: null, bottomEnd: null } });
const reveal = () => {
  const target = document.getElementById(location.hash.slice(1));
  const details = target?.closest("details");
  if (details) details.open = true;
  target?.scrollIntoView({ block: "center" });
};
for (const details of document.querySelectorAll("#tables details")) {
  const once = () => details.open && !details.querySelector(".dt-container") && open(details.querySelector("table.data"));
  details.addEventListener("toggle", once);
  once();
}
addEventListener("hashchange", reveal);
if (location.hash) reveal();
