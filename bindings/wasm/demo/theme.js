// Before anything is drawn: the theme that was chosen last, or else the system's.
const chosen = localStorage.getItem('theme');
if (chosen) document.documentElement.dataset.theme = chosen;
