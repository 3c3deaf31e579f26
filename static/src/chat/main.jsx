// Starts the chat page: mounts the view, loads the list, opens the conversation in the address.
import { options, render } from "preact";
import { Chat } from "./view.jsx";
import * as conversations from "./conversations.js";
import { follow } from "./session.js";

// At most one render a frame, however many deltas come; a hidden tab has no frames, so a timer stands in.
options.debounceRendering = (work) => (document.hidden ? setTimeout(work, 200) : requestAnimationFrame(work));

render(<Chat />, document.getElementById("chat"));

function openAddressed() {
  const id = conversations.idInAddress();
  if (id) void conversations.open(id, follow, { address: false });
  else conversations.openNew({ address: false });
}

addEventListener("popstate", openAddressed);
void conversations.loadList();
openAddressed();
