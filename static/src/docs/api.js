// /docs/api/: the OpenAPI document in Swagger UI, in the page's own theme.
const place = document.getElementById("api");
const root = document.documentElement;

function followTheme() {
  root.classList.toggle("dark-mode", root.dataset.theme === "dark");
}

followTheme();
addEventListener("themechange", followTheme);

window.SwaggerUIBundle({
  url: place.dataset.document,
  domNode: place,
  deepLinking: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  validatorUrl: null, // nothing is asked of another host
  onComplete: () => (place.dataset.state = "live"),
});
