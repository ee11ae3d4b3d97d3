"use strict";
/* Hands a file that the user chose to Perfetto in a new tab, as https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui says. */
hotlap.panel("links", (d, section) => {
  const ORIGIN = "https://ui.perfetto.dev", told = section.querySelector("[data-told]");
  section.querySelector("[data-control=perfetto]").addEventListener("change", async (event) => {
    const file = event.target.files[0];
    if (!file) return;
    const tab = window.open(ORIGIN);
    if (!tab) { told.textContent = "The browser blocked the new tab."; return; }
    const buffer = await file.arrayBuffer();
    const asking = setInterval(() => tab.postMessage("PING", ORIGIN), 250);
    addEventListener("message", function ready(message) {
      if (message.origin !== ORIGIN || message.data !== "PONG") return;
      clearInterval(asking);
      removeEventListener("message", ready);
      tab.postMessage({perfetto: {buffer, title: file.name}}, ORIGIN, [buffer]);
      told.textContent = "Handed to Perfetto.";
    });
    setTimeout(() => clearInterval(asking), 60000);
  });
  return null;
});
