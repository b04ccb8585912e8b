//! The agent that a command talks to: the one that an option names, the environment, or the policy file; else the usual one.

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

use anyhow::Context as _;

use super::endpoint::Endpoint;
use crate::config::{DEFAULT_ADMIN_SOCKET, DEFAULT_CONTROL, DEFAULT_FILE};

/// The environment variable with the admin interface that is asked where `--admin` names none.
pub const ADMIN_VARIABLE: &str = "UNDERPASS_ADMIN";

/// Bytes of a policy file that is asked where the agent is.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// The source of a place's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Named {
    /// The command line: this option.
    Option(&'static str),
    /// [`ADMIN_VARIABLE`].
    Variable,
    /// A policy file: this key of its `[agent]`.
    File(&'static str, PathBuf),
    /// Nobody has: the place is this option's default.
    Default(&'static str),
}

impl Named {
    /// The option that names another place.
    pub fn option(&self) -> &'static str {
        match self {
            Self::Option(option) | Self::Default(option) => option,
            Self::File("agent.control", _) => "--control",
            Self::File(..) | Self::Variable => "--admin",
        }
    }
}

/// In brackets behind a place that the command line has not named.
impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Option(_) => Ok(()),
            Self::Variable => write!(f, " (named by {ADMIN_VARIABLE})"),
            Self::File(key, file) => write!(f, " (named by {key} in {})", file.display()),
            Self::Default(_) => f.write_str(" (the default)"),
        }
    }
}

/// A place where an agent may answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place<T> {
    /// The place.
    pub at: T,
    /// The source of its name.
    pub named: Named,
}

/// The admin interface that is asked.
pub type Admin = Place<Endpoint>;

/// The control socket that is asked.
pub type Control = Place<PathBuf>;

/// The option that names the admin interface.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct AdminArg {
    /// Admin interface of the agent: the path of its socket, or the address of `agent.admin`. Without it that of the environment
    /// variable UNDERPASS_ADMIN, or else of the policy file
    #[arg(long, value_name = "SOCKET | ADDR:PORT")]
    admin: Option<Endpoint>,
}

impl AdminArg {
    /// The interface that is meant, where no other policy file is named.
    ///
    /// # Errors
    /// The environment names what is none.
    pub fn find(&self) -> anyhow::Result<Admin> {
        self.find_by(Path::new(DEFAULT_FILE))
    }

    /// The interface that is meant, with this policy file.
    ///
    /// # Errors
    /// The environment names what is none.
    pub fn find_by(&self, file: &Path) -> anyhow::Result<Admin> {
        let variable = env::var(ADMIN_VARIABLE).ok();
        self.find_in(variable.as_deref(), file)
    }

    fn find_in(&self, variable: Option<&str>, file: &Path) -> anyhow::Result<Admin> {
        if let Some(at) = self.admin.clone() {
            let named = Named::Option("--admin");
            return Ok(Place { at, named });
        }
        if let Some(text) = variable.filter(|text| !text.is_empty()) {
            let at = text.parse().map_err(|why| {
                anyhow::anyhow!(
                    "{ADMIN_VARIABLE} is {text:?}: {why}; set it to another, or unset it"
                )
            })?;
            let named = Named::Variable;
            return Ok(Place { at, named });
        }
        Ok(match path_in(file, "admin_socket") {
            Some(at) => Place {
                at: Endpoint::Socket(at),
                named: Named::File("agent.admin_socket", file.to_owned()),
            },
            None => Place {
                at: Endpoint::Socket(DEFAULT_ADMIN_SOCKET.into()),
                named: Named::Default("--admin"),
            },
        })
    }
}

/// The option that names the control socket.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ControlArg {
    /// Control socket of the agent. Without it that of the policy file
    #[arg(long, value_name = "SOCKET")]
    control: Option<PathBuf>,
}

impl ControlArg {
    /// The socket that is meant, where no other policy file is named.
    pub fn find(&self) -> Control {
        self.find_by(Path::new(DEFAULT_FILE))
    }

    /// The socket that is meant, with this policy file.
    pub fn find_by(&self, file: &Path) -> Control {
        if let Some(at) = self.control.clone() {
            let named = Named::Option("--control");
            return Place { at, named };
        }
        match path_in(file, "control") {
            Some(at) => Place {
                at,
                named: Named::File("agent.control", file.to_owned()),
            },
            None => Place {
                at: DEFAULT_CONTROL.into(),
                named: Named::Default("--control"),
            },
        }
    }
}

/// The path that a key of `[agent]` has, in a policy file that this user can read and nobody but root can change.
pub(super) fn path_in(file: &Path, key: &str) -> Option<PathBuf> {
    let text = trusted::read_text(file, MAX_FILE_BYTES).ok()?;
    let policy: toml::Table = text.parse().ok()?;
    let path = policy.get("agent")?.get(key)?.as_str()?;
    Some(PathBuf::from(path))
}

/// Holds a policy file that somebody has named to being one.
///
/// # Errors
/// This user cannot read it, others can change it, or it is no TOML.
pub(super) fn must_be_read(file: &Path) -> anyhow::Result<()> {
    let text = trusted::read_text(file, MAX_FILE_BYTES)?;
    let policy = text.parse::<toml::Table>();
    let wrong = || {
        format!(
            "{} is no policy file, so name the places by options",
            file.display()
        )
    };
    policy.with_context(wrong)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_option_comes_first_then_the_environment_then_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.toml");
        let absent = folder.path().join("absent.toml");
        fs::write(&file, "[agent]\nadmin_socket = \"/f\"\ncontrol = \"/c\"\n").unwrap();
        let socket = |path: &str| Endpoint::Socket(path.into());
        let given = AdminArg {
            admin: Some(socket("/o")),
        };
        let none = AdminArg::default();
        let option = Named::Option("--admin");
        for (arg, variable, file, at, named) in [
            (&given, Some("/v"), &file, "/o", option),
            (&none, Some("/v"), &file, "/v", Named::Variable),
            (
                &none,
                Some(""),
                &file,
                "/f",
                Named::File("agent.admin_socket", file.clone()),
            ),
            (
                &none,
                None,
                &absent,
                DEFAULT_ADMIN_SOCKET,
                Named::Default("--admin"),
            ),
        ] {
            let found = arg.find_in(variable, file).unwrap();
            assert_eq!(
                found,
                Place {
                    at: socket(at),
                    named
                }
            );
        }
        let control = ControlArg::default();
        assert_eq!(control.find_by(&file).at, Path::new("/c"));
        assert_eq!(control.find_by(&absent).at, Path::new(DEFAULT_CONTROL));
        let said = none
            .find_in(Some("nonsense"), &file)
            .unwrap_err()
            .to_string();
        assert!(
            said.starts_with("UNDERPASS_ADMIN is \"nonsense\": expected the path"),
            "{said}"
        );
    }

    #[test]
    fn a_file_that_others_can_change_names_nothing() {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.toml");
        for (text, mode) in [
            ("[agent]\ncontrol = \"/c\"", 0o666),
            ("[agent", 0o600),
            ("", 0o600),
        ] {
            fs::write(&file, text).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(path_in(&file, "control"), None);
        }
    }
}
