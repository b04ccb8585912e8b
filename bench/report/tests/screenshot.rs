//! Page and plots in a real browser: they are seen, light and dark, and fit into their window.

#![expect(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

mod common;

use std::{
    env, fs,
    io::BufReader,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use common::{COSTS, Cost, run_of};
use nix::{
    sys::signal::{Signal, killpg},
    unistd::Pid,
};
use report::{Run, artifacts, html, plot::theme};

/// Ten times what a slow machine needs for one page.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// A path's lines and bars have more pixels than this, blurred edges not counted.
const SEEN: usize = 250;
/// Pixels that blurred edges of other colours may hit by chance.
const CHANCE: usize = 25;

/// The value of `prefers-color-scheme` that the browser is given.
#[derive(Clone, Copy, PartialEq)]
enum Scheme {
    Dark = 0,
    Light = 1,
}

/// The browser, if there is one; otherwise the skip is counted.
fn browser(test: &str) -> Option<PathBuf> {
    let folders = env::var_os("PATH").unwrap_or_default();
    let found = env::split_paths(&folders)
        .map(|folder| folder.join("chromium"))
        .find(|file| file.is_file());
    if found.is_none() {
        sandbox::skip::skip(test, "chromium is not installed");
    }
    found
}

/// One start of the browser; its processes are a group, and none of them outlives this.
struct Visit(Child);

impl Drop for Visit {
    fn drop(&mut self) {
        // Gone already: then there is nothing to end.
        let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// Opens an address with these options on top; what the browser printed.
fn visit(browser: &Path, folder: &Path, options: &[String], address: &str) -> String {
    let profile = tempfile::tempdir_in(folder).unwrap();
    let output = folder.join("output");
    let child = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
            "--force-device-scale-factor=1",
            // Nothing leaves this machine, whatever a page asks for.
            "--host-resolver-rules=MAP * ~NOTFOUND",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(options)
        .arg(address)
        .stdin(Stdio::null())
        .stdout(fs::File::create(&output).unwrap())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()
        .unwrap();
    let (mut visit, started) = (Visit(child), Instant::now());
    loop {
        if let Some(status) = visit.0.try_wait().unwrap() {
            assert!(status.success(), "{status}: {address}");
            break;
        }
        assert!(
            started.elapsed() < PATIENCE,
            "the browser hangs on {address}"
        );
        thread::sleep(POLL);
    }
    drop(visit);
    fs::read_to_string(output).unwrap()
}

fn window((width, height): (u32, u32)) -> String {
    format!("--window-size={width},{height}")
}

fn address(file: &Path) -> String {
    format!("file://{}", file.display())
}

/// A picture that the browser took.
struct Picture {
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn of(browser: &Path, folder: &Path, scheme: Scheme, size: (u32, u32), address: &str) -> Self {
        let file = folder.join("picture.png");
        let options = [
            window(size),
            format!("--screenshot={}", file.display()),
            format!("--blink-settings=preferredColorScheme={}", scheme as u8),
        ];
        visit(browser, folder, &options, address);
        let decoder = png::Decoder::new(BufReader::new(fs::File::open(&file).unwrap()));
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        assert_eq!((info.width, info.height), size);
        let samples = info.color_type.samples();
        assert!(samples >= 3, "in colour");
        let pixels = bytes
            .chunks_exact(samples)
            .filter_map(|p| p.first_chunk().copied());
        Self {
            pixels: pixels.collect(),
        }
    }

    fn share(&self, of: impl Fn(f64) -> bool) -> f64 {
        let luminance = |[r, g, b]: &[u8; 3]| {
            (0.2126 * f64::from(*r) + 0.7152 * f64::from(*g) + 0.0722 * f64::from(*b)) / 255.0
        };
        let count = self
            .pixels
            .iter()
            .filter(|pixel| of(luminance(pixel)))
            .count();
        count as f64 / self.pixels.len() as f64
    }

    fn count(&self, color: &str) -> usize {
        let number = u32::from_str_radix(color.trim_start_matches('#'), 16).unwrap();
        let [_, r, g, b] = number.to_be_bytes();
        self.pixels
            .iter()
            .filter(|pixel| **pixel == [r, g, b])
            .count()
    }

    /// Mostly ground of this scheme, with something on it.
    fn assert_scheme(&self, scheme: Scheme, what: &str) {
        let (light, dark) = (self.share(|l| l > 0.85), self.share(|l| l < 0.2));
        let (ground, ink) = match scheme {
            Scheme::Light => (light, self.share(|l| l < 0.5)),
            Scheme::Dark => (dark, self.share(|l| l > 0.5)),
        };
        assert!(ground > 0.8, "{what}: the ground is {ground:.3} of it");
        assert!(ink > 0.01, "{what}: {ink:.3} of it is something");
    }

    /// Each path is there in this scheme's colour, and not in the other's.
    fn assert_paths(&self, scheme: Scheme, what: &str) {
        for path in ["direct", "bypass", "enrich", "haproxy", "nginx"] {
            let (light, dark) = theme::colors(path).unwrap();
            let (this, other) = match scheme {
                Scheme::Light => (light, dark),
                Scheme::Dark => (dark, light),
            };
            let (seen, wrong) = (self.count(this), self.count(other));
            assert!(seen > SEEN, "{what}: {path} has {seen} pixels of {this}");
            assert!(
                wrong < CHANCE,
                "{what}: {path} has {wrong} pixels of {other}"
            );
        }
    }
}

fn page(folder: &Path) -> PathBuf {
    let file = folder.join("page.html");
    fs::write(&file, html::page(&common::run(1))).unwrap();
    file
}

/// Ten paths, one with a name that is too long for a label, one that is faster than direct.
fn crowded() -> Run {
    let mut costs = COSTS.to_vec();
    for (path, op_s, added_us, cpu_us) in [
        ("envoy", 0.5, 200.0, 33.0),
        ("shotover", 0.7, 110.0, 22.0),
        ("cql-proxy", 0.55, 180.0, 400.0),
        ("WWWWWWWWWWWW-proxy", 0.4, 3000.0, 5100.0),
        ("shortcut", 1.5, -60.0, 0.5),
    ] {
        costs.push(Cost {
            path,
            op_s,
            added_us,
            cpu_us,
            rss_kib: 60_000,
            copies: 2,
        });
    }
    run_of(1, &costs)
}

#[test]
fn the_page_is_seen_light_and_dark() {
    let Some(browser) = browser("report::the_page_is_seen_light_and_dark") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let address = address(&page(folder.path()));
    // Down to the last plot of the summary.
    let size = (1200, 5700);
    for (scheme, fragment, seen) in [
        (Scheme::Light, "", Scheme::Light),
        (Scheme::Dark, "", Scheme::Dark),
        // The reader's choice comes before the system's.
        (Scheme::Light, "#dark", Scheme::Dark),
    ] {
        let address = format!("{address}{fragment}");
        let picture = Picture::of(&browser, folder.path(), scheme, size, &address);
        picture.assert_scheme(seen, &address);
        picture.assert_paths(seen, &address);
    }
}

#[test]
fn plots_are_seen_in_pages_of_others() {
    let Some(browser) = browser("report::plots_are_seen_in_pages_of_others") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut images = String::new();
    for (file, svg) in artifacts(&common::run(1)) {
        fs::write(folder.path().join(&file), svg).unwrap();
        images.push_str(&format!("<img src=\"{file}\" style=\"display:block\">"));
    }
    let file = folder.path().join("readme.html");
    fs::write(&file, format!("<body style=\"margin:0\">{images}</body>")).unwrap();
    for scheme in [Scheme::Light, Scheme::Dark] {
        let picture = Picture::of(
            &browser,
            folder.path(),
            scheme,
            (800, 1600),
            &address(&file),
        );
        picture.assert_scheme(scheme, "plots");
        picture.assert_paths(scheme, "plots");
    }
}

/// The value of an expression in a window of this width. The page is in a frame, because the browser's
/// own window has a least width.
fn ask(browser: &Path, folder: &Path, width: u32, run: &Run, expression: &str) -> String {
    let page = html::page(run).replace('&', "&amp;").replace('"', "&quot;");
    let file = folder.join("frame.html");
    let frame = format!(
        "<!doctype html><title></title><iframe width={width} height=900 style=\"border:0\" \
         srcdoc=\"{page}\"></iframe><script>addEventListener('load', () => {{ \
         document.title = frames[0].eval(`{expression}`) }})</script>"
    );
    fs::write(&file, frame).unwrap();
    let options = [
        window((1400, 1000)),
        "--dump-dom".into(),
        format!(
            "--blink-settings=preferredColorScheme={}",
            Scheme::Light as u8
        ),
    ];
    let dom = visit(browser, folder, &options, &address(&file));
    let title = dom
        .split_once("<title>")
        .and_then(|(_, rest)| rest.split_once("</title>"));
    title
        .unwrap_or_else(|| panic!("no title in {dom:.300}"))
        .0
        .to_owned()
}

#[test]
fn the_page_fits_into_its_window() {
    let Some(browser) = browser("report::the_page_fits_into_its_window") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    for width in [1200, 400] {
        // Beside the whole page every plot's text: it is not cut off.
        let script = "[innerWidth, document.documentElement.scrollWidth, \
             [...document.querySelectorAll('svg.plot')].filter(svg => { \
                const box = svg.getBoundingClientRect(); \
                return [...svg.querySelectorAll('text')].some(text => { \
                    const own = text.getBoundingClientRect(); \
                    return own.left < box.left - 1 || own.right > box.right + 1 \
                        || own.bottom > box.bottom + 1; \
                }); \
             }).length].join(' ')";
        let said = ask(&browser, folder.path(), width, &crowded(), script);
        assert_eq!(
            said,
            format!("{width} {width} 0"),
            "window, page, plots with text cut off"
        );
    }
}

#[test]
fn the_button_changes_the_scheme() {
    let Some(browser) = browser("report::the_button_changes_the_scheme") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let script = "(() => { const ground = () => getComputedStyle(document.body).backgroundColor; \
         const all = [ground()]; \
         for (let n = 0; n < 2; n++) { document.getElementById('theme').click(); all.push(ground()) } \
         return all.join(' ') })()";
    let said = ask(&browser, folder.path(), 1200, &common::run(1), script);
    assert_eq!(
        said,
        "rgb(255, 255, 255) rgb(20, 23, 28) rgb(255, 255, 255)"
    );
}
