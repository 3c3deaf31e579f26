// /docs/websocket/: tells when the viewer has read its document.
for (const viewer of document.querySelectorAll("asyncapi-viewer")) {
  viewer.addEventListener("asyncapi-load", () => (viewer.dataset.state = "live"));
}
