// Starts the scheduler page.
import { render } from "preact";
import { Scheduler } from "./view.jsx";

render(<Scheduler />, document.getElementById("scheduler"));
