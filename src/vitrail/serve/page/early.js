// Before the first paint: the kept choice of day or night, so that the page does not flash.
try {
  document.documentElement.dataset.theme = localStorage.getItem("vitrail-theme") || "auto";
} catch {
  document.documentElement.dataset.theme = "auto";
}
