// Inline SVG icons, 20 units square, drawn with the text's colour. They are decoration: their buttons carry the words.

const PATHS = {
  plus: "M10 4v12M4 10h12",
  send: "M10 16V4M5 9l5-5 5 5",
  stop: "M6 6h8v8H6z",
  copy: "M7 7h9v10H7zM13 7V3H4v10h3",
  check: "M4 10.5l4 4 8-9",
  refresh: "M16 6.5A7 7 0 1 0 17 10M16 3v4h-4",
  trash: "M4 6h12M8 6V4h4v2M6 6l.7 11h6.6L14 6M9 9v5M11 9v5",
  pencil: "M4 16l1-4 8-8 3 3-8 8zM11.5 5.5l3 3",
  sliders: "M4 6h6M14 6h2M4 14h2M10 14h6M12 4v4M8 12v4",
  menu: "M3 5h14M3 10h14M3 15h14",
  close: "M5 5l10 10M15 5L5 15",
  pause: "M7 4v12M13 4v12",
  play: "M6 4l10 6-10 6z",
  minus: "M4 10h12",
  step: "M5 4l7 6-7 6zM15 4v12",
  people: "M7 9a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5zM2 16c.5-3 2.500-4.500 5-4.500s4.500 1.500 5 4.500M13 9a2.500 2.500 0 1 0-1-4.800M14 11.600c2 .4 3.500 1.800 4 4.400",
  down: "M10 4v12M5 11l5 5 5-5",
  chat: "M4 4h12v9H9l-4 3.5V13H4z",
};

export function Icon({ name }) {
  return (
    <svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}
