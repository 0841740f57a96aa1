// Applies the chosen theme before the first paint; the system's theme is used if none was chosen.
try {
  const theme = localStorage.getItem("ottla-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch { /* storage is disabled */ }
