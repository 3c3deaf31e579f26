// Whether this account may open the scheduler page: then what was made in an iteration links to it.
export const isStaff = globalThis.document?.getElementById("chat")?.dataset.staff === "true";
