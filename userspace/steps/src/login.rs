//! The credentials with which a step logs in at a database, by SASL PLAIN.

use std::{fmt, io, path::PathBuf};

use zeroize::Zeroizing;

/// The longest password.
const MAX_PASSWORD_BYTES: usize = 4_096;

/// The longest file of a password: line ends stand behind it.
const MAX_PASSWORD_FILE_BYTES: u64 = MAX_PASSWORD_BYTES as u64 + 2;

/// The settings `username` and `password_file`, checked.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LoginSettings {
    user: String,
    file: PathBuf,
}

/// The credentials.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Login {
    user: String,
    password: String,
}

impl fmt::Debug for Login {
    /// Leaves the password out.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut login = f.debug_struct("Login");
        login.field("user", &self.user).finish_non_exhaustive()
    }
}

impl LoginSettings {
    /// Checks the two settings. None: neither is there, and nobody logs in.
    ///
    /// # Errors
    /// One is there without the other, or the file's path is relative.
    pub(super) fn of(
        username: Option<String>,
        password_file: Option<PathBuf>,
    ) -> Result<Option<Self>, String> {
        match (username, password_file) {
            (None, None) => Ok(None),
            (Some(user), Some(file)) => {
                let file = trusted::secret_path(&file);
                let file = file.map_err(|why| format!("password_file: {why}"))?;
                Ok(Some(Self { user, file }))
            }
            (Some(_), None) => Err("username: expected with `password_file`".to_owned()),
            (None, Some(_)) => Err("password_file: expected with `username`".to_owned()),
        }
    }

    /// Reads the password. Line ends at the end of its file are not part of it.
    ///
    /// # Errors
    /// Names the file, and what is wrong with it.
    pub(super) fn read(&self) -> io::Result<Login> {
        let cannot = |what: &dyn fmt::Display| {
            io::Error::other(format!("password_file: {}: {what}", self.file.display()))
        };
        let text =
            trusted::read_text(&self.file, MAX_PASSWORD_FILE_BYTES).map_err(|e| cannot(&e))?;
        let password = text.trim_end_matches(['\r', '\n']);
        if password.is_empty() || password.len() > MAX_PASSWORD_BYTES || password.contains('\0') {
            return Err(cannot(&"expected a password in one line"));
        }
        Ok(Login {
            user: self.user.clone(),
            password: password.to_owned(),
        })
    }
}

impl Login {
    /// The body of the AUTH_RESPONSE that logs in.
    pub(super) fn auth_response(&self) -> Zeroizing<Vec<u8>> {
        cql_client::auth_response(&self.user, &self.password)
    }
}
