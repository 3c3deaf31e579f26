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
