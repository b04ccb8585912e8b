//! Paths of files with secrets. `${NAME}` in one stands for a variable of the environment, as service managers name the
//! folder of a service's credentials (`${CREDENTIALS_DIRECTORY}/key`).

use std::{
    env,
    path::{Path, PathBuf},
};

/// The absolute path that a setting names.
///
/// # Errors
/// The path is relative, or has a `${NAME}` that the environment does not.
pub fn secret_path(path: &Path) -> Result<PathBuf, String> {
    filled(path, |name| env::var(name).ok())
}

fn filled(path: &Path, value: impl Fn(&str) -> Option<String>) -> Result<PathBuf, String> {
    let mut rest = path.to_str().ok_or("expected UTF-8")?;
    let mut text = String::new();
    while let Some((before, after)) = rest.split_once("${") {
        let closed = after.split_once('}');
        let (name, behind) =
            closed.ok_or_else(|| format!("expected `${{NAME}}`; found {}", path.display()))?;
        let value = value(name).filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| {
            let path = path.display();
            format!(
                "expected a variable that is set; found {path}, and {name} is not: set it as the agent's unit has it"
            )
        })?;
        text.push_str(before);
        text.push_str(&value);
        rest = behind;
    }
    text.push_str(rest);
    let whole = PathBuf::from(text);
    match whole.is_absolute() {
        true => Ok(whole),
        false => Err(format!(
            "expected an absolute path; found {}",
            whole.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_stand_for_what_the_environment_says() {
        let value = |name: &str| match name {
            "CREDENTIALS_DIRECTORY" => Some("/run/credentials/underpass.service".to_owned()),
            "NAME" => Some("shop".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        let read = |path: &str| filled(Path::new(path), value);
        for (path, whole) in [
            ("/etc/underpass/key", "/etc/underpass/key"),
            ("/etc/$NAME}/key", "/etc/$NAME}/key"),
            (
                "${CREDENTIALS_DIRECTORY}/${NAME}.key",
                "/run/credentials/underpass.service/shop.key",
            ),
        ] {
            assert_eq!(read(path).unwrap(), Path::new(whole));
        }
        for (path, why) in [
            ("key", "an absolute path; found key"),
            ("${NAME}/key", "an absolute path; found shop/key"),
            ("/etc/${NAME", "`${NAME}`; found /etc/${NAME"),
            ("/${OTHER}/key", "and OTHER is not: set it"),
            ("/${EMPTY}/key", "and EMPTY is not: set it"),
        ] {
            let said = read(path).unwrap_err();
            assert!(
                said.starts_with("expected ") && said.contains(why),
                "{said}"
            );
        }
    }
}
