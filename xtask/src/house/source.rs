//! The workspace's source as modules: every target of every crate, from its root file along
//! `mod name;`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::Value;
use syn::{Attribute, Item, ItemMod, Meta};

use crate::{
    paths,
    run::{capture, cargo},
};

/// One library, program, test or benchmark: the files that rustc reads for it.
pub struct Target {
    /// Root first. Other crates' files are not among them: crates cannot import each other in a
    /// circle.
    pub files: Vec<File>,
}

/// A source file and the module that it is.
pub struct File {
    /// Absolute.
    pub path: PathBuf,
    /// Module path below the target's root; empty for the root itself.
    pub module: Vec<String>,
    /// Parsed text.
    pub syntax: syn::File,
}

impl File {
    /// `path:line`, relative to the workspace's root.
    pub fn place(&self, line: usize) -> String {
        format!("{}:{line}", shown(&self.path))
    }
}

/// A path relative to the workspace's root.
pub fn shown(path: &Path) -> String {
    let root = paths::root();
    path.strip_prefix(&root)
        .unwrap_or(path)
        .display()
        .to_string()
}

/// Every target of the workspace, as cargo lists them.
///
/// # Errors
/// When cargo does not tell, or a file cannot be read or parsed.
pub fn targets() -> Result<Vec<Target>> {
    let metadata = capture(cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_slice(&metadata).context("cargo metadata")?;
    let mut targets = Vec::new();
    for package in list(&metadata, "packages") {
        for target in list(package, "targets") {
            let Some(root) = target.get("src_path").and_then(Value::as_str) else {
                continue;
            };
            targets.push(read(Path::new(root))?);
        }
    }
    Ok(targets)
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    let list = value.get(key).and_then(Value::as_array);
    list.into_iter().flatten()
}

fn read(root: &Path) -> Result<Target> {
    let mut files = Vec::new();
    let folder = root.parent().context("a target's root has no folder")?;
    read_file(root, folder, Vec::new(), &mut files)?;
    Ok(Target { files })
}

/// Reads a file and those of its submodules, which lie in `folder`. Generated files, which
/// `cargo xtask generate` answers for, are left out.
fn read_file(path: &Path, folder: &Path, module: Vec<String>, files: &mut Vec<File>) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", shown(path)))?;
    if text.starts_with("// @generated") || text.starts_with("//! @generated") {
        return Ok(());
    }
    let syntax = syn::parse_file(&text).with_context(|| format!("cannot parse {}", shown(path)))?;
    let children = submodules(&syntax.items, folder, path, &module);
    files.push(File {
        path: path.to_owned(),
        module,
        syntax,
    });
    for child in children {
        read_file(&child.path, &child.folder, child.module, files)?;
    }
    Ok(())
}

struct Child {
    path: PathBuf,
    /// Where its own submodules lie.
    folder: PathBuf,
    module: Vec<String>,
}

fn submodules(items: &[Item], folder: &Path, file: &Path, module: &[String]) -> Vec<Child> {
    let mut children = Vec::new();
    for item in items {
        let Item::Mod(item) = item else { continue };
        let name = item.ident.to_string();
        let mut inner = module.to_vec();
        inner.push(name.clone());
        match &item.content {
            Some((_, items)) => {
                children.extend(submodules(items, &folder.join(&name), file, &inner));
            }
            None => children.extend(child(item, &name, folder, file, inner)),
        }
    }
    children
}

/// A file that is not there belongs to another configuration of the crate.
fn child(
    item: &ItemMod,
    name: &str,
    folder: &Path,
    file: &Path,
    module: Vec<String>,
) -> Option<Child> {
    if let Some(path) = path_attribute(&item.attrs) {
        let path = file.parent()?.join(path);
        let folder = path.parent()?.to_owned();
        return path.exists().then_some(Child {
            path,
            folder,
            module,
        });
    }
    let own = folder.join(name);
    [folder.join(format!("{name}.rs")), own.join("mod.rs")]
        .into_iter()
        .find(|path| path.exists())
        .map(|path| Child {
            path,
            folder: own,
            module,
        })
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    attributes
        .iter()
        .find_map(|attribute| match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => text(&pair.value),
            _ => None,
        })
}

/// The text of a string literal.
pub fn text(value: &syn::Expr) -> Option<String> {
    match value {
        syn::Expr::Lit(syn::ExprLit {
            lit: syn::Lit::Str(text),
            ..
        }) => Some(text.value()),
        _ => None,
    }
}

/// Whether an item is compiled for tests alone.
pub fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        Meta::List(list) => list.path.is_ident("cfg") && list.tokens.to_string() == "test",
        _ => false,
    })
}
