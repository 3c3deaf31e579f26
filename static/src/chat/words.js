// Which iteration made which word of an answer. Pure.
//
// An answer's `marks` are [end, iteration] for each delta: text up to `end` came no later than in that iteration. What is
// shown was Markdown: its words come in the same order as in the source, so each is looked for from where the last was.

/** The iteration that made the character at `offset`, or null. */
export function iterationAt(marks, offset) {
  let low = 0;
  let high = marks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle][0] > offset) high = middle;
    else low = middle + 1;
  }
  return low < marks.length ? marks[low][1] : null;
}

const segmenter = Intl.Segmenter ? new Intl.Segmenter(undefined, { granularity: "word" }) : null;

/** The pieces of a text in order: [{text, isWord}]. Scripts without spaces have words, too. */
export function pieces(text) {
  if (segmenter) return [...segmenter.segment(text)].map(({ segment, isWordLike }) => ({ text: segment, isWord: Boolean(isWordLike) }));
  return (text.match(/\s+|[^\s]+/g) ?? []).map((piece) => ({ text: piece, isWord: /\S/.test(piece) }));
}

/** Finds words of the shown text in its source, one after another. */
export function finder(source, marks) {
  let cursor = 0;
  return (word) => {
    const found = source.indexOf(word, cursor);
    if (found < 0) return null;
    cursor = found + word.length;
    return iterationAt(marks, found);
  };
}

/** Where the scheduler page shows an iteration. */
export function iterationLink({ engine, epoch }, n) {
  return `/scheduler/?${new URLSearchParams({ engine, epoch, n })}`;
}

/** Where the scheduler page shows a request's first iteration. */
export const requestLink = (id) => `/scheduler/?${new URLSearchParams({ request: id })}`;
