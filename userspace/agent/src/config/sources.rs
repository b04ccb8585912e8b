//! The texts of a policy: the file, those of the folder `conf.d` beside it, in the order of their names, and those of the fleet.
//!
//! All of them are read as if they were one text, so that a place in bytes says which file it is in: each is parsed behind
//! as much blank space as there is text before it.

use std::{
    ffi::OsStr,
    fs, io,
    ops::Range,
    path::{Path, PathBuf},
};

use policy_source::Fragments;

use super::{
    ConfigError, LineColumn,
    error::Flaw,
    raw::{self, RawConfig, RawFurther},
};

/// The folder of further files, beside the main one.
pub const FOLDER: &str = "conf.d";

/// Further files, at most. Each look at the policy reads them all, once a second.
pub const MAX_FILES: usize = 256;

/// Bytes of all files together. A thousand rules with pipelines have a fraction of it.
const MAX_BYTES: u64 = 16 << 20;

/// The folder in which files of a fleet's policy seem to be, in errors: those of etcd end in `.toml`, and policies of Kubernetes
/// are objects.
const OF_ETCD: &str = "etcd:rules/";
const OF_KUBERNETES: &str = "kubernetes:";

/// The words before the other place of which an error speaks.
pub const OTHER_PLACE: &str = " (the other is at ";

/// The beginning and the end of a policy that was an object: what is between is a list of rules, which that of the next one continues.
pub(super) const OPENS: &str = "rule = [";
pub(super) const CLOSES: &str = "]\n";

type Parse = fn(&str) -> Result<RawFurther, Flaw>;

/// The texts of a policy with their files: the main one, and then the further ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sources {
    main: Source,
    further: Vec<Source>,
    /// The files of the fleet's policy, whose paths are keys.
    fleets: Vec<Source>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    /// The places in the text, of which its end is one, too.
    fn span(&self) -> usize {
        self.text.len() + 1
    }
}

impl Sources {
    /// A policy of one file.
    pub fn of(path: &Path, text: &str) -> Self {
        Self {
            main: Source {
                path: path.to_owned(),
                text: text.to_owned(),
            },
            further: Vec::new(),
            fleets: Vec::new(),
        }
    }

    /// Returns the host's own.
    pub fn own(&self) -> Self {
        Self {
            fleets: Vec::new(),
            ..self.clone()
        }
    }

    /// Adds the files of a fleet's policy, behind all others.
    pub fn with(self, fragments: &Fragments) -> Self {
        let fleets = fragments.files.iter().map(|file| Source {
            path: match file.name.ends_with(".toml") && !file.name.contains('/') {
                true => format!("{OF_ETCD}{}", file.name).into(),
                false => format!("{OF_KUBERNETES}{}", file.name).into(),
            },
            text: file.text.clone(),
        });
        Self {
            fleets: fleets.collect(),
            ..self
        }
    }

    /// Reads the file, and those of `conf.d` beside it whose names end in `.toml`, if only root can change them.
    ///
    /// # Errors
    /// Others can, or one of them cannot be read, or there are too many.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        let mut room = MAX_BYTES;
        let mut read = |path: &Path| {
            let text = trusted::read_text(path, room);
            let text = text.map_err(|error| ConfigError::unread(path, error))?;
            room -= text.len() as u64;
            Ok(Source {
                path: path.to_owned(),
                text,
            })
        };
        let main = read(path)?;
        let further = further(path)?
            .iter()
            .map(|path| read(path))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            main,
            further,
            fleets: Vec::new(),
        })
    }

    /// The files with their texts, the main one first.
    pub fn texts(&self) -> impl Iterator<Item = (&Path, &str)> {
        self.all()
            .map(|source| (source.path.as_path(), source.text.as_str()))
    }

    fn all(&self) -> impl Iterator<Item = &Source> {
        std::iter::once(&self.main)
            .chain(&self.further)
            .chain(&self.fleets)
    }

    /// Parses the texts into one form: lists of a further file follow those of the files before it.
    pub(super) fn parse(&self) -> Result<RawConfig, ConfigError> {
        let parse = || {
            let mut whole = raw::parse(&self.main.text)?;
            let mut before = self.main.span();
            let further = self
                .further
                .iter()
                .map(|source| (source, raw::parse_further as Parse));
            let joined = self.joined(self.fleets_begin());
            let fleets = self
                .fleets
                .iter()
                .filter(|_| joined.is_none())
                .map(|source| (source, raw::parse_fleets as Parse));
            for (source, parse) in further.chain(fleets) {
                let text = " ".repeat(before) + &source.text;
                whole.extend(parse(&text)?);
                before += source.span();
            }
            if let Some(text) = joined {
                whole.extend(raw::parse_fleets(&text)?);
            }
            Ok(whole)
        };
        parse().map_err(|flaw: Flaw| self.error(flaw))
    }

    /// Joins the policies that were objects: one text, with each in its place. Each of them alone, behind so many blanks, would be as much to
    /// read as all of them. None: they are files, or there are none.
    fn joined(&self, before: usize) -> Option<String> {
        let inner = |source: &'_ Source| -> Option<Range<usize>> {
            let rules = source.text.strip_prefix(OPENS)?.strip_suffix(CLOSES)?;
            Some(OPENS.len()..OPENS.len() + rules.len())
        };
        let inners: Option<Vec<_>> = self.fleets.iter().map(inner).collect();
        let inners = inners.filter(|inners| !inners.is_empty())?;
        let mut text = " ".repeat(before);
        for (n, (source, inner)) in self.fleets.iter().zip(inners).enumerate() {
            match n {
                0 => text.push_str(OPENS),
                _ => text.push_str(&" ".repeat(OPENS.len())),
            }
            text.push_str(source.text.get(inner).unwrap_or_default());
            // As long as an end, and what is between two texts.
            text.push_str(match n + 1 == self.fleets.len() {
                true => CLOSES,
                false => "  \n",
            });
        }
        Some(text)
    }

    /// The place at which the texts of the fleet begin.
    pub(super) fn fleets_begin(&self) -> usize {
        self.main.span() + self.further.iter().map(Source::span).sum::<usize>()
    }

    /// Names the place of a flaw, and the other place that it speaks of.
    pub(super) fn error(&self, flaw: Flaw) -> ConfigError {
        let (path, at) = self.place(&flaw.span);
        let other = flaw.other.map(|other| {
            let (path, at) = self.place(&other);
            format!("{OTHER_PLACE}{}:{at})", path.display())
        });
        ConfigError::Bad {
            path: path.to_owned(),
            at,
            message: flaw.message + &other.unwrap_or_default(),
        }
    }

    fn place(&self, span: &Range<usize>) -> (&Path, LineColumn) {
        let mut start = span.start;
        for source in self.all() {
            if start < source.span() {
                return (&source.path, LineColumn::of(&source.text, start));
            }
            start -= source.span();
        }
        // No parser names a place behind the last text.
        let last = self.all().last().unwrap_or(&self.main);
        (&last.path, LineColumn::of(&last.text, last.text.len()))
    }
}

/// The further files of a policy, in the order of their names' bytes.
fn further(path: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    let folder = path.parent().unwrap_or(Path::new("")).join(FOLDER);
    let unreadable = |error| ConfigError::Unreadable {
        path: folder.clone(),
        error,
    };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    // Files that are put there count, so nobody else may put one there.
    trusted::folder(&folder).map_err(|error| ConfigError::unread(&folder, error))?;
    let mut files = Vec::new();
    for entry in entries {
        let path = entry.map_err(unreadable)?.path();
        let is_hidden = path
            .file_name()
            .is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if !is_hidden && path.extension() == Some(OsStr::new("toml")) {
            files.push(path);
        }
    }
    if files.len() > MAX_FILES {
        let why = format!("it has {} files; {MAX_FILES} may be there", files.len());
        return Err(unreadable(io::Error::other(why)));
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    const RULE: &str = "[[rule]]\nname = \"NAME\"\nto = [\":1\"]\naction = \"bypass\"\n";

    fn rule(name: &str) -> String {
        RULE.replace("NAME", name)
    }

    /// A policy of these files in a folder of its own: what it says, or its error with the folder's path cut out.
    fn load(files: &[(&str, &str)]) -> Result<Config, String> {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join(FOLDER)).unwrap();
        for (name, text) in files {
            fs::write(folder.path().join(name), text).unwrap();
        }
        let at = format!("{}/", folder.path().display());
        let loaded = Config::load(&folder.path().join("main.toml"));
        loaded.map_err(|error| error.to_string().replace(&at, ""))
    }

    #[test]
    fn rules_follow_one_another_by_the_names_of_their_files() {
        let config = load(&[
            ("main.toml", &rule("a")),
            ("conf.d/20.toml", &rule("c")),
            ("conf.d/10.toml", &(rule("b") + &rule("b2"))),
            ("conf.d/30.toml", ""),
            ("conf.d/.40.toml", "hidden, as editors' are"),
            ("conf.d/50.toml.dpkg-old", "of no use"),
        ]);
        let rules = config.unwrap().policy.rules;
        let names: Vec<_> = rules.iter().map(|rule| rule.name.to_string()).collect();
        assert_eq!(names, ["a", "b", "b2", "c"]);
    }

    #[test]
    fn an_error_names_the_file_that_it_is_in_wherever_that_is() {
        let good = [rule("a"), rule("ä"), rule("c")].map(|text| text.replace("ä", "b"));
        let names = ["main.toml", "conf.d/1.toml", "conf.d/2.toml"];
        for (bad, name) in names.iter().enumerate() {
            for (text, says) in [
                (rule("d e"), "2:8: rule.name: expected 1 to 63 letters"),
                ("[[rule]]\nname = ".into(), "2:8: "),
                (rule("d") + "colour = 1", "5:1: unknown field `colour`"),
                ("# ü\n?".into(), "2:2: "),
            ] {
                let mut texts = good.clone();
                texts[bad] = text;
                let files: Vec<_> = names
                    .into_iter()
                    .zip(texts.iter().map(String::as_str))
                    .collect();
                let said = load(&files).unwrap_err();
                assert!(
                    said.starts_with(&format!("{name}:{says}")),
                    "{name}: {said}"
                );
            }
        }
    }

    #[test]
    fn a_name_that_two_files_give_names_both() {
        let said = load(&[
            ("main.toml", &(rule("a") + &rule("b"))),
            ("conf.d/1.toml", &rule("c")),
            ("conf.d/2.toml", &("\n".to_owned() + &rule("b"))),
        ]);
        assert_eq!(
            said.unwrap_err(),
            "conf.d/2.toml:3:8: rule.name: expected a name that no rule above has; found \"b\" (the other is at main.toml:6:8)"
        );
    }

    #[test]
    fn a_further_file_has_no_table_that_there_is_once() {
        for table in ["agent", "log", "otlp", "default", "health", "containers"] {
            let text = format!("\n[{table}]\n");
            let said = load(&[("main.toml", ""), ("conf.d/1.toml", &text)]).unwrap_err();
            assert!(
                said.starts_with(&format!("conf.d/1.toml:2:2: {table}: files of conf.d")),
                "{said}"
            );
        }
    }

    #[test]
    fn too_many_files_are_an_error() {
        let names: Vec<_> = (0..=MAX_FILES)
            .map(|i| format!("conf.d/{i}.toml"))
            .collect();
        let mut files: Vec<_> = names.iter().map(|name| (name.as_str(), "")).collect();
        files[0].0 = "main.toml";
        assert!(load(&files).is_ok());
        files.push(("conf.d/0.toml", ""));
        let said = load(&files).unwrap_err();
        assert!(said.contains("257 files; 256 may be there"), "{said}");
    }

    #[test]
    fn policies_that_were_objects_are_read_as_one_and_keep_their_places() {
        let object = |name: &str, rules: &[&str]| {
            let rules = rules.iter().map(|rule| {
                format!("{{ name = \"{rule}\", to = [\":1\"], action = \"bypass\" }},\n")
            });
            policy_source::Fragment {
                name: format!("p/{name}"),
                text: format!("{OPENS}{}{CLOSES}", rules.collect::<String>()),
            }
        };
        let config = |files: Vec<policy_source::Fragment>| {
            let fragments = Fragments {
                files,
                ..Fragments::default()
            };
            let mut own = Sources::of("/own.toml".as_ref(), &rule("own"));
            own.further.push(Source {
                path: "/conf.d/1.toml".into(),
                text: rule("further"),
            });
            Config::of(&own.with(&fragments)).map_err(|error| error.to_string())
        };
        let good = vec![
            object("a", &["a1", "a2"]),
            object("b", &[]),
            object("c", &["c1"]),
        ];
        let rules = config(good.clone()).unwrap().policy.rules;
        let names: Vec<_> = rules.iter().map(|rule| rule.name.to_string()).collect();
        assert_eq!(names, ["own", "further", "a1", "a2", "c1"]);
        for (bad, said) in [
            (object("c", &["c1", "c 2"]), "kubernetes:p/c:2:"),
            (object("b", &["b1", "c1"]), "kubernetes:p/c:1:"),
            (object("a", &["own"]), "kubernetes:p/a:1:"),
        ] {
            let mut files = good.clone();
            for file in &mut files {
                if file.name == bad.name {
                    file.clone_from(&bad);
                }
            }
            let refused = config(files).unwrap_err();
            assert!(refused.starts_with(said), "{refused}");
        }
        // One that is no list is read by itself.
        let mut files = good;
        files[0].text = rule("x");
        let rules = config(files).unwrap().policy.rules;
        assert_eq!(rules.len(), 4);
    }
}
