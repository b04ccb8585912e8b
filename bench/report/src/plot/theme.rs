//! Colours, light and dark, as CSS variables; and each path's own colour, dash and marker, the
//! same in every plot.

use std::fmt::Write as _;

/// Name, light, dark.
const SURFACES: [(&str, &str, &str); 7] = [
    ("bg", "#ffffff", "#14171c"),
    ("panel", "#f6f7f9", "#1b1f26"),
    ("fg", "#1c2128", "#e3e7ec"),
    ("muted", "#606a76", "#98a2ae"),
    ("grid", "#dfe3e8", "#2d333c"),
    ("link", "#0b57c2", "#78b0ff"),
    ("bad", "#b3261e", "#ff8a80"),
];

/// Processes other than the proxy, whose colour is its path's.
const ROLES: [(&str, &str, &str); 2] = [
    ("generator", "#c3c9d1", "#4a525d"),
    ("database", "#8d96a2", "#77818d"),
];

/// Paths that are known have a colour of their own; others share the last four.
const PATHS: [(&str, &str, &str); 22] = [
    ("direct", "#5a6472", "#a3adb9"),
    ("bypass", "#1a7f37", "#4cc46d"),
    ("observe", "#5c7a00", "#a9cc45"),
    ("shortcut", "#7a43d1", "#b894f8"),
    ("splice", "#0c7c8c", "#41cbd8"),
    ("relay", "#946400", "#dcae3d"),
    ("enrich", "#c8430b", "#ff8f52"),
    ("forward", "#7c4f2c", "#cba07c"),
    ("haproxy", "#bf2d86", "#f57dbb"),
    ("nginx", "#1f66d6", "#6cabff"),
    ("envoy", "#a3152b", "#ff828b"),
    ("shotover", "#4547a3", "#9fa1ff"),
    ("cql-proxy", "#2c6d5b", "#72d2b5"),
    ("zdm-proxy", "#6c6a10", "#cfcb5c"),
    ("stats", "#9a3412", "#fdba74"),
    ("fold", "#86198f", "#e879f9"),
    ("splice-egress", "#2f5f8f", "#7fb4e6"),
    ("tap", "#00796b", "#4dd0c0"),
    ("", "#8a3ffc", "#be95ff"),
    ("", "#005d5d", "#3ddbd9"),
    ("", "#9f1853", "#ff7eb6"),
    ("", "#6f4e00", "#e0b04a"),
];
/// Colours that no path owns.
const SHARED: usize = 4;

/// Shapes of markers; each is there filled and hollow.
const MARKERS: usize = 7;

/// `stroke-dasharray`s.
const DASHES: [&str; 4] = ["", "7 3", "2 3", "9 3 2 3"];

/// The colour slot of a path.
pub fn slot(path: &str) -> usize {
    let known = PATHS
        .iter()
        .position(|(name, ..)| *name == path && !name.is_empty());
    known.unwrap_or_else(|| {
        // FNV-1a: the same in every program and on every day.
        let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        PATHS.len() - SHARED + (hash % SHARED as u64) as usize
    })
}

/// A path's colour, as CSS has it.
pub fn color(path: &str) -> String {
    format!("var(--p{})", slot(path))
}

/// A path's light and dark colour, as `#rrggbb`.
pub fn colors(path: &str) -> Option<(&'static str, &'static str)> {
    PATHS
        .get(slot(path))
        .map(|(_, light, dark)| (*light, *dark))
}

/// How a path's line is broken.
pub fn dash(path: &str) -> &'static str {
    DASHES.get(slot(path) % DASHES.len()).copied().unwrap_or("")
}

/// A path's marker: one of [`MARKERS`] shapes, and whether it is hollow.
pub fn marker(path: &str) -> (usize, bool) {
    (slot(path) % MARKERS, slot(path) / MARKERS % 2 == 1)
}

/// Declarations of all colours.
fn variables(is_dark: bool) -> String {
    let mut out = String::new();
    for (name, light, dark) in SURFACES.iter().chain(&ROLES) {
        let _ = write!(out, "--{name}:{};", if is_dark { dark } else { light });
    }
    for (n, (_, light, dark)) in PATHS.iter().enumerate() {
        let _ = write!(out, "--p{n}:{};", if is_dark { dark } else { light });
    }
    let scheme = if is_dark { "dark" } else { "light" };
    format!("{out}color-scheme:{scheme};")
}

/// The style of a plot that is a file: it follows the reader's preference.
pub fn of_file() -> String {
    format!(
        "svg{{{}}}@media(prefers-color-scheme:dark){{svg{{{}}}}}{PLOT}",
        variables(false),
        variables(true)
    )
}

/// The style of a page: it follows the reader's preference until the reader chooses.
pub fn of_page() -> String {
    format!(
        ":root{{{light}}}\n@media(prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n\
         :root[data-theme=dark]{{{dark}}}\n{PLOT}",
        light = variables(false),
        dark = variables(true)
    )
}

/// How parts of plots look.
const PLOT: &str = "\
.plot{font:12px system-ui,-apple-system,\"Segoe UI\",Roboto,\"DejaVu Sans\",sans-serif;font-variant-numeric:tabular-nums}\
.plot .ground{fill:var(--bg)}\
.plot text{fill:var(--fg)}\
.plot .title{font-size:15px;font-weight:600}\
.plot .sub,.plot .tick,.plot .axis,.plot .note{fill:var(--muted)}\
.plot .tick,.plot .axis{font-size:11px}\
.plot .panel{font-weight:600}\
.plot .grid{stroke:var(--grid);stroke-width:1}\
.plot .zero{stroke:var(--muted);stroke-width:1}\
.plot .line{fill:none;stroke-width:1.8;stroke-linejoin:round}\
.plot .lead{fill:none;stroke-width:.75;opacity:.6}\
.plot .whisker{stroke:var(--fg);stroke-width:1.2}\
.plot .inside{font-size:11px}";
