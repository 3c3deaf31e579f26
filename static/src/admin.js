// The admin's page of a request: asks once a second whether there is something new, and loads the page again then.
import "./styles/admin.css";

const EVERY = 1000; // ms
const page = document.querySelector("[data-pulse]");

async function look() {
  try {
    const answer = await fetch(page.dataset.pulseUrl, { headers: { Accept: "application/json" } });
    if (answer.ok && (await answer.json()).pulse !== page.dataset.pulse) {
      location.reload();
      return;
    }
  } catch {
    // The service is away; the next look may find it back.
  }
  setTimeout(look, EVERY);
}

if (page) setTimeout(look, EVERY);

// A key that is shown once: marked as a whole, so that Ctrl+C takes it; the button does the same.
for (const button of document.querySelectorAll("[data-copy]")) {
  const field = document.getElementById(button.dataset.copy);
  field.select();
  button.hidden = !navigator.clipboard; // there is none where the page came without TLS from another machine
  button.addEventListener("click", async () => {
    field.select();
    await navigator.clipboard.writeText(field.value);
    button.textContent = button.dataset.copied;
  });
}
